"""No-op jobs in Dramatiq, plain ones and those of a group: each bulk push of `grouped` is a group with a callback."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.apps.dramatiq import DESCRIPTION, JOBS

__all__ = ["DESCRIPTION", "push", "push_many"]

dramatiq.get_broker().add_middleware(GroupCallbacks(RedisBackend(url=os.environ["REDIS_URL"])))


def plain() -> None:
    pass


def completed() -> None:
    pass


JOBS["plain"] = dramatiq.actor(plain)
COMPLETED = dramatiq.actor(completed)


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].send(*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    if job == "grouped":
        group = dramatiq.group([JOBS["plain"].message(*arguments) for arguments in argument_lists])
        group.add_completion_callback(COMPLETED.message())
        group.run()
        return
    for arguments in argument_lists:
        push(job, arguments)
