"""Async jobs on an event loop that the application has changed: each job runs or fails, and its place is free again."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, NoReturn

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.threaded_worker import ASYNC_PLACES, ThreadedWorker


class Turn:
    """Lets the others have a turn."""

    def __await__(self) -> Iterator[None]:
        yield


JOBS = ASYNC_PLACES + 2
Factory = Callable[..., Any]


@pytest.fixture(params=["on_the_loop", "waited_for"])
def worker(request: pytest.FixtureRequest, store: Store, setup: Setup, registry: Registry) -> Iterator[ThreadedWorker]:
    """A worker whose async jobs a processor leaves to the loop, or waits for inside of middleware that is not async."""
    if request.param == "waited_for":
        setup.server_middleware.add(lambda run, proceed: proceed())
    with ThreadedWorker(store, setup, registry) as worker:
        yield worker


@pytest.fixture
def ran(registry: Registry) -> list[int]:
    found: list[int] = []

    @job(name="Waiting", timeout=60)
    async def waiting(number: int) -> None:
        await Turn()
        found.append(number)

    return found


def run_with(worker: ThreadedWorker, factory: Factory) -> None:
    worker.async_processor.loop.set_task_factory(factory)
    for number in range(JOBS):
        worker.push_job("Waiting", number)
    worker.run_all()


def of_the_older_form(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.Task(coroutine, loop=loop)


def of_this_form(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **keywords: Any) -> Any:
    return asyncio.Task(coroutine, loop=loop, **keywords)


FACTORIES = [of_the_older_form, of_this_form]
if sys.version_info >= (3, 12):
    FACTORIES.append(asyncio.eager_task_factory)


@pytest.mark.parametrize("factory", FACTORIES)
def test_jobs_run_in_tasks_of_any_factory(worker: ThreadedWorker, ran: list[int], factory: Factory) -> None:
    run_with(worker, factory)

    assert sorted(ran) == list(range(JOBS))


@pytest.mark.parametrize("error", [TypeError, RuntimeError, MemoryError, SystemExit, KeyboardInterrupt])
def test_a_job_whose_task_cannot_be_made_has_failed(
    worker: ThreadedWorker, store: Store, ran: list[int], error: type[BaseException]
) -> None:
    def fail(*_: object, **_keywords: object) -> NoReturn:
        raise error("no task")

    run_with(worker, fail)

    retried = [decode(raw) for raw in store.call("ZRANGE", "retry", 0, -1)]
    assert sorted(each["args"] for each in retried) == [[number] for number in range(JOBS)]
    assert {each["error_message"] for each in retried} == {"no task"}
    assert ran == []


@pytest.mark.parametrize("returned", ["a coroutine", "an async_generator", "a Task"])
def test_an_async_job_that_returns_work_which_nobody_awaits_has_failed(
    worker: ThreadedWorker, store: Store, ran: list[int], returned: str
) -> None:
    async def work() -> None:
        await Turn()
        ran.append(0)

    async def items() -> AsyncIterator[int]:
        yield ran.append(0) or 0

    begins: dict[str, Callable[[], object]] = {
        "a coroutine": work,
        "an async_generator": items,
        "a Task": lambda: asyncio.get_running_loop().create_task(work()),
    }

    @job(name="Careless")
    async def careless() -> object:
        return begins[returned]()

    worker.push_job("Careless")
    worker.run_all()

    assert [
        f"returned {returned}, " in decode(raw)["error_message"] for raw in store.call("ZRANGE", "retry", 0, -1)
    ] == [True]
    assert ran == []
    with pytest.raises(UsageError, match=f"returned {returned}"):
        careless.perform_inline()


@pytest.mark.parametrize("has_task", [False, True])
def test_a_job_whose_task_is_not_given_back_has_failed_and_does_not_run(
    worker: ThreadedWorker, store: Store, ran: list[int], has_task: bool
) -> None:
    tasks: list[asyncio.Task[Any]] = []

    def lose(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **_: object) -> None:
        if has_task:
            tasks.append(asyncio.Task(coroutine, loop=loop))

    run_with(worker, lose)

    assert store.call("ZCARD", "retry") == JOBS
    assert ran == []


def test_jobs_go_on_after_one_has_stopped_the_loop(worker: ThreadedWorker, ran: list[int], registry: Registry) -> None:
    @job(name="Stopping")
    async def stopping() -> None:
        asyncio.get_running_loop().stop()
        await Turn()
        ran.append(-1)

    worker.push_job("Stopping")
    worker.push_job("Waiting", 1)
    worker.run_all()

    assert sorted(ran) == [-1, 1]
