"""Tasks of Django's framework."""

from __future__ import annotations

import os
from typing import Any

from tests.apps.django_project.declare import task


@task()
def add(one: int, two: int = 0) -> int:
    return one + two


@task()
async def aadd(one: int, two: int = 0) -> int:
    return one + two


@task()
def fail(message: str) -> None:
    raise ValueError(message)


@task(backend="patient")
def fail_patiently(message: str) -> None:
    raise LookupError(message)


@task()
def leave() -> None:
    raise SystemExit("it leaves")


@task()
def unstorable() -> object:
    return object()


@task(takes_context=True)
def describe(context: Any, word: str) -> dict[str, Any]:
    result = context.task_result
    return {"id": result.id, "attempt": context.attempt, "status": str(result.status), "word": word}


@task()
def where() -> int:
    return os.getpid()
