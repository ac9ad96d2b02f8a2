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
from kiqcluster.policies import feature_flag

__all__ = ["DESCRIPTION", "MOST_AT_ONCE", "MOST_PER_SECOND", "push", "push_many"]

MOST_AT_ONCE = 20  # jobs that may run at once: more than there are threads, so that none waits
MOST_PER_SECOND = 1_000_000  # starts: more than there are
KEYS = 10  # of a limit per key
LARGE_TEXT = "".join(f"{number} is a number. " for number in range(200))  # an argument that is compressed
NUMBERS = count()

kiqcluster.configure(
    encryption={"keys": f"1:{b64encode(b'benchmark' * 3 + b'-----').decode()}"},
    size_limiter={"mode": "compress", "compression_threshold": f"{len(LARGE_TEXT)}B"},
)


def guarded(name: str, **options: Any) -> None:
    """Define a job that does nothing."""

    def perform(number: int, text: str = "") -> None:
        pass

    JOBS[name] = kiqcluster.job(name=f"guarded.{name}", **options)(perform)


guarded("plain")
guarded("once", deduplicate="until_executed")
guarded("once_starting", deduplicate="until_executing")
guarded("single", deduplicate="while_executing")
guarded("limited", concurrency_limit=MOST_AT_ONCE)
guarded("keyed", concurrency_limit=MOST_AT_ONCE, concurrency_key=lambda number, *_: number % KEYS)
guarded("rated", rate_limit=limits.fixed_window(MOST_PER_SECOND, 1))
guarded("sliding", rate_limit=limits.sliding_window(MOST_PER_SECOND, 1))
guarded("leaky", rate_limit=limits.leaky_bucket(MOST_PER_SECOND, MOST_PER_SECOND))
guarded("concurrent", rate_limit=limits.concurrent(MOST_AT_ONCE))
guarded("governed", policy=feature_flag(lambda _name: True))
guarded("expiring", expires_in=3_600)
guarded("versioned", version=1)
guarded("interruptible", max_retries_after_interruption=3)
guarded("compressed")
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
    if job == "mark":
        return arguments
    return [next(NUMBERS), LARGE_TEXT] if job == "compressed" else [next(NUMBERS)]
