"""No-op jobs in Dramatiq with its limiters, and one without.  It has no deduplication."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import dramatiq
from dramatiq.rate_limits import ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks.apps.dramatiq import DESCRIPTION, JOBS

__all__ = ["DESCRIPTION", "push", "push_many"]

BACKEND = RedisBackend(url=os.environ["REDIS_URL"])
AT_ONCE = ConcurrentRateLimiter(BACKEND, "at-once", limit=20)
PER_SECOND = WindowRateLimiter(BACKEND, "per-second", limit=1_000_000, window=1)


def plain() -> None:
    pass


def limited() -> None:
    with AT_ONCE.acquire():
        pass


def rated() -> None:
    with PER_SECOND.acquire():
        pass


GUARDED: tuple[Callable[[], None], ...] = (plain, limited, rated)
JOBS.update({function.__name__: dramatiq.actor(function) for function in GUARDED})


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].send(*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    for arguments in argument_lists:
        push(job, arguments)
