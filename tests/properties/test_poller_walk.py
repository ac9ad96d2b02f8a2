"""Pollers of a fleet, walked at random: each due job moves once, and at its time if anybody can know of that.

Real pollers, without their threads, look and wake when they would by themselves; time is the test's, also for Redis.
Web processes and the workers write jobs that become due; workers start and die.  The laws:
- once, and never before its time
- never more than ten seconds late, at the default interval
- at its time, if it was written so long before that somebody has polled meanwhile, or by a worker that still lives
With a part of the knowledge taken out, some job is late.
KIQ_SEED=<n> repeats a run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.store import Store, entry_moves
from kiqcluster.store.engine import duties as claims_module
from kiqcluster.store.engine import engine as engine_module
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.maintenance import due_times
from kiqcluster.worker.maintenance.due_times import DueTimes
from kiqcluster.worker.maintenance.duties import longest_gap
from kiqcluster.worker.maintenance.poller import Poller
from tests.chaos.scale import sized
from tests.kit import ManualClock
from tests.properties.limits import Violation
from tests.server_clock import ServerClock

FLEET = 6  # workers at most
STEPS = sized(3_000, 60_000)
MAX_LATE_SECONDS = 10.0
IN_TIME_SECONDS = 0.5  # the wakes of those that know a time are spread, and those in vain ever more
INTERVAL = Config().average_scheduled_poll_interval
KNOWN_SECONDS = longest_gap(INTERVAL) + 0.1  # after which each process that lives has polled, or another one has


@dataclass
class Worker:
    """A poller, and since when it lives."""

    poller: Poller
    since: float

    def next_turn(self) -> float:
        return min(self.poller._duties.next_look, self.poller._due_times.wake_at())


@dataclass
class Entry:
    """A job that becomes due.  writer: the worker that has written it, None for a web process."""

    due: float
    written: float
    writer: Worker | None


class Walk:
    """deaths: when workers have died.  moved: jid → when.  latest: how late jobs were at most, known or not."""

    def __init__(self, store: Store, setup: Setup, rng: Random) -> None:
        self.store, self.setup, self.rng = store, setup, rng
        self.clock, self.server = ManualClock(), ServerClock(store)
        self.server.set(self.clock.time)
        self.workers: list[Worker] = []
        self.entries: dict[str, Entry] = {}
        self.deaths: list[float] = []
        self.moved: dict[str, float] = {}
        self.latest = {"known": 0.0, "unknown": 0.0}
        self.harm = ""  # that was noted where the poller bears any error
        setup.client_middleware.add(self._note)

    def _note(self, push: Push, proceed: Callable[[], Push | None]) -> Push | None:
        """Take note of a job that is about to move."""
        jid = push.payload["jid"]
        self.harm = self.harm or (f"{jid} moves again" if jid in self.moved else self._harm(self.entries[jid]))
        self.moved[jid] = self.clock.time
        return proceed()

    def _harm(self, entry: Entry) -> str:
        """Return what is wrong with the time at which a job moves."""
        late = self.clock.time - entry.due
        kind = "known" if self._is_known(entry) else "unknown"
        self.latest[kind] = max(self.latest[kind], late)
        if 0 <= late <= (IN_TIME_SECONDS if kind == "known" else MAX_LATE_SECONDS):
            return ""
        return f"{late:.1f} s late, and it was {kind}: written {entry.due - entry.written:.1f} s before"

    def _is_known(self, entry: Entry) -> bool:
        """Return whether somebody who lives must have known of it."""
        ahead = entry.due - entry.written
        if entry.writer is not None and entry.writer in self.workers and ahead < longest_gap(INTERVAL):
            return True
        is_polled = ahead > KNOWN_SECONDS
        return is_polled and not any(entry.written < at <= self.clock.time for at in self.deaths)

    # steps

    def go(self, steps: int) -> None:
        self.start()
        for _ in range(steps):
            self.rng.choices(
                [self.pass_time, self.push, self.push_own, self.start, self.die],
                [10, 6, 6, 1, 1 if self.workers[1:] else 0],
            )[0]()
        self.deaths.append(self.clock.time)
        self.run(40.0)
        if left := self.store.call("ZCARD", "schedule"):
            raise Violation(f"{left} jobs are left")

    def start(self) -> None:
        if len(self.workers) < FLEET:
            runtime = Runtime(Config(), self.store, self.setup, Events(), self.clock, Random(self.rng.random()))
            worker = Worker(
                Poller(runtime, Engine(self.store, DeadSetLimits(1, 1.0)), lambda *_: None), self.clock.time
            )
            self.workers.append(worker)
            self._count()
            worker.poller.look()

    def die(self) -> None:
        self.workers.remove(self.rng.choice(self.workers))
        self.deaths.append(self.clock.time)
        self._count()

    def _count(self) -> None:
        self.store.call("DEL", "kiq:members")
        self.store.call("HSET", "kiq:members", *(word for n in range(len(self.workers)) for word in (n, "1 b n 1 1")))

    def push(self) -> None:
        self._write(self.rng.choice([0.3, 3.0, 12.0, 20.0]) * self.rng.uniform(0.5, 1.5), None)

    def push_own(self) -> None:
        self._write(self.rng.choice([0.3, 3.0, 7.0]) * self.rng.uniform(0.5, 1.5), self.rng.choice(self.workers))

    def _write(self, seconds: float, writer: Worker | None) -> None:
        jid, due = f"j{len(self.entries)}", self.clock.time + seconds
        self.entries[jid] = Entry(due, self.clock.time, writer)
        payload = json.dumps({"class": "X", "queue": "q", "args": [], "jid": jid})
        self.store.call("ZADD", "schedule", repr(due), payload)
        if writer is not None:
            writer.poller.inbox.expect("schedule", due)
            writer.poller._take_written()

    def pass_time(self) -> None:
        self.run(self.rng.choice([0.05, 0.5, 3.0]) * self.rng.uniform(0.5, 1.5))

    def run(self, seconds: float) -> None:
        """Let time go by, and each poller do what it would."""
        until = self.clock.time + seconds
        while self.workers:
            turns = [(worker.next_turn(), number) for number, worker in enumerate(self.workers)]
            at, number = min(turns)
            if at > until:
                break
            self.clock.time = max(self.clock.time, at)
            self.server.set(self.clock.time)
            poller = self.workers[number].poller
            if poller._duties.next_look <= self.clock.time:
                poller.look()
            else:
                poller.move_known(poller._duties.next_look)
            if self.harm:
                raise Violation(self.harm)
        self.clock.time = until
        self.server.set(until)


@pytest.fixture
def walk(store: Store, setup: Setup, seed: str, monkeypatch: pytest.MonkeyPatch) -> Walk:
    print(f"KIQ_SEED={seed}")
    ServerClock(store).use(monkeypatch, claims_module, engine_module, entry_moves)
    return Walk(store, setup, Random(seed))


@pytest.mark.timeout(sized(120, 1_800))
def test_each_due_job_moves_once_and_in_time(walk: Walk) -> None:
    walk.go(STEPS)

    latest = ", ".join(f"{kind} {seconds:.2f} s" for kind, seconds in walk.latest.items())
    print(f"{len(walk.moved)} jobs; the latest ones: {latest}")
    assert walk.moved.keys() == walk.entries.keys()


# parts of the knowledge taken out


def look_at_no_later_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll learns nothing of what becomes due after it."""
    monkeypatch.setattr(DueTimes, "follow", lambda *_: None)


def forget_own_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes no note of what it writes."""
    monkeypatch.setattr(DueTimes, "expect", lambda *_: None)


def back_off_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes in vain wakes later and later, for what it has written itself as well."""
    monkeypatch.setattr(due_times, "MAX_SPREAD_SECONDS", 1e9)
    monkeypatch.setattr(
        DueTimes, "begin", lambda times, processes: setattr(times, "_least_spread", max(times._spread, 0.05))
    )


@pytest.mark.parametrize(
    "take_out", [look_at_no_later_jobs, forget_own_jobs, back_off_without_end], ids=lambda each: each.__name__
)
def test_without_a_part_of_what_they_know_a_job_is_late(
    take_out: Callable[[pytest.MonkeyPatch], None], walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_out(monkeypatch)

    with pytest.raises(Violation, match="late, and it was known"):
        walk.go(STEPS)
