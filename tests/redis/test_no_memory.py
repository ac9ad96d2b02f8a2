"""A worker that gets no memory, at any step: no job is lost, none that has ended runs again, and the worker goes on."""

from __future__ import annotations

import linecache
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest

import kiqcluster
from kiqcluster import current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.manager import Manager
from kiqcluster.worker.run.processor import Processor
from kiqcluster.worker.run.processors import Processors
from tests.kit import PAUSE, TIMEOUT_SECONDS, ManualClock, wait_until
from tests.redis.test_fetch import Bench

PACKAGE = Path(kiqcluster.__file__).parent
FOLDERS = tuple(str(PACKAGE / name) for name in ("worker/fetch", "worker/run", "store", "sidekiq"))
JIDS = [f"{number:024x}" for number in range(3)]
# Statements; the end of the first has the same line.  The last is what the end of `with` does, a method of C without
# arguments: it is where FetchCoordinator says why it is not `with`.
FREE_OF_MEMORY = ("with ", "try:", "self.lock.release()")
EVERY = 23  # lines, between two at which the short form raises


class Lines:
    """Counts the lines that a thread runs in FOLDERS, and raises MemoryError at one of them."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self._fatal = fatal

    def trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDERS):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith(FREE_OF_MEMORY):
            self.count += 1
            if self.count == self._fatal:
                raise MemoryError
        return self.trace


class Worker(Bench):
    """A worker with one processor.  The test plays its manager, on a clock that goes while the processor waits."""

    def __init__(self, store: Store, setup: Setup, registry: Registry) -> None:
        self.clock = ManualClock()
        super().__init__(store, setup, clock=self.clock)
        execution = Execution(self.runtime, registry, JobMetrics(1, list), threading.Event())
        self.processor = Processor(0, self.fetch, execution, RunningJobs(1), self.clock, lambda *_: None)
        processors = Processors(self.clock)
        processors.threads = [self.processor]
        self.manager = Manager(processors, self.fetch, Mock(), self.clock, lambda *_: None)

    def step(self) -> None:
        """Do what the manager's loop does, and let time pass if the processor waits."""
        self.manager._replace_dead()
        self.fetch.flush_overdue()
        if self.coordinator.supply.demand or not self.processor.is_alive:
            self.clock.time += 1.0
            self.manager._sweep()
        PAUSE.wait(0.0002)

    def is_over(self, ends: Counter[str]) -> bool:
        self.step()
        return ends.keys() | kept(self.store) >= set(JIDS) and not self.inflight()

    def close(self) -> None:
        self.manager.stopping.set()
        self.fetch.coordinator.end()
        assert self.processor.join(TIMEOUT_SECONDS)


def payload(jid: str) -> str:
    return ruby_json.encode({"class": "Work", "args": [], "jid": jid, "queue": "default", "retry": True}).decode()


@pytest.fixture
def ends(registry: Registry) -> Counter[str]:
    """jid → how often it ran to its end."""
    found: Counter[str] = Counter()

    @job(name="Work")
    def work() -> None:
        running = current_job()
        assert running is not None
        found[running.jid] += 1

    return found


def run_with_fatal_line(worker: Worker, ends: Counter[str], fatal: int) -> int:
    """Run all jobs, with a MemoryError at that line of the processor's; return how many lines it ran."""
    lines = Lines(fatal)
    worker.push(*map(payload, JIDS))
    threading.settrace(lines.trace)
    try:
        worker.processor.start()
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    wait_until(lambda: worker.is_over(ends), f"the jobs to be settled, with no memory at line {fatal}", 20)
    return lines.count


def kept(store: Store) -> set[str]:
    """Return the jids of jobs that are to be tried again, or dead."""
    entries = [*store.call("ZRANGE", "retry", 0, -1), *store.call("ZRANGE", "dead", 0, -1)]
    return {ruby_json.decode(raw)["jid"] for raw in entries}


def check_lines(store: Store, setup: Setup, registry: Registry, ends: Counter[str], every: int) -> None:
    """Run the jobs again and again, with a MemoryError at another line each time."""

    def run(fatal: int) -> int:
        store.call("FLUSHDB")
        ends.clear()
        worker = Worker(store, setup, registry)
        try:
            return run_with_fatal_line(worker, ends, fatal)
        finally:
            worker.close()

    count = run(0)
    assert ends == dict.fromkeys(JIDS, 1)
    for fatal in range(1, count + 1, every):
        run(fatal)
        assert set(ends.values()) == {1}, f"a job has run again: no memory at line {fatal}"
        assert ends.keys() | kept(store) == set(JIDS), f"no memory at line {fatal}"
        assert store.call("ZCARD", "dead") == 0, f"a job was buried: no memory at line {fatal}"


def test_a_processor_without_memory_at_some_line_loses_no_job_and_repeats_none(
    store: Store, setup: Setup, registry: Registry, ends: Counter[str]
) -> None:
    check_lines(store, setup, registry, ends, EVERY)


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_processor_without_memory_at_any_line_loses_no_job_and_repeats_none(
    store: Store, setup: Setup, registry: Registry, ends: Counter[str]
) -> None:
    check_lines(store, setup, registry, ends, 1)
