"""Tasks of Django's framework."""

from __future__ import annotations

import os
from typing import Any

from django.db.models import IntegerChoices, TextChoices
from django.utils.safestring import mark_safe

from tests.apps.django_project.declare import task


class Size(IntegerChoices):
    SMALL = 1


class State(TextChoices):
    PAID = "paid"


# What tasks may return.  "large": more than is kept.
RETURNED = {
    "rendered": mark_safe("<b>"),
    "choices": {"state": State.PAID, "size": Size.SMALL, State.PAID: [True, 0.5, None]},
    "keys": {1: "a", None: "b"},
    "not a number": float("nan"),
    "half a pair": "\ud800",
    "large": "x" * 1_000_001,
    "one key twice": {1: "a", "1": "b"},
    "a type": object(),
}


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


@task()
def give(name: str) -> Any:
    return RETURNED[name]


@task()
async def agive(name: str) -> Any:
    return RETURNED[name]


@task(backend="patient")
def give_patiently(name: str) -> Any:
    return RETURNED[name]


@task(backend="forgetful")
def give_and_forget(name: str) -> Any:
    return RETURNED[name]


@task()
def echo(*values: Any, **named: Any) -> list[Any]:
    return [*values, named]
