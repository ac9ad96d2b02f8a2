"""Jobs of limited capacity walked at random: starts, ends, kills, late settles, changed limits and work by hand.

1. At most `max_running_jobs` work at once, those of all arguments together.
2. A seat has one job, unless Redis has lost its lock.
3. No start is in vain: once all jobs have ended, the work is done that was left at the last start; unless the job of
   seat 0 has failed or was deleted since, or nothing was allowed to run.
4. Locks and places end with their jobs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from kiqcluster.api import ParkedJobs, Queue, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.errors import Interrupted
from kiqcluster.features.deduplication import ClientDeduplication
from kiqcluster.features.limits.concurrency_limit import ConcurrencyLimits
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Outcome
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.store.limits.parking import send_lines
from tests.chaos.scale import sized
from tests.in_process_worker import Worker
from tests.properties.places import STORED, pass_time

WALKS, STEPS = sized(10, 400), 70
SHOPS = ("x", "y")
MAX_DEPTH, MAX_WORKERS, MAX_LIMIT = 4, 3, 3


class Walk:
    """One walk.  owed: of each shop, whether a start must do its work; left: work of each shop."""

    def __init__(self, rng: Random, store: Store, setup: Setup, registry: Registry) -> None:
        self.rng, self.store = rng, store
        self.parts = (store, setup, registry)
        self.made = self.depth = self.most = 0
        self.workers = [self.new_worker() for _ in range(MAX_WORKERS)]
        self.unsettled: list[tuple[Worker, Unit, Outcome]] = []
        self.settled: list[tuple[Worker, Unit, Outcome]] = []
        self.left = dict.fromkeys(SHOPS, 0)
        self.since = dict.fromkeys(SHOPS, 0)  # work added since the last start that is owed
        self.owed = dict.fromkeys(SHOPS, False)
        self.working: list[tuple[str, int]] = []  # names of live workers, and numbers of their runs
        self.runs = 0
        self.is_calm = self.has_lost = False
        self.violation = ""  # of a law within a job: its error would be taken for the job's
        walk = self

        class Import(LimitedCapacityJob, name="Import", feature_category="walk"):
            def max_running_jobs(self) -> int:
                return walk.most

            def remaining_work_count(self, shop: str) -> int:
                return walk.left[shop]

            def perform_work(self, shop: str) -> None:
                walk.work(shop)

        self.job = Import

    def new_worker(self) -> Worker:
        self.made += 1
        return Worker(*self.parts, f"host:{self.made}:{self.made:012x}")

    # steps

    def add_work(self) -> None:
        shop, count = self.rng.choice(SHOPS), self.rng.randrange(1, 5)
        self.left[shop] += count
        self.since[shop] += count

    def start(self) -> None:
        self.start_for(self.rng.choice(SHOPS))

    def start_for(self, shop: str) -> None:
        self.job.perform_with_capacity(shop)
        if self.left[shop] and self.most:
            self.owed[shop], self.since[shop] = True, 0

    def set_most(self) -> None:
        self.most = self.rng.randrange(MAX_LIMIT + 1)
        if not self.most:
            self.excuse(*SHOPS)

    def take_and_run(self) -> None:
        if self.depth >= MAX_DEPTH:
            return
        worker = self.rng.choice(self.workers)
        for unit in worker.take_any():
            self.depth += 1
            self.runner = worker
            outcome = worker.execute(unit)
            self.depth -= 1
            if isinstance(outcome, Dead):
                self.excuse_job(json.loads(unit.payload))
            self.unsettled.append((worker, unit, outcome))

    def work(self, shop: str) -> None:
        """Be the job that works."""
        self.runs += 1
        run = (self.runner.name, self.runs)
        self.working.append(run)
        self.expect(len(self.working) <= self.most, f"law 1: {self.working}")
        self.left[shop] = max(0, self.left[shop] - 1)
        for _ in range(self.rng.randrange(4)):
            self.step()
        if run in self.working:  # else its process was recovered
            self.working.remove(run)
        way = 1.0 if self.is_calm else self.rng.random()
        if way < 0.1:
            raise ValueError("on purpose")
        if way < 0.2:
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
        self.working = [each for each in self.working if each[0] != worker.name]
        self.workers[number].recover(worker.name)

    def make_due(self) -> None:
        ScheduledSet().add_all_to_queue()

    def sweep(self) -> None:
        """Look at the line, as workers do now and then."""
        slots = self.store.keys.slots("Import")
        send_lines(self.store, [(slots, self.most or -1)], 3, lambda: False)

    def pass_time(self) -> None:
        pass_time(self.store)

    def delete(self) -> None:
        place: Any = self.rng.choice([Queue("default"), ScheduledSet(), ParkedJobs("Import")])
        if found := list(place):
            chosen = self.rng.choice(found)
            payload = json.loads(chosen.raw)
            if place.delete([chosen]) if isinstance(place, ScheduledSet) else place.delete(chosen):
                self.excuse_job(payload)

    def lose_a_lock(self) -> None:
        if keys := self.store.call("KEYS", "kiq:lock:*"):
            self.store.call("DEL", self.rng.choice(keys))
            self.has_lost = True

    STEPS: tuple[tuple[Callable[[Walk], None], float], ...] = (
        (add_work, 4),
        (start, 6),
        (set_most, 2),
        (take_and_run, 12),
        (settle, 10),
        (settle_again, 1),
        (kill, 1),
        (make_due, 2),
        (sweep, 1),
        (pass_time, 0.5),
        (delete, 0.7),
        (lose_a_lock, 0.2),
    )

    def step(self) -> None:
        (chosen,) = self.rng.choices([step for step, _ in self.STEPS], [weight for _, weight in self.STEPS])
        if not (self.is_calm and chosen in CHANGES):
            chosen(self)
        self.check()

    def excuse(self, *shops: str) -> None:
        for shop in shops:
            self.owed[shop] = False

    def excuse_job(self, payload: dict[str, Any]) -> None:
        seat, shop = payload["args"]
        if seat == 0:
            self.excuse(shop)

    # laws

    def stored(self) -> list[dict[str, Any]]:
        """Return the payloads of all jobs that have not ended."""
        raw = self.store.call("EVAL", STORED, 0)
        return [json.loads(payload) for payload in raw]

    def expect(self, holds: bool, law: str) -> None:
        if not holds:
            self.violation = self.violation or law
        assert self.depth or not self.violation, self.violation

    def check(self) -> None:
        stored = self.stored()
        seats = [tuple(each["args"]) for each in stored]
        self.expect(self.has_lost or len(set(seats)) == len(seats), f"law 2: {sorted(seats)}")
        if stored or self.unsettled or self.depth:
            return
        assert self.store.call("KEYS", "kiq:lock:*") == self.store.call("KEYS", "kiq:held:*") == [], "law 4"
        assert not self.store.call("EXISTS", "kiq:slots:Import"), "law 4"
        self.has_lost = False
        for shop in SHOPS:
            assert not self.owed[shop] or self.left[shop] <= self.since[shop], f"law 3: {self.left}"

    def end(self) -> None:
        """Have everything end, and have one more start do what is left."""
        self.is_calm, self.most = True, max(1, self.most)
        self.run_all()
        for shop in SHOPS:
            self.start_for(shop)
        self.run_all()
        assert self.left == dict.fromkeys(SHOPS, 0), "law 3"

    def run_all(self) -> None:
        for _ in range(400):
            for step in (self.make_due, self.pass_time, self.sweep, self.take_and_run, self.settle):
                step()
            if not self.stored() and not self.unsettled:
                break
        assert self.stored() == [], "stranded"
        self.check()


CHANGES = (Walk.add_work, Walk.set_most, Walk.delete, Walk.lose_a_lock, Walk.kill)


def walk_all(walks: int, store: Store, setup: Setup, registry: Registry) -> None:
    for seed in range(walks):
        store.call("FLUSHALL")
        registry._definitions.clear()
        walk = Walk(Random(seed), store, setup, registry)
        try:
            for _ in range(STEPS):
                walk.step()
            walk.end()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


@pytest.mark.timeout(sized(120, 900))
def test_the_laws_hold_on_any_walk(store: Store, setup: Setup, registry: Registry) -> None:
    walk_all(WALKS, store, setup, registry)


ON_PUSH = ClientDeduplication.on_push
TAKEN_OUT: dict[str, Callable[[], Any]] = {
    "law 1": lambda: patch.object(ConcurrencyLimits, "on_begin", lambda *_: ()),
    "law 2": lambda: patch.object(ClientDeduplication, "on_push", lambda *_: ()),
    "law 3": lambda: patch.object(ClientDeduplication, "on_push", lambda *of: ON_PUSH(*of)[:2]),
}


@contextmanager
def without(law: str) -> Iterator[None]:
    with TAKEN_OUT[law]():
        yield


@pytest.mark.parametrize("law", TAKEN_OUT)
def test_without_its_rule_a_law_does_not_hold(store: Store, setup: Setup, registry: Registry, law: str) -> None:
    """The limit of all arguments together, the lock of a seat, and the mark of a start that was refused."""
    with without(law), pytest.raises(AssertionError, match=law):
        walk_all(100, store, setup, registry)
