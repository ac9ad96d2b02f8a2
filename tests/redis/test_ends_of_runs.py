"""Ends of runs: whatever happens between the end of a job and its settlement, it is settled as it ended, once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store import Store
from kiqcluster.worker.run.job_run import JobRun
from tests.kit import TIMEOUT_SECONDS, wait_until
from tests.threaded_worker import ThreadedWorker

Interleave = Callable[[ThreadedWorker, pytest.MonkeyPatch], None]


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Iterator[ThreadedWorker]:
    with ThreadedWorker(store, setup, registry) as worker:
        yield worker


@pytest.fixture
def ran(registry: Registry) -> list[str]:
    """The jobs that have run to their end."""
    found: list[str] = []

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
