"""A retry that a task has asked for happens, whatever the task does then: Celery has pushed it before it raises.

The rows of "After self.retry" in docs/guides/migrate_from_celery.md, as real Celery was seen to do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import MaxRetriesExceededError, Retry, shared_task
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import Fake, dead, drain, fake, frozen_clock, retries

RUNS: list[int] = []
HANDLED: list[str] = []


@pytest.fixture(autouse=True)
def _in_memory(registry: Registry, setup: Setup, kiq_fake: Fake) -> Iterator[None]:
    RUNS.clear()
    HANDLED.clear()
    setup.error_handler(lambda error, _context: HANDLED.append(str(error)))
    with fake():
        yield


def swallow(task: Any) -> int:
    with suppress(Exception):
        task.retry(countdown=5)
    return 1


def return_in_finally(task: Any) -> int:
    try:
        task.retry(countdown=5)
    finally:
        return 1  # noqa: B012


def give_a_reason(task: Any) -> int:
    try:
        return 1 // 0
    except ZeroDivisionError as error:
        with suppress(Exception):
            task.retry(exc=error, countdown=5)
    return 1


def do_not_throw(task: Any) -> int:
    assert isinstance(task.retry(countdown=5, throw=False), Retry)
    return 1


def raise_what_is_returned(task: Any) -> int:
    raise task.retry(countdown=5, throw=False)


def swallow_in_a_loop(task: Any) -> int:
    async def work() -> int:
        return swallow(task)

    return asyncio.run(work())


def raise_another(task: Any) -> int:
    try:
        return int(task.retry(countdown=5))
    except Retry:
        raise ValueError("another") from None


def ask_twice(task: Any) -> int:
    with suppress(Retry):
        task.retry(countdown=100)
    raise task.retry(countdown=5)


ENDINGS = [swallow, return_in_finally, give_a_reason, do_not_throw, raise_what_is_returned, swallow_in_a_loop,
           raise_another, ask_twice]  # fmt: skip


@pytest.mark.parametrize("end", ENDINGS)
def test_it_runs_again_when_it_asked_to(end: Callable[[Any], int]) -> None:
    @shared_task(bind=True, max_retries=2)
    def poll(self: Any) -> int:
        RUNS.append(self.request.retries)
        return end(self) if len(RUNS) < 3 else 3

    with frozen_clock() as clock:
        jid = poll.delay().id
        drain(raise_errors=False)
        (again,) = retries()
        delay = (again.at or 0) - clock.now()
    for _ in range(3):
        drain(retries=True, raise_errors=False)

    assert (RUNS, dead(), retries()) == ([0, 1, 2], [], [])
    assert (again.jid, delay) == (jid, pytest.approx(5, abs=0.01))
    assert (["another"] * 2 if end is raise_another else []) == HANDLED


@pytest.mark.parametrize("end", ENDINGS)
def test_it_is_done_or_dead_when_no_retries_are_left(end: Callable[[Any], int]) -> None:
    @shared_task(bind=True, max_retries=2)
    def poll(self: Any) -> int:
        RUNS.append(self.request.retries)
        return end(self)

    poll.delay()
    for _ in range(4):
        drain(retries=True, raise_errors=False)

    swallows = end in (swallow, return_in_finally, give_a_reason, swallow_in_a_loop)
    assert (RUNS, len(dead()), retries()) == ([0, 1, 2], 0 if swallows else 1, [])


def test_an_error_of_autoretry_after_it_is_no_second_retry() -> None:
    @shared_task(bind=True, max_retries=2, autoretry_for=(ValueError,))
    def poll(self: Any) -> int:
        RUNS.append(self.request.retries)
        return raise_another(self) if len(RUNS) < 3 else 3

    poll.delay()
    for _ in range(4):
        drain(retries=True, raise_errors=False)

    assert (RUNS, dead(), retries()) == ([0, 1, 2], [], [])


def test_a_task_that_another_one_applies_retries_nothing() -> None:
    @shared_task(bind=True, max_retries=2)
    def inner(self: Any) -> int:
        return swallow(self)

    @shared_task(bind=True)
    def outer(self: Any) -> int:
        RUNS.append(inner.apply().get())
        with suppress(Retry, MaxRetriesExceededError):
            inner()
        return 1

    assert inner.apply().get() == 1
    outer.delay()
    drain()

    assert (RUNS, retries(), dead()) == ([1], [], [])


def test_a_run_after_one_that_asked_is_on_its_own() -> None:
    @shared_task(bind=True, max_retries=2)
    def asks(self: Any) -> int:
        return raise_another(self)

    @shared_task
    def fails() -> None:
        raise LookupError("no")

    asks.delay()
    fails.delay()
    drain(raise_errors=False)

    assert [job.error_message for job in dead()] == ["no"]
    assert [job.error_message for job in retries()] == ["another"]
