"""Walks at random through pushes, runs, kills, late settles and work by hand: the laws of deduplication hold.

Each step is one of those of Walk.STEPS; while a job runs, further steps happen, so runs of several workers overlap.
1. At most one job of a key waits, under `until_executing`; at most one exists, under `until_executed`.
2. A dropped push returns the jid of such a job.
3. No push is in vain: after each, dropped or not, a run of its key begins; unless somebody deletes the job by hand, or,
   without `reschedule_once`, the job that holds the lock has begun.
4. A lock ends with its job: when no job is left, no lock is.
Laws 1 and 2 do not hold while Redis has lost a lock; 3 and 4 do.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.api import DeadSet, Queue, RetrySet, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.errors import Interrupted
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from tests.chaos.scale import sized
from tests.in_process_worker import Worker

pytestmark = pytest.mark.timeout(sized(120, 3_600))
WALKS, STEPS = sized(6, 400), 60
KEYS = ("x", "y")
MAX_DEPTH = 3  # runs within runs
MAX_WORKERS = 3


class Walk:
    """One walk.  clock: counts steps."""

    def __init__(
        self, strategy: str, once_more: bool, rng: Random, store: Store, setup: Setup, registry: Registry
    ) -> None:
        self.strategy, self.rng, self.store = strategy, rng, store
        self.is_until_executed = strategy == "until_executed"
        self.clock = self.depth = 0
        self.made = 0  # workers
        self.parts = (store, setup, registry)
        self.workers = [self.new_worker() for _ in range(MAX_WORKERS)]
        self.unsettled: list[tuple[Worker, Unit, Outcome]] = []
        self.settled: list[tuple[Worker, Unit, Outcome]] = []
        self.pushes: list[tuple[str, int]] = []  # key, when
        self.begins: dict[str, int] = {}  # key → when its latest run began
        self.excused: dict[str, int] = {}  # key → until when its pushes may be in vain
        self.begun: set[str] = set()  # jids
        self.lost: set[str] = set()  # keys whose lock Redis has lost, until all of their jobs have ended
        self.violation = ""  # of a law within a job: its error would be taken for the job's
        self.is_served_again = once_more or not self.is_until_executed
        walk = self

        class Report(
            Job, name="Report", deduplicate=strategy, deduplicate_scheduled=True, retry=2, reschedule_once=once_more
        ):
            def perform(self, key: str) -> None:
                walk.run(key)

        self.report = Report

    def new_worker(self) -> Worker:
        self.made += 1
        return Worker(*self.parts, f"host:{self.made}:{self.made:012x}")

    # steps

    def push(self) -> None:
        key = self.rng.choice(KEYS)
        is_later = self.rng.random() < 0.2
        before = self.jobs()
        jid = self.report.perform_in(1_000, key) if is_later else self.report.perform_async(key)
        if self.is_served_again or jid not in self.begun:
            self.pushes.append((key, self.clock))
        if key not in self.lost:
            self.expect(jid in before.get(key, set()) | {each["jid"] for each in self.stored()}, "law 2")

    def take_and_run(self) -> None:
        if self.depth >= MAX_DEPTH:
            return
        worker = self.rng.choice(self.workers)
        for unit in worker.take_any():
            self.begun.add(json.loads(unit.payload)["jid"])
            self.depth += 1
            outcome = worker.execute(unit)
            self.depth -= 1
            self.unsettled.append((worker, unit, outcome))

    def run(self, key: str) -> None:
        """Be the job that runs."""
        self.clock += 1
        self.begins[key] = self.clock
        for _ in range(self.rng.randrange(4)):
            self.step()
        way = self.rng.random()
        if way < 0.25:
            raise ValueError("on purpose")
        if way < 0.3:
            raise Interrupted

    def settle(self) -> None:
        if self.unsettled:
            worker, unit, outcome = self.unsettled.pop(self.rng.randrange(len(self.unsettled)))
            worker.settle(unit, outcome)
            self.settled.append((worker, unit, outcome))

    def settle_again(self) -> None:
        if self.settled:
            worker, unit, outcome = self.rng.choice(self.settled)
            self.expect(worker.settle(unit, outcome) == 0, "a late settle changed something")

    def kill(self) -> None:
        """Have a worker recovered; what it ran goes on, and settles late."""
        number = self.rng.randrange(len(self.workers))
        worker, self.workers[number] = self.workers[number], self.new_worker()
        self.workers[number].recover(worker.name)

    def retry(self) -> None:
        RetrySet().retry_all()

    def make_due(self) -> None:
        ScheduledSet().add_all_to_queue()

    def delete(self) -> None:
        place: Any = self.rng.choice([Queue("default"), RetrySet(), ScheduledSet()])
        found = list(place)
        if found:
            chosen = self.rng.choice(found)
            is_kill = not isinstance(place, Queue) and self.rng.random() < 0.5
            if (
                place.kill([chosen])
                if is_kill
                else place.delete_all([chosen])
                if isinstance(place, Queue)
                else place.delete([chosen])
            ):
                self.excused[chosen.args[0]] = self.clock

    def lose_a_lock(self) -> None:
        if (keys := self.store.call("KEYS", "kiq:lock:*")) and self.rng.random() < 0.3:
            self.store.call("DEL", self.rng.choice(keys))
            self.lost |= set(KEYS)

    STEPS: tuple[tuple[Callable[[Walk], None], int], ...] = (
        (push, 8),
        (take_and_run, 6),
        (settle, 6),
        (settle_again, 1),
        (kill, 1),
        (retry, 2),
        (make_due, 2),
        (delete, 1),
        (lose_a_lock, 1),
    )

    def step(self) -> None:
        self.clock += 1
        (chosen,) = self.rng.choices([step for step, _ in self.STEPS], [weight for _, weight in self.STEPS])
        chosen(self)
        self.check()

    # laws

    def stored(self) -> list[dict[str, Any]]:
        """Return the payloads of all jobs that have not ended."""
        raw = [
            *self.store.call("LRANGE", "queue:default", 0, -1),
            *self.store.call("LRANGE", "kiq:wake:default", 0, -1),
            *self.store.call("ZRANGE", "retry", 0, -1),
            *self.store.call("ZRANGE", "schedule", 0, -1),
            *[
                payload
                for key in self.store.call("KEYS", "kiq:inflight:*")
                for payload in self.store.call("HVALS", key)
            ],
        ]
        return [json.loads(payload) for payload in raw]

    def jobs(self) -> dict[str, set[str]]:
        """Return key → jids of the jobs that the strategy counts."""
        found: dict[str, set[str]] = {}
        for payload in self.stored():
            if self.is_until_executed or payload["jid"] not in self.begun:
                found.setdefault(payload["args"][0], set()).add(payload["jid"])
        return found

    def expect(self, holds: bool, law: str) -> None:
        if not holds:
            self.violation = self.violation or law
        assert self.depth or not self.violation, self.violation

    def check(self) -> None:
        jobs = self.jobs()
        for key in KEYS:
            self.expect(key in self.lost or len(jobs.get(key, ())) <= 1, f"law 1: {jobs}")
        if not self.stored() and not self.unsettled and not self.depth:
            assert self.store.call("KEYS", "kiq:lock:*") == [], "law 4"
            self.lost.clear()

    def end(self) -> None:
        """Have everything end, and look whether all pushes were served."""
        for _ in range(200):
            for step in (self.retry, self.make_due, self.take_and_run, self.settle):
                step()
            if not self.stored() and not self.unsettled:
                break
        assert self.stored() == []
        self.check()
        for key, at in self.pushes:
            assert at < max(self.begins.get(key, -1), self.excused.get(key, -1) + 1), f"law 3: {key}, {at}"
        assert self.store.call("KEYS", "kiq:reschedule:*") == [] or self.excused


@pytest.mark.timeout(sized(120, 900))
@pytest.mark.parametrize(
    ("strategy", "once_more"), [("until_executing", False), ("until_executed", False), ("until_executed", True)]
)
def test_the_laws_hold_on_any_walk(
    strategy: str, once_more: bool, store: Store, setup: Setup, registry: Registry
) -> None:
    for seed in range(WALKS):
        store.call("FLUSHALL")
        registry._definitions.clear()
        walk = Walk(strategy, once_more, Random(seed), store, setup, registry)
        try:
            for _ in range(STEPS):
                walk.step()
            walk.end()
        except BaseException as error:
            error.add_note(f"seed {seed}, step {walk.clock}")
            raise
        assert len(DeadSet()) < 50
