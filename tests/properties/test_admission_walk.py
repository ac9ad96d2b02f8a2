"""Strikes, versions, expiry and policies walked at random, alone and beside a lock and a limit.

Two releases of a class share a queue.  Each worker knows the strikes of its last beat.  Time passes by leaps.

1. A job begins exactly if nothing keeps it: it has not expired, is not newer than the class of the worker, neither a
   strike that the worker knows nor a policy is about it.  Else the first of these, in this order, decides.
2. A deferred job comes back after its delay; its deferrals for one reason are counted; one that begins is not deferred
   any more.
3. Every job ends: it runs, or is among the dropped ones.  Each drop and deferral by a strike is counted once.
4. Locks, places and lines end with the jobs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from kiqcluster import Job
from kiqcluster.api import DroppedSet, StrikeSet
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.client.reenqueue import enqueued
from kiqcluster.features.deduplication import ServerDeduplication
from kiqcluster.features.expiry import Expiry
from kiqcluster.features.limits.concurrency_limit import ConcurrencyLimits
from kiqcluster.features.stacks import current_stacks
from kiqcluster.features.strikes import STRIKES, Strike, Strikes
from kiqcluster.features.versions import VersionCheck
from kiqcluster.policies import Defer, Drop
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Deferred, Dropped, Outcome, Parked
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.store.entry_moves import move_entries
from kiqcluster.store.limits.parking import send_lines
from tests.chaos.scale import sized
from tests.in_process_worker import LIMITS, Worker
from tests.properties.places import STORED, pass_time

pytestmark = pytest.mark.timeout(sized(120, 900))
WALKS, STEPS = sized(6, 300), 60
CUSTOMERS = (1, 2)
MAX_DEPTH = 3
BESIDE: dict[str, dict[str, Any]] = {
    "alone": {},
    "all": {"deduplicate": "until_executed", "reschedule_once": True, "concurrency_limit": 1},
}


@dataclass
class Process:
    """A worker, its release, and the strikes of its last beat."""

    worker: Worker
    release: int
    registry: Registry
    job: Any
    strikes: dict[bytes, bytes] = field(default_factory=dict)


class Walk:
    """One walk.  time: epoch seconds, of all processes.  expected: what is to become of the unit that runs now."""

    def __init__(self, beside: dict[str, Any], rng: Random, store: Store, setup: Setup) -> None:
        self.beside, self.rng, self.store, self.setup = beside, rng, store, setup
        self.time = SystemClock.now()
        self.made = self.depth = 0
        self.policy: Defer | Drop | None = None
        self.strikes = StrikeSet(store=store, clock=self)  # type: ignore[arg-type]  # its `now` is all that is asked
        self.processes = [self.new_process(release) for release in (1, 2, 2)]
        self.unsettled: list[tuple[Process, Unit, Outcome]] = []
        self.pushed: set[str] = set()
        self.ran: set[str] = set()
        self.began: list[str] = []
        self.struck: Counter[str] = Counter()
        self.is_calm = False
        self.violation = ""

    def now(self) -> float:
        return self.time

    def new_process(self, release: int) -> Process:
        self.made += 1
        walk, registry = self, Registry()
        with using_registry(registry):

            class Report(Job, name="Report", version=release, policy=self.decide, retry=1, **self.beside):
                def perform(self, customer: int) -> None:
                    walk.run()

        worker = Worker(self.store, self.setup, registry, f"host:{self.made}:{self.made:012x}")
        return Process(worker, release, registry, Report)

    def decide(self, _run: object) -> Defer | Drop | None:
        return self.policy

    # steps

    def push(self) -> None:
        process = self.rng.choice(self.processes)
        options = {"expires_in": self.rng.choice((5, 400, 40_000))} if self.rng.random() < 0.4 else {}
        with using_registry(process.registry):
            jid = process.job.set(**options).perform_async(self.rng.choice(CUSTOMERS))
        self.pushed.add(jid)

    def take_and_run(self) -> None:
        if self.depth >= MAX_DEPTH:
            return
        process = self.rng.choice(self.processes)
        with self.being(process):
            for unit in process.worker.take_any():
                payload = json.loads(unit.payload)
                expected = self.expected(process, payload)
                self.depth += 1
                self.began.append("")
                outcome = process.worker.execute(unit)
                began = self.began.pop()
                self.depth -= 1
                self.compare(payload, expected, outcome, has_begun=bool(began))
                self.unsettled.append((process, unit, outcome))

    def run(self) -> None:
        """Be the job."""
        self.began[-1] = "yes"
        for _ in range(self.rng.randrange(3)):
            self.step()
        if not self.is_calm and self.rng.random() < 0.1:
            raise ValueError("on purpose")

    def settle(self) -> None:
        if not self.unsettled:
            return
        process, unit, outcome = self.unsettled.pop(self.rng.randrange(len(self.unsettled)))
        with self.being(process):
            if not process.worker.settle(unit, outcome):
                return
        if isinstance(outcome, Deferred | Dropped):
            entry = json.loads(outcome.payload)
            by = entry["dropped_by"] if isinstance(outcome, Dropped) else entry["deferred_by"]
            if by.startswith("strike:"):
                self.struck[by.partition(":")[2]] += 1
        elif not isinstance(outcome, Parked):
            self.ran.add(json.loads(unit.payload)["jid"])

    def kill(self) -> None:
        number = self.rng.randrange(len(self.processes))
        old, self.processes[number] = self.processes[number], self.new_process(self.processes[number].release)
        self.processes[number].worker.recover(old.worker.name)

    def let_time_pass(self) -> None:
        self.time += self.rng.choice((1, 10, 40, 400, 3_600))

    def make_due(self) -> None:
        """Be the poller."""
        for key in ("schedule", "retry"):
            due = self.store.call("ZRANGEBYSCORE", key, "-inf", repr(self.time))
            moves = [enqueued(self.setup, entry, self.time) for entry in due]
            if moves:
                move_entries(self.store, key, moves, self.time, LIMITS)

    def beat(self) -> None:
        flat = self.store.call("HGETALL", "kiq:strikes")
        self.rng.choice(self.processes).strikes = dict(zip(flat[::2], flat[1::2], strict=True))

    def add_strike(self) -> None:
        customer = self.rng.choice(CUSTOMERS)
        arguments = self.rng.choice(({}, {"customer": customer}, {"0": customer}))
        name = self.rng.choice(("Report", "Other", "")) if arguments else "Report"
        action = self.rng.choice(("defer", "drop"))
        self.strikes.add(action, self.rng.choice((30, 500, 9_000)), name=name, arguments=arguments, delay=60)

    def remove_strike(self) -> None:
        if found := self.strikes.list():
            chosen, _ = self.rng.choice(found)
            self.strikes.remove(chosen.id)

    def change_policy(self) -> None:
        self.policy = self.rng.choice((None, None, Defer(20, "maintenance"), Drop("closed")))

    def bring_back(self) -> None:
        """Have what was dropped run after all, by hand."""
        DroppedSet().add_all_to_queue()

    def sweep(self) -> None:
        pass_time(self.store)
        send_lines(self.store, [("kiq:slots:Report", 1)], 3, lambda: False)

    STEPS: tuple[tuple[Callable[[Walk], None], float], ...] = (
        (push, 6),
        (take_and_run, 10),
        (settle, 8),
        (kill, 0.7),
        (let_time_pass, 3),
        (make_due, 3),
        (beat, 3),
        (add_strike, 1),
        (remove_strike, 0.5),
        (change_policy, 0.7),
        (bring_back, 0.3),
    )

    def step(self) -> None:
        if self.is_calm:
            return
        (chosen,) = self.rng.choices([step for step, _ in self.STEPS], [weight for _, weight in self.STEPS])
        chosen(self)
        assert self.depth or not self.violation, self.violation

    @contextmanager
    def being(self, process: Process) -> Iterator[None]:
        """Do what this process does: with its classes, and the strikes that it knows."""
        known = STRIKES._raw
        with using_registry(process.registry):
            STRIKES.apply(process.strikes)
            current_stacks().run.ask_again()
            try:
                yield
            finally:
                STRIKES.apply(*known)
                current_stacks().run.ask_again()

    # laws

    def expected(self, process: Process, payload: dict[str, Any]) -> tuple[str, str, float]:
        """Return what becomes of a unit, by what reason, and after how many seconds it comes back."""
        if payload.get("expiry", self.time + 1) <= self.time:
            return "drop", "expiry", 0
        if payload.get("version", 0) > process.release:
            count = payload["deferred_count"] if payload.get("deferred_by") == "version" else 0
            return "defer", "version", min(30 * (count + 1), 300)
        for identifier, raw in sorted(process.strikes.items()):
            strike = Strike.read(identifier, raw)
            (customer,) = payload["args"]
            is_meant = strike.name in ("", "Report") and all(each == customer for each in strike.arguments.values())
            if is_meant and strike.until > self.time:
                return strike.action, f"strike:{strike.id}", strike.delay
        if self.policy is not None:
            if isinstance(self.policy, Defer):
                return "defer", self.policy.reason, self.policy.seconds
            return "drop", self.policy.reason, 0
        return "go", "", 0

    def compare(
        self, before: dict[str, Any], expected: tuple[str, str, float], outcome: Outcome, *, has_begun: bool
    ) -> None:
        action, reason, delay = expected
        found: tuple[str, str] = ("go", "")
        if isinstance(outcome, Dropped):
            found = ("drop", json.loads(outcome.payload)["dropped_by"])
        elif isinstance(outcome, Deferred):
            after = json.loads(outcome.payload)
            found = ("defer", after["deferred_by"])
            count = before.get("deferred_count", 0) if before.get("deferred_by") == reason else 0
            self.expect(found == (action, reason), f"law 1: {found}, not {expected}")
            self.expect(after["deferred_count"] == count + 1, f"law 2: {after}")
            self.expect(abs(outcome.at - self.time - delay) < 1, f"law 2: {outcome.at}")
        self.expect(found == (action, reason), f"law 1: {found}, not {expected}")
        self.expect(has_begun == (action == "go" and not isinstance(outcome, Parked)), f"law 1: {outcome}")
        if has_begun and hasattr(outcome, "payload"):
            self.expect("deferred_by" not in json.loads(outcome.payload), "law 2: still deferred")

    def expect(self, holds: bool, law: str) -> None:
        if not holds:
            self.violation = self.violation or law
        assert self.depth or not self.violation, self.violation

    def end(self) -> None:
        """Have everything end: all have the new release and know that there is no strike."""
        while self.unsettled:
            self.settle()
        counts = {each.id: count for each, count in self.strikes.list()}
        assert counts == {identifier: self.struck[identifier] for identifier in counts}, "law 3: counts"
        self.is_calm, self.policy = True, None
        self.processes = [each for each in self.processes if each.release == 2]
        for each in self.processes:
            each.strikes = {}
        for name in self.store.call("HKEYS", "kiq:members"):
            if name.decode() not in {each.worker.name for each in self.processes}:
                self.processes[0].worker.recover(name.decode())
        for _ in range(200):
            self.time += 400
            for step in (self.make_due, self.sweep, self.take_and_run, self.settle):
                step()
            if not self.stored() and not self.unsettled:
                break
        assert self.stored() == [], "law 3: stranded"
        dropped = {entry.jid for entry in DroppedSet()}
        assert self.pushed <= self.ran | dropped, "law 3: lost"
        left = [self.store.call("KEYS", f"kiq:{name}:*") for name in ("lock", "held", "inflight", "slots")]
        assert left == [[], [], [], []], f"law 4: {left}"

    def stored(self) -> list[bytes]:
        found: list[bytes] = self.store.call("EVAL", STORED, 0)
        return found


def walk_all(walks: int, beside: dict[str, Any], store: Store, setup: Setup) -> None:
    for seed in range(walks):
        store.call("FLUSHALL")
        walk = Walk(beside, Random(seed), store, setup)
        try:
            with patch.object(SystemClock, "now", staticmethod(walk.now)):
                for _ in range(STEPS):
                    walk.step()
                walk.end()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            STRIKES.apply({})
            current_stacks().run.ask_again()


@pytest.mark.parametrize("beside", BESIDE)
def test_the_laws_hold_on_any_walk(store: Store, setup: Setup, beside: str) -> None:
    walk_all(WALKS, BESIDE[beside], store, setup)


def _nothing(*_: object) -> tuple[()]:
    return ()


TAKEN_OUT: dict[str, tuple[str, Callable[[], Any]]] = {
    "expired jobs are dropped": ("law 1", lambda: patch.object(Expiry, "on_begin", _nothing)),
    "newer jobs wait": ("law 1", lambda: patch.object(VersionCheck, "on_begin", _nothing)),
    "strikes are about arguments": ("law 1", lambda: patch.object(Strike, "is_about", lambda *_: True)),
    "strikes are counted": ("law 3: counts", lambda: patch.object(Strikes, "on_end", _nothing)),
    "what is dropped releases its lock": ("law 4", lambda: patch.object(ServerDeduplication, "on_end", _nothing)),
    "what does not begin passes its turn on": (
        "stranded|law 4",
        lambda: patch.object(ConcurrencyLimits, "on_end", _nothing),
    ),
}


@pytest.mark.parametrize("rule", TAKEN_OUT)
def test_without_a_rule_a_law_does_not_hold(store: Store, setup: Setup, rule: str) -> None:
    law, take_out = TAKEN_OUT[rule]
    with take_out(), pytest.raises(AssertionError, match=law):
        walk_all(150, BESIDE["all"], store, setup)
