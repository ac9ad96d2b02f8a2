"""Modes: where pushes go while a test runs, and the functions that speak of the mode in force.

fake     jobs are kept, to be looked at and run by `drain`
inline   jobs run before their push returns
real     jobs go to Redis, as without this module; for a part of a test within one of the others

Each is a context manager: it holds for all threads of the process, nests, and brings back what was before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from kiqcluster.errors import UsageError
from kiqcluster.rubyjson import JSON
from kiqcluster.runtime import Delivery, current_setup
from kiqcluster.testing.jobs import UNSAID, EnqueuedJob, JobLike, PerformedJob, Unsaid
from kiqcluster.testing.memory import Fake, Inline

__all__ = [
    "assert_enqueued",
    "current_fake",
    "dead",
    "drain",
    "enqueued",
    "fake",
    "inline",
    "performed",
    "real",
    "refute_enqueued",
    "retries",
]


@contextmanager
def fake() -> Iterator[Fake]:
    """Keep the jobs that are pushed in a `with` block from Redis, for a test to look at and to drain."""
    with _delivering(jobs := Fake()):
        yield jobs


@contextmanager
def inline() -> Iterator[Inline]:
    """Run the jobs that are pushed in a `with` block before their push returns, unless they are due later."""
    with _delivering(jobs := Inline()):
        yield jobs


@contextmanager
def real() -> Iterator[None]:
    """Send the jobs that are pushed in a `with` block to Redis."""
    with _delivering(None):
        yield


@contextmanager
def _delivering(delivery: Delivery | None) -> Iterator[None]:
    setup = current_setup()
    before, setup.delivery = setup.delivery, delivery
    try:
        yield
    finally:
        setup.delivery = before


def current_fake() -> Fake:
    """Return what keeps the jobs now.  Raises UsageError where they go to Redis."""
    delivery = current_setup().delivery
    if not isinstance(delivery, Fake):
        raise UsageError(
            "jobs go to Redis here; keep them with the fixture kiq_fake or kiq_inline, @pytest.mark.kiq('fake'), "
            "or `with kiqcluster.testing.fake():`"
        )
    return delivery


def enqueued(
    job: JobLike | None = None, *args: Any, queue: str | None = None, tags: Iterable[str] = ()
) -> list[EnqueuedJob]:
    """See Fake.enqueued."""
    return current_fake().enqueued(job, *args, queue=queue, tags=tags)


def retries(job: JobLike | None = None, *args: Any) -> list[EnqueuedJob]:
    """See Fake.retries."""
    return current_fake().retries(job, *args)


def dead(job: JobLike | None = None, *args: Any) -> list[EnqueuedJob]:
    """See Fake.dead."""
    return current_fake().dead(job, *args)


def performed(job: JobLike | None = None, *args: Any) -> list[PerformedJob]:
    """See Fake.performed."""
    return current_fake().performed(job, *args)


def assert_enqueued(
    job: JobLike | None = None,
    *args: Any,
    queue: str | None = None,
    at: float | datetime | Unsaid | None = UNSAID,
    in_: float | timedelta | None = None,
    count: int | None = None,
    tags: Iterable[str] = (),
    payload: Mapping[str, JSON] | None = None,
) -> EnqueuedJob:
    """See Fake.assert_enqueued."""
    __tracebackhide__ = True
    return current_fake().assert_enqueued(
        job, *args, queue=queue, at=at, in_=in_, count=count, tags=tags, payload=payload
    )


def refute_enqueued(
    job: JobLike | None = None,
    *args: Any,
    queue: str | None = None,
    at: float | datetime | Unsaid | None = UNSAID,
    in_: float | timedelta | None = None,
    tags: Iterable[str] = (),
    payload: Mapping[str, JSON] | None = None,
) -> None:
    """See Fake.refute_enqueued."""
    __tracebackhide__ = True
    current_fake().refute_enqueued(job, *args, queue=queue, at=at, in_=in_, tags=tags, payload=payload)


def drain(*jobs_or_queues: JobLike, scheduled: bool = False, retries: bool = False, raise_errors: bool = True) -> int:
    """See Fake.drain."""
    __tracebackhide__ = True
    return current_fake().drain(*jobs_or_queues, scheduled=scheduled, retries=retries, raise_errors=raise_errors)
