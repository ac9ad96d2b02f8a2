"""No-op jobs in kiqcluster, each with another guarantee; and one without, to compare them with.

Every push of such a job gets a number of its own as its argument, so that no push is a duplicate of another.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from itertools import count
from typing import Any

import kiqcluster
from benchmarks.apps.kiqcluster import DESCRIPTION, JOBS
from kiqcluster import limits

__all__ = ["DESCRIPTION", "MOST_AT_ONCE", "MOST_PER_SECOND", "push", "push_many"]

MOST_AT_ONCE = 20  # jobs that may run at once: more than there are threads, so that none waits
MOST_PER_SECOND = 1_000_000  # starts: more than there are
NUMBERS = count()

kiqcluster.configure(encryption_keys=f"1:{b64encode(b'benchmark' * 3 + b'-----').decode()}")


def guarded(name: str, **options: Any) -> None:
    """Define a job that does nothing."""

    def perform(number: int) -> None:
        pass

    JOBS[name] = kiqcluster.job(name=f"guarded.{name}", **options)(perform)


guarded("plain")
guarded("once", deduplicate="until_executed")
guarded("once_starting", deduplicate="until_executing")
guarded("limited", concurrency_limit=MOST_AT_ONCE)
guarded("rated", rate_limit=limits.fixed_window(MOST_PER_SECOND, 1))
guarded("timed", timeout=60, timeout_hard=120)
guarded("encrypted", encrypt=True)
guarded(
    "everything",
    deduplicate="until_executed",
    concurrency_limit=MOST_AT_ONCE,
    rate_limit=limits.fixed_window(MOST_PER_SECOND, 1),
    expires_in=3_600,
    version=1,
)


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].perform_async(*numbered(job, arguments))


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    JOBS[job].perform_bulk([numbered(job, each) for each in argument_lists])


def numbered(job: str, arguments: Sequence[Any]) -> Sequence[Any]:
    return arguments if job == "mark" else [next(NUMBERS)]
