"""The threads of a worker within the test's process: one processor, the event loop, and the test as their manager."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from types import TracebackType
from typing import Self
from unittest.mock import Mock

from kiqcluster.application.registry import Registry
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store
from kiqcluster.worker.run.async_processor import AsyncProcessor
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.manager import Manager
from kiqcluster.worker.run.processor import Processor
from kiqcluster.worker.run.processors import Processors
from tests.kit import PAUSE, ManualClock, wait_until
from tests.redis.test_fetch import Bench

__all__ = ["ThreadedWorker"]

ASYNC_PLACES = 2


class ThreadedWorker(Bench):
    """Runs what is in a queue.  The clock goes on while the processor waits, so that nothing is overdue before."""

    def __init__(self, store: Store, setup: Setup, registry: Registry, group: str = "default") -> None:
        self.clock = ManualClock()
        super().__init__(store, setup, group, clock=self.clock)
        running_jobs = RunningJobs(1, ASYNC_PLACES)
        self.crashes: list[tuple[str, Exception]] = []
        make = partial(Execution, self.runtime, registry, JobMetrics(1, list), threading.Event())
        make = partial(make, begin_run=self.engine.begin_run)
        parts = (running_jobs, self.clock, self._on_crash)
        self.async_processor = AsyncProcessor(asyncio.new_event_loop(), self.fetch.coordinator.hand_in, make(), *parts)
        execution = make(async_jobs=self.async_processor)
        self.processor = Processor(0, self.fetch, execution, *parts, self.async_processor)
        self.processors = Processors(self.clock)
        self.processors.threads, self.processors.loop = [self.processor], self.async_processor
        self._manager = Manager(self.processors, self.fetch, Mock(), self.clock, self._on_crash)

    def __enter__(self) -> Self:
        self.async_processor.start()
        self.processor.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._manager.stopping.set()
        self.fetch.coordinator.end()
        assert self.processor.join(5.0)
        self.async_processor.stop()
        assert self.async_processor.join(5.0)
        self.async_processor.loop.close()

    def push_job(self, name: str, *args: JSON, **keys: JSON) -> str:
        """Push a job; return its id."""
        jid = f"{int(self.store.call('INCR', 'pushed')):024x}"
        payload = {"class": name, "args": list(args), "jid": jid, "queue": "default", "retry": True, **keys}
        self.push(ruby_json.encode(payload).decode())
        return jid

    def run_all(self, seconds: float = 20.0) -> None:
        """Wait until no job is queued or in flight."""
        wait_until(self._is_through, "all jobs to be settled", seconds)

    def step(self) -> None:
        """Do what the manager's loop does, and let time pass if the processor waits."""
        self._manager._replace_dead()
        self.fetch.flush_overdue()
        if self.coordinator.supply.demand or not self.processor.is_alive:
            self.clock.time += 1.0
            self._manager._sweep()
        PAUSE.wait(0.0005)

    def _is_through(self) -> bool:
        self.step()
        return not self.queued() and not self.inflight()

    def _on_crash(self, name: str, error: Exception) -> None:
        self.crashes.append((name, error))
