"""Keys of guarantees broken at random while they are in use: deleted, or of another type, for some steps.

1. Whatever is broken, a push writes its job or raises a StoreError, and jobs without guarantees run.
2. Once nothing is broken any more, every job that was written ends, and each has run.
3. Then no lock and no place is left.
A key that holds jobs itself is not broken: the line of a limit is the only such key of a guarantee.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from kiqcluster import job, limits
from kiqcluster.api import RetrySet, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.errors import StoreError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Outcome
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.store.scripts import SEND_PARKED
from kiqcluster.worker.maintenance.limit_upkeep import LimitUpkeep
from tests.chaos.scale import sized
from tests.in_process_worker import Worker
from tests.properties.limits import without
from tests.properties.places import STORED, pass_time

pytestmark = pytest.mark.timeout(sized(120, 900))
WALKS, STEPS = sized(6, 150), 60
MAX_DEPTH, MAX_WORKERS = 4, 2
PREFIXES = ("kiq:lock:", "kiq:reschedule:", "kiq:slots:", "kiq:held:", "kiq:rate:")
NAMES = (
    *("kiq:limits", "kiq:parked", "kiq:rates", "kiq:deduplicated", "kiq:struck", "kiq:strikes", "kiq:suspects"),
    *("kiq:limits:ends", "kiq:limits:sweep", "kiq:dropped"),
)
TYPES: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "{}", "broken"),
    "list": ("RPUSH", "{}", "broken"),
    "set": ("SADD", "{}", "broken"),
    "hash": ("HSET", "{}", "broken", "broken"),
    "zset": ("ZADD", "{}", 1, "broken"),
}


class Walk:
    """One walk.  broken: keys of another type."""

    def __init__(self, rng: Random, store: Store, setup: Setup, registry: Registry) -> None:
        self.rng, self.store = rng, store
        self.parts = (store, setup, registry)
        self.made = self.depth = self.pushes = 0
        self.workers = [self.new_worker() for _ in range(MAX_WORKERS)]
        self.unsettled: list[tuple[Worker, Unit, Outcome]] = []
        self.broken: dict[str, str] = {}
        self.is_calm = False
        self.written: set[str] = set()  # jids
        self.ran: Counter[str] = Counter()
        self.log: list[str] = []
        walk = self

        def body(_number: int) -> None:
            walk.run()

        claimed = job(name="Claimed", deduplicate="until_executed", reschedule_once=True)(body)
        started = job(name="Started", deduplicate="until_executing", concurrency_limit=2)(body)
        limited = job(name="Limited", concurrency_limit=1, concurrency_key=lambda number: number)(body)
        alone = job(name="Alone", deduplicate="while_executing", rate_limit=limits.concurrent(2))(body)
        rated = job(name="Rated", rate_limit=limits.fixed_window(3, 0.05))(body)
        sliding = job(name="Sliding", rate_limit=limits.sliding_window(3, 0.05), concurrency_limit=1)(body)
        leaky = job(name="Leaky", rate_limit=limits.leaky_bucket(3, per_second=60), deduplicate="until_executed")(body)
        self.plain: Any = job(name="Plain")(body)
        self.jobs: list[Any] = [claimed, started, limited, alone, rated, sliding, leaky, self.plain]

    def new_worker(self) -> Worker:
        self.made += 1
        return Worker(*self.parts, f"host:{self.made}:{self.made:012x}")

    # steps

    def push(self) -> None:
        each = self.rng.choice(self.jobs)
        before = {payload["jid"] for payload in self.stored()}
        try:
            jid = each.perform_async(self.rng.randrange(2))
        except StoreError:
            if not self.broken or each is self.plain:
                raise
            return
        if jid not in before and jid in {payload["jid"] for payload in self.stored()}:
            self.written.add(jid)

    def take_and_run(self) -> None:
        if self.depth >= MAX_DEPTH:
            return
        worker = self.rng.choice(self.workers)
        for unit in worker.take_any():
            self.depth += 1
            self.running = unit
            outcome = worker.execute(unit)
            self.depth -= 1
            self.unsettled.append((worker, unit, outcome))

    def run(self) -> None:
        """Be the job."""
        jid = json.loads(self.running.payload)["jid"]
        for _ in range(self.rng.randrange(4)):
            self.step()
        self.ran[jid] += 1
        if self.rng.random() < 0.1:
            raise ValueError("on purpose")

    def settle(self) -> None:
        if not self.unsettled:
            return
        worker, unit, outcome = chosen = self.rng.choice(self.unsettled)
        try:
            worker.settle(unit, outcome)
        except StoreError:
            if not self.broken:
                raise
            return
        self.unsettled.remove(chosen)

    def kill(self) -> None:
        number = self.rng.randrange(len(self.workers))
        worker, self.workers[number] = self.workers[number], self.new_worker()
        self.workers[number].recover(worker.name)

    def make_due(self) -> None:
        for place in (RetrySet(), ScheduledSet()):
            place.add_all_to_queue()

    def sweep(self) -> None:
        """Look at all lines, as workers do once a minute."""
        upkeep = LimitUpkeep(self.workers[0].runtime, self.parts[2], 1)
        if not isinstance(self.broken.get("kiq:limits:sweep"), str):
            self.store.call("DEL", "kiq:limits:sweep")
        try:
            upkeep.sweep()
        except StoreError:
            if not self.broken:
                raise

    def pass_time(self) -> None:
        pass_time(self.store)

    def candidates(self) -> list[str]:
        there = [key.decode() for key in self.store.call("KEYS", "kiq:*")]
        some = [key for key in there if key.startswith(PREFIXES) and not key.endswith(":parked")]
        return [key for key in sorted(some) + list(NAMES) if key not in self.broken]

    def delete_key(self) -> None:
        key = self.rng.choice(self.candidates())
        self.log.append(f"delete {key}")
        self.store.call("DEL", key)

    def break_key(self) -> None:
        key = self.rng.choice(self.candidates())
        kind = self.store.call("TYPE", key).decode()
        (word,) = self.rng.sample([each for each in TYPES if each != kind], 1)
        self.log.append(f"break {key} {word}")
        self.store.call("DEL", key)
        self.store.call(*(part.replace("{}", key) if isinstance(part, str) else part for part in TYPES[word]))
        self.broken[key] = word

    def mend_key(self) -> None:
        if self.broken:
            key = self.rng.choice(sorted(self.broken))
            self.log.append(f"mend {key}")
            if self.store.call("TYPE", key).decode() == self.broken.pop(key):
                self.store.call("DEL", key)

    STEPS: tuple[tuple[Callable[[Walk], None], float], ...] = (
        (push, 8),
        (take_and_run, 10),
        (settle, 8),
        (kill, 0.7),
        (make_due, 2),
        (sweep, 1),
        (pass_time, 1),
        (delete_key, 1),
        (break_key, 2),
        (mend_key, 1.5),
    )

    def step(self) -> None:
        if self.is_calm:
            return
        (chosen,) = self.rng.choices([step for step, _ in self.STEPS], [weight for _, weight in self.STEPS])
        chosen(self)

    def stored(self) -> list[dict[str, Any]]:
        raw = self.store.call("EVAL", STORED, 0)
        return [json.loads(payload) for payload in raw]

    def end(self) -> None:
        """Have everything end; a line that Redis has lost from its list of lines goes on with the next job."""
        while self.broken:
            self.mend_key()
        self.is_calm = True
        self.run_all()
        for each in self.jobs:
            for number in range(2):
                each.perform_async(number)
        self.run_all()
        assert self.stored() == [], "law 2: stranded"
        assert self.written <= self.ran.keys(), f"law 2: lost {self.written - self.ran.keys()}"
        left = [self.store.call("KEYS", f"kiq:{name}:*") for name in ("lock", "held", "inflight")]
        assert left == [[], [], []], f"law 3: {left}"

    def run_all(self) -> None:
        for _ in range(200):
            for step in (self.make_due, self.pass_time, self.sweep, self.take_and_run, self.settle):
                step()
            if not self.stored() and not self.unsettled:
                break


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
            error.add_note(f"seed {seed}: {walk.log}")
            raise


def test_the_laws_hold_on_any_walk(store: Store, setup: Setup, registry: Registry) -> None:
    walk_all(WALKS, store, setup, registry)


def test_a_place_whose_registration_is_lost_is_never_free_without_its_rule(
    store: Store, setup: Setup, registry: Registry
) -> None:
    changed = without(SEND_PARKED, "if not has_unit(prefix_of(key), holder) then", "if false then")
    with (
        patch("kiqcluster.store.limits.parking.SEND_PARKED", changed),
        pytest.raises(AssertionError, match="law 2: stranded"),
    ):
        walk_all(150, store, setup, registry)
