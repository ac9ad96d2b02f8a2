"""Cron entries walked at random: three processes, a driven clock over a change of clocks, and changes by hand.

The law: of the ticks that are due, those within the grace period are enqueued once each, and older ones as the entry
says.  A process reads what is due, and others act before it writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from random import Random
from zoneinfo import ZoneInfo

import pytest

from kiqcluster.api import CronSet
from kiqcluster.application.registry import Registry
from kiqcluster.job import job
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.sidekiq.cron_entries import CronEntry, Missed, parse_entries
from kiqcluster.store import Store
from kiqcluster.store.cron import CronRow, write
from kiqcluster.worker.maintenance import cron_ticks
from kiqcluster.worker.maintenance.cron_ticks import CronTicks
from tests.chaos.scale import FULL
from tests.kit import ManualClock, RedisServer

BERLIN = "Europe/Berlin"
SCHEDULES = (
    "* * * * *",
    "*/20 * * * * *",
    "15 30 2 * * *",
    "30 2 * * *",
    "*/30 * * * *",
    "0 */2 * * *",
    "5,50 * * * * *",
)
STARTS = ("2025-03-29T20:00", "2025-10-25T20:00", "2025-06-01T00:00")  # past: nobody's clock may be ahead of Redis'
GRACE_SECONDS = 60.0
WALKS, TICKS = (6, 10_000) if FULL else (3, 700)
NEST_CHANCE = 0.2  # that another process acts while one prepares a job


@dataclass
class Model:
    """What has to be enqueued.  awaited: tick of each enabled entry."""

    entries: dict[str, CronEntry] = field(default_factory=dict)
    awaited: dict[str, int] = field(default_factory=dict)
    wanted: Counter[tuple[str, int]] = field(default_factory=Counter)

    def move(self, now: float) -> None:
        for name, first in self.awaited.items():
            entry = self.entries[name]
            ticks = [first, *takewhile(lambda tick: tick <= now, entry.schedule.after(first))] if first <= now else []
            fresh = [tick for tick in ticks if tick >= now - entry.grace]
            missed = {"all": ticks, "skip": fresh, "once": fresh or ticks[-1:]}[entry.missed]
            self.wanted.update((name, tick) for tick in missed)
            if ticks:
                self.awaited[name] = entry.schedule.next(now)


class Walk:
    def __init__(self, store: Store, setup: Setup, registry: Registry, rng: Random, start: float) -> None:
        self.store = store
        self.rng = rng
        self.clock = ManualClock(start)
        self.model = Model()
        runtime = Runtime(Config(), store, setup, Events(), self.clock)
        self.processes = [CronTicks(runtime, registry, JobMetrics(1, list)) for _ in range(3)]
        self._is_nested = False

    def nest(self) -> None:
        """Have another process act while one is between its read and its write."""
        if not self._is_nested and self.rng.random() < NEST_CHANCE:
            self._is_nested = True
            self.rng.choice(self.processes).move(self.clock.now())
            self._is_nested = False

    def move(self) -> None:
        """Have a process enqueue all that is due."""
        process = self.rng.choice(self.processes)
        while process.move(self.clock.now()).next_at is None:
            process = self.rng.choice(self.processes)
        self.model.move(self.clock.now())

    def put(self) -> None:
        name = f"e{self.rng.randrange(6)}"
        missed: Missed = self.rng.choice(["once", "skip", "all"])
        table = {"schedule": self.rng.choice(SCHEDULES), "tz": BERLIN, "job": "count", "queue": "q"}
        (entry,) = parse_entries({name: {**table, "missed": missed, "grace": GRACE_SECONDS}})
        following = entry.schedule.next(self.clock.now())
        assert write(self.store, [CronRow("put", name, entry.encoded(), following)]) == ["DONE"]
        before, self.model.entries[name] = self.model.entries.get(name), entry
        if before is None or (name in self.model.awaited and before.schedule != entry.schedule):
            self.model.awaited[name] = following

    def change(self) -> None:
        if not self.model.entries:
            return
        name = self.rng.choice(sorted(self.model.entries))
        verb = self.rng.choice(["enable", "disable", "remove"])
        following = self.model.entries[name].schedule.next(self.clock.now())
        assert write(self.store, [CronRow(verb, name, following)]) == ["DONE"]
        if verb == "enable":
            self.model.awaited.setdefault(name, following)
        else:
            self.model.awaited.pop(name, None)
        if verb == "remove":
            del self.model.entries[name]

    def advance(self) -> None:
        kind = self.rng.random()
        seconds = self.rng.uniform(0, 5) if kind < 0.3 else self.rng.uniform(0, 90) if kind < 0.95 else 3_600 * 3
        self.clock.time += seconds

    def run(self) -> None:
        steps = [self.advance] * 6 + [self.move] * 6 + [self.put, self.change]
        for _ in range(6):
            self.put()
        while sum(self.model.wanted.values()) < TICKS:
            self.rng.choice(steps)()
        self.move()

    def enqueued(self) -> Iterator[tuple[str, int]]:
        for raw in self.store.call("LRANGE", "queue:q", 0, -1):
            payload = json.loads(raw)
            yield payload["cron"], payload["cron_at"]


@pytest.fixture
def make(redis_server: RedisServer, setup: Setup, registry: Registry, store: Store) -> Callable[[int], Walk]:
    @job
    def count() -> None: ...

    def make(seed: int) -> Walk:
        store.call("FLUSHDB")
        start = datetime.fromisoformat(STARTS[seed % len(STARTS)]).replace(tzinfo=ZoneInfo(BERLIN)).timestamp()
        walk = Walk(store, setup, registry, Random(seed), start)

        @setup.client_middleware.add
        def between(push: Push, call_next: Callable[[], Push | None]) -> Push | None:
            walk.nest()
            return call_next()

        return walk

    return make


@pytest.mark.parametrize("seed", range(WALKS))
def test_the_law_of_cron_holds(make: Callable[[int], Walk], seed: int) -> None:
    walk = make(seed)

    walk.run()

    enqueued = Counter(walk.enqueued())
    assert enqueued - walk.model.wanted == Counter(), "too often, or too early"
    assert walk.model.wanted - enqueued == Counter(), "lost"
    awaited = {each.name: each.next_at for each in CronSet(store=walk.store).list() if each.next_at is not None}
    assert awaited == walk.model.awaited


def test_the_walk_finds_an_entry_that_is_taken_without_its_tick(
    make: Callable[[int], Walk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the guard, whoever comes second enqueues the job once more."""
    write_each = cron_ticks.write_each
    monkeypatch.setattr(
        cron_ticks,
        "write_each",
        lambda store, jobs: write_each(store, [each._replace(rows=each.rows[:0]) for each in jobs]),
    )
    walk = make(0)
    for name in range(6):
        walk.put()
        assert name >= 0
    walk.clock.time += 7_200

    for process in walk.processes:
        process.move(walk.clock.now())
    walk.model.move(walk.clock.now())

    assert Counter(walk.enqueued()) - walk.model.wanted != Counter()
