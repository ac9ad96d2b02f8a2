"""A worker within the test's process: it runs units one by one, and the test decides when each step happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from kiqcluster.application.registry import Registry
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["Worker"]

LIMITS = DeadSetLimits(100, 1e9)


@dataclass
class Worker:
    """Runs units one by one, as a worker process does.  during: called by the job while it runs."""

    store: Store
    setup: Setup
    registry: Registry
    name: str = "host:1:aaaaaaaaaaaa"
    ran: list[tuple[Any, ...]] = field(default_factory=list)
    during: Callable[..., object] = lambda *_: None

    def __post_init__(self) -> None:
        self.member = Member(self.name, 1, "boot ns 1 2")
        self.engine = Engine(self.store, LIMITS)
        self.engine.join(self.member)
        self.calls = count(1)
        self.runtime = Runtime(Config(), self.store, self.setup, Events(), rng=Random(7))
        stopping = threading.Event()
        begin = self.engine.begin_run
        self.execution = Execution(self.runtime, self.registry, JobMetrics(1, list), stopping, begin_run=begin)

    def take(self, queue: str = "default") -> Unit:
        """Reserve the next job of a queue, which must have one."""
        (unit,) = self.take_any(queue)
        return unit

    def take_any(self, queue: str = "default") -> list[Unit]:
        """Reserve the next job of a queue, if it has one."""
        with self.store.borrowed() as connection:
            limits = {queue: (1, 1)}
            _, reserved = self.engine.exchange(connection, self.member, next(self.calls), limits, [], 0.0)
        assert reserved is not None
        return reserved.units

    def execute(self, unit: Unit) -> Outcome:
        return self.execution.execute(JobRun(unit, SystemClock.now()))

    def settle(self, unit: Unit, outcome: Outcome) -> int:
        with self.store.borrowed() as connection:
            return self.engine.settle(connection, [Settlement(unit, outcome)], SystemClock.now())

    def run(self, queue: str = "default") -> Outcome:
        """Run the next job of a queue to its end."""
        unit = self.take(queue)
        outcome = self.execute(unit)
        assert self.settle(unit, outcome) == 1
        return outcome

    def recover(self, name: str) -> None:
        with self.store.borrowed() as connection:
            self.engine.recover(connection, name)

    def perform(self, *args: Any) -> None:
        self.ran.append(args)
        self.during(*args)
