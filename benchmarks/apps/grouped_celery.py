"""No-op jobs in Celery, plain ones and those of a chord: each bulk push of `grouped` is one chord."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import celery

from benchmarks.apps.celery import DESCRIPTION, JOBS, app

__all__ = ["DESCRIPTION", "app", "push", "push_many"]

# A chord needs the results of its header; plain jobs ignore theirs.
app.conf.update(result_backend=os.environ["REDIS_URL"], task_ignore_result=False)


def plain() -> None:
    pass


def counted() -> None:
    pass


def completed(results: list[None]) -> None:
    pass


JOBS["plain"] = app.task(plain, ignore_result=True)
COUNTED, COMPLETED = app.task(counted), app.task(completed, ignore_result=True)


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].apply_async(arguments, ignore_result=True)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    if job == "grouped":
        celery.chord([COUNTED.s(*arguments) for arguments in argument_lists])(COMPLETED.s())
        return
    for arguments in argument_lists:
        push(job, arguments)
