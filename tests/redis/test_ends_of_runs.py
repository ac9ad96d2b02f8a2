"""Ends of runs: whatever happens between the end of a job and its settlement, it is settled as it ended, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import Any, NoReturn, Self

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Run, Setup
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Settlement
from kiqcluster.worker.run import execution
from kiqcluster.worker.run.endings import Returned
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import TIMEOUT_SECONDS, wait_until
from tests.threaded_worker import ASYNC_PLACES, ThreadedWorker

Interleave = Callable[[ThreadedWorker, pytest.MonkeyPatch], None]


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Iterator[ThreadedWorker]:
    with ThreadedWorker(store, setup, registry) as worker:
        yield worker


@pytest.fixture
def ran(registry: Registry) -> list[str]:
    """The jobs that have run to their end."""
    found: list[str] = []

    @job(name="Sync")
    def run() -> str:
        found.append("Sync")
        return "a value"

    @job(name="Async")
    async def run_async() -> str:
        found.append("Async")
        return "a value"

    return found


def before_an_end(worker: ThreadedWorker, patch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Do something once a job on the event loop has noted how it ended, and nothing is decided yet."""
    execution = worker.async_processor.execution
    end = execution._end

    def end_late(run: JobRun, read: Any) -> Outcome:
        step()
        return end(run, read)

    patch.setattr(execution, "_end", end_late)


def wait_for_processor(worker: ThreadedWorker) -> None:
    """Wait until the processor is through with the job that it has left to the event loop."""
    records = worker.async_processor.running_jobs
    wait_until(lambda: len(records.tokens()) == 1, "the processor to let go of the job")


def after_a_handover(worker: ThreadedWorker, patch: pytest.MonkeyPatch, step: Callable[[], object]) -> None:
    """Do something once a processor has left a job to the event loop, and is not through with it."""
    execution = worker.processor._execution
    execute = execution.execute

    def execute_late(run: JobRun) -> Outcome | None:
        outcome = execute(run)
        step()
        return outcome

    patch.setattr(execution, "execute", execute_late)


def job_first(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> None:
    loop = worker.async_processor
    after_a_handover(worker, patch, lambda: wait_until(lambda: not loop.runs(), "the loop to hand in the outcome"))


def processor_between(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> None:
    """The processor lets go of the job between its end on the loop, and the decision about it."""
    has_ended = Event()

    def let_processor_go() -> None:
        has_ended.set()
        wait_for_processor(worker)

    after_a_handover(worker, patch, lambda: has_ended.wait(TIMEOUT_SECONDS))
    before_an_end(worker, patch, let_processor_go)


def no_memory_at_its_end(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> None:
    tries: list[None] = []

    def fail_once() -> None:
        wait_for_processor(worker)
        tries.append(None)
        if len(tries) == 1:
            raise MemoryError

    before_an_end(worker, patch, fail_once)


def no_memory_for_its_lines(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> None:
    class Lines:
        def take(self, *_: object) -> None:
            wait_for_processor(worker)
            raise MemoryError

    patch.setattr(worker.async_processor.execution, "_lines", Lines())


@pytest.mark.parametrize("interleave", [processor_between, job_first, no_memory_at_its_end, no_memory_for_its_lines])
def test_an_async_job_that_has_returned_is_done(
    worker: ThreadedWorker, store: Store, ran: list[str], monkeypatch: pytest.MonkeyPatch, interleave: Interleave
) -> None:
    """Its processor takes the next unit meanwhile, and leaves the run to the event loop."""
    interleave(worker, monkeypatch)

    worker.push_job("Async")
    worker.run_all()

    assert ran == ["Async"]
    assert (store.call("ZCARD", "retry"), store.call("ZCARD", "dead")) == (0, 0)
    assert worker.crashes == []


class Adding:
    """Middleware that adds a row."""

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        run.effects.append(Effect("sadd", "rows", ("of middleware",)))
        return proceed()

    async def acall(self, run: Run, proceed: Callable[[], Any]) -> Outcome | None:
        run.effects.append(Effect("sadd", "rows", ("of middleware",)))
        returned: Outcome | None = await proceed()
        return returned


@pytest.mark.parametrize("has_middleware", [False, True])
@pytest.mark.parametrize("name", ["Sync", "Async"])
def test_a_job_for_whose_ending_there_is_no_memory_at_first_runs_no_more_than_once(
    worker: ThreadedWorker,
    store: Store,
    setup: Setup,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    has_middleware: bool,
) -> None:
    tries: list[None] = []

    class Scarce(Returned):
        def __init__(self, *arguments: Any) -> None:
            tries.append(None)
            if len(tries) == 1:
                raise MemoryError
            super().__init__(*arguments)

    monkeypatch.setattr(execution, "Returned", Scarce)
    if has_middleware:
        setup.server_middleware.add(Adding())

    worker.push_job(name)
    worker.run_all()

    assert tries
    assert len(ran) + store.call("ZCARD", "retry") == 1, "it runs later only if it has not run"
    assert store.call("ZCARD", "dead") == 0


def test_an_async_job_whose_end_fails_at_all_is_settled_and_leaves_its_place(
    worker: ThreadedWorker, store: Store, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decided = worker.async_processor.execution

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(decided._report, "conclude", fail)
    monkeypatch.setattr(decided, "_without_report", fail)

    for _ in range(ASYNC_PLACES + 1):
        worker.push_job("Async")
    worker.run_all()

    assert ran == ["Async"] * (ASYNC_PLACES + 1)
    assert (store.call("ZCARD", "retry"), store.call("ZCARD", "dead")) == (0, 0)


def test_the_loop_is_woken_again_after_a_wake_that_had_no_memory(
    worker: ThreadedWorker, store: Store, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = worker.async_processor.loop
    wake, tries = loop.call_soon_threadsafe, list[None]()

    def wake_late(*arguments: Any) -> object:
        tries.append(None)
        if len(tries) == 1:
            raise MemoryError
        return wake(*arguments)

    monkeypatch.setattr(loop, "call_soon_threadsafe", wake_late)

    worker.push_job("Async")
    worker.push_job("Async")
    worker.run_all()

    assert ran == ["Async"], "the other one could not begin"
    assert store.call("ZCARD", "retry") == 1


class Hold:
    """Holds a thread before or after one call of a method, until the block ends."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: object, method: str, *, is_after: bool = False) -> None:
        self.reached, self._released = Event(), Event()
        call = getattr(owner, method)

        def call_held(*arguments: Any) -> Any:
            returned = call(*arguments) if is_after else None
            if is_after or any(arguments):  # `next` without an outcome is not the end of a run
                self.reached.set()
                assert self._released.wait(TIMEOUT_SECONDS)
            return returned if is_after else call(*arguments)

        patch.setattr(owner, method, call_held)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._released.set()


def decided(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> tuple[str, Hold]:
    return "Sync", Hold(patch, worker.processor._execution._report, "conclude")


def not_handed_in(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> tuple[str, Hold]:
    return "Sync", Hold(patch, worker.fetch, "next")


def not_handed_in_by_the_loop(worker: ThreadedWorker, patch: pytest.MonkeyPatch) -> tuple[str, Hold]:
    return "Async", Hold(patch, worker.async_processor.execution, "finish", is_after=True)


Stop = Callable[[ThreadedWorker], list[Settlement]]
STOPS: dict[str, Stop] = {
    "a forced stop": lambda worker: worker.processors.interrupt(),
    "its own time limit": lambda worker: worker.processors.interrupt([run.unit.token for run in runs_of(worker)]),
    "the time limit of another job": lambda worker: worker.processors.interrupt(["another"]),
    "a stop that nobody has asked for": lambda worker: worker.processors.ended(),
}


def runs_of(worker: ThreadedWorker) -> list[JobRun]:
    return worker.processors.running()


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("hold", [decided, not_handed_in, not_handed_in_by_the_loop])
def test_a_job_that_has_ended_when_the_process_must_go_is_settled_with_its_rows(
    worker: ThreadedWorker,
    store: Store,
    setup: Setup,
    ran: list[str],
    monkeypatch: pytest.MonkeyPatch,
    hold: Callable[[ThreadedWorker, pytest.MonkeyPatch], tuple[str, Hold]],
    stop: str,
) -> None:
    setup.server_middleware.add(Adding())
    name, held = hold(worker, monkeypatch)

    worker.push_job(name)
    with held:
        wait_until(lambda: worker.step() or held.reached.is_set(), "the job to end")
        worker.fetch.leave(STOPS[stop](worker), TIMEOUT_SECONDS)

    assert ran == [name]
    assert (worker.queued(), store.call("ZCARD", "retry")) == ([], 0)
    assert store.call("SMEMBERS", "rows") == [b"of middleware"]
    assert store.call("GET", "stat:processed") == b"1"
