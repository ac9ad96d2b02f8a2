"""Fetch under real threads that are switched at every chance: no unit and no thread is ever stuck.

A real engine on a real server, behind links that nap, lose replies and let commands arrive late.  The test plays the
manager, but without its sweep once a second, which would hide a lost wake-up: a burst of jobs that is not done in time
is one.  KIQ_SEED=<n> repeats the choices (not the threads' luck), KIQ_CHAOS=full goes on for longer.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from random import Random
from typing import Any

import pytest

from kiqcluster.errors import RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Done, Effect, Interrupted, Outcome
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store import Store
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import ALL_SUSPECT, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.fetch.batch import Batch
from kiqcluster.worker.fetch.concurrency_limit import ConcurrencyLimit
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.prefetch import Prefetch
from kiqcluster.worker.fetch.queue_order import QueueOrder
from kiqcluster.worker.identity import ProcessFingerprint, new_member
from tests.chaos.scale import sized
from tests.kit import PAUSE, TIMEOUT_SECONDS, RedisServer

pytestmark = pytest.mark.timeout(sized(120, 3_600))

SECONDS = sized(0.8, 60.0)  # of bursts, for each rig
ENDED = "test:ended"
QUEUE = "default"
SWITCH = 5e-6  # seconds until the interpreter lets another thread run


class FaultyLink(Connection):
    """A link to which everything happens.  Thread by thread, as any link."""

    rig: Rig

    def begin(self, commands: Sequence[Any]) -> None:
        rig = self.rig
        luck = rig.rng.random() if rig.is_faulty else 1.0
        if luck < 0.02:
            raise RedisUnavailable("away")
        rig.nap()
        if luck < 0.03:
            rig.late.append(list(commands))
            raise ReplyLost("late")
        super().begin(commands)

    def finish(self, timeout: float | None = None) -> list[Any]:
        rig = self.rig
        replies = super().finish(timeout)
        rig.nap()
        if rig.is_faulty and rig.rng.random() < 0.03:
            raise ReplyLost("lost")
        return replies


class FaultyStore(Store):
    """A store whose links are faulty."""

    rig: Rig

    def connection(self, *arguments: Any, **options: Any) -> Connection:
        connection = super().connection(*arguments, **options)
        connection.__class__ = FaultyLink
        vars(connection)["rig"] = self.rig
        return connection


class Rig:
    """A fetch with its processors, and a thread that plays the manager."""

    def __init__(self, server: RedisServer, setup: Setup, processors: int, rng: Random, *, is_faulty: bool) -> None:
        self.rng = rng
        self.is_faulty = is_faulty
        self.late: list[list[Any]] = []
        self.store = server.store()
        self.crashes: list[BaseException] = []
        self.runs: Counter[bytes] = Counter()
        self.pushed: list[bytes] = []
        self.is_woken = threading.Event()
        self.is_over = False
        self.is_armed = False
        self.meeting = threading.Barrier(processors + 1)
        store = FaultyStore(f"unix://{server.socket}")
        store.rig = self
        self.engine = Engine(store, DeadSetLimits(100, 1_000.0))
        runtime = Runtime(Config(), store, setup, Events(), SystemClock(), Random(rng.random()))
        order = QueueOrder(parse_group(QUEUE), [QUEUE], runtime.rng)
        birth = ProcessFingerprint.of_this_process()
        self.fetch = ReliableFetch(
            runtime, self.engine, order, lambda: new_member(birth), lambda member: None, self.is_woken.set, processors
        )
        self._without_fault(lambda: self.engine.join(self.fetch.member))
        self.ahead = 0  # batches that were sent before their units were needed
        self._flush, self.fetch._flush = self.fetch._flush, self._counted  # type: ignore[method-assign]
        bodies = [self._processor] * processors + [self._manager]
        self.threads = [threading.Thread(target=self._guarded, args=(body,), daemon=True) for body in bodies]
        for thread in self.threads:
            thread.start()

    # threads

    def nap(self) -> None:
        luck = self.rng.random()
        if luck < 0.3:
            PAUSE.wait(luck * 0.003)

    def _guarded(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:
            self.crashes.append(error)

    def _counted(self, batch: Batch, *, ahead: bool = False) -> None:
        was_sent = batch.sent is not None
        self._flush(batch, ahead=ahead)
        self.ahead += ahead and not was_sent and batch.sent is not None

    def _processor(self) -> None:
        finished = None
        while (unit := self.fetch.next(finished)) is not None:
            self.runs[unit.payload] += 1
            if unit.payload.startswith(b"meet"):
                self.meeting.wait(2 * TIMEOUT_SECONDS)  # whoever waits for all of them says first what is where
            self.nap()
            finished = Settlement(unit, self._outcome(unit))

    def _outcome(self, unit: Unit) -> Outcome:
        if unit.payload.startswith(b"job") and self.rng.random() < 0.1 and self.runs[unit.payload] < 3:
            return Interrupted(unit.payload)
        return Done(effects=(Effect("lpush", ENDED, (unit.payload,)),))

    def _manager(self) -> None:
        """Arm wakeups, pass on pushes, flush overdue outcomes; never sweep."""
        while not self.is_over:
            self.is_armed = self.is_armed or bool(self.fetch.coordinator.queues_to_arm())
            if self.is_armed and self.store.call("LLEN", f"queue:{QUEUE}"):
                self.is_armed = False
                self.fetch.on_wakeup(QUEUE)
                continue
            left = self.fetch.flush_overdue(self.rng.choice([(), (QUEUE,)]))
            self.is_woken.wait(left)
            self.is_woken.clear()

    # the main thread

    def burst(self, most: int) -> None:
        """Push a few jobs, with what may happen to a worker in between."""
        for _ in range(self.rng.randint(1, most)):
            for _ in range(self.rng.choice((1, 1, 20))):
                self._push("job")
            self.nap()
            self._happen(self.rng.random())
        self._let_late_commands_arrive()

    def meet(self) -> None:
        """Push a short job and as many as there are processors; these end once all run and the short one is settled."""
        ended = self._ended()
        self._push("short")
        for _ in range(self.meeting.parties - 1):
            self._push("meet")
        self._wait(lambda: self._ended() > ended, "an outcome to be settled while all are busy")
        self._wait(lambda: self.meeting.n_waiting == self.meeting.parties - 1, "all processors to be busy at once")
        self.meeting.wait(TIMEOUT_SECONDS)

    def _push(self, kind: str) -> None:
        self.pushed.append(f"{kind}-{len(self.pushed)}".encode())
        self.store.call("LPUSH", f"queue:{QUEUE}", self.pushed[-1])
        self._heard()

    def _happen(self, luck: float) -> None:
        if luck < 0.05:
            self.fetch.coordinator.quiet()
            self.nap()
            self.fetch.coordinator.resume()
        elif luck < 0.10:
            self.fetch.coordinator.mark_uncertain()
        elif luck < 0.13:
            self.fetch.on_wakeup()
        elif luck < 0.14 and self.is_faulty:
            self._without_fault(lambda: self._recover(self.fetch.member.identity))

    def _let_late_commands_arrive(self) -> None:
        while self.late:
            self.store.pipeline(self.late.pop(0))

    def _recover(self, identity: str) -> None:
        """As another process does that takes this one for dead."""
        with self.store.borrowed() as connection:
            running = self.rng.choice([(), ALL_SUSPECT])
            Engine(self.store, DeadSetLimits(100, 1_000.0)).recover(connection, identity, running)
        self._heard()

    def _heard(self) -> None:
        """Wake the manager as its armed wait would: something has come into the queue."""
        if self.is_armed:
            self.is_woken.set()

    def _without_fault(self, action: Callable[[], object]) -> None:
        while True:
            try:
                action()
                return
            except StoreError:
                continue

    def wait_done(self) -> None:
        """Wait until every job pushed so far has ended."""
        self._wait(lambda: self._ended() >= len(self.pushed), "every job to end")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait; fail with what is where."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not condition():
            if self.crashes:
                raise self.crashes[0]
            if time.monotonic() > deadline:
                pytest.fail(f"stuck, waiting for {what}: {self.describe()}")
            PAUSE.wait(0.001)
            self._let_late_commands_arrive()

    def _ended(self) -> int:
        count: int = self.store.call("LLEN", ENDED)
        return count

    def describe(self) -> str:
        queued = self.store.call("LRANGE", f"queue:{QUEUE}", 0, -1)
        flat = [self.store.call("HGETALL", key) for key in self.store.call("KEYS", "kiq:inflight:*")]
        plain = (bool, int, float, str, list, dict, deque, Enum)
        known = {**vars(self.fetch), **vars(self.fetch.coordinator)}
        fields = {name: value for name, value in known.items() if isinstance(value, plain)}
        return f"queued {queued}, in flight {flat}, armed {self.is_armed}, woken {self.is_woken.is_set()}, {fields}"

    def stop(self) -> None:
        """End as a worker does: the processors end, the last outcomes are settled, the membership is over."""
        self.fetch.coordinator.quiet()
        self._wait(lambda: self.fetch.running() <= 0, "everything to be settled")
        self.fetch.coordinator.end()
        self.is_over = True
        self.is_woken.set()
        for thread in self.threads:
            thread.join(TIMEOUT_SECONDS)
        assert not any(thread.is_alive() for thread in self.threads), f"a thread is stuck: {self.describe()}"
        self._without_fault(lambda: self.fetch.leave([], 1.0))


@pytest.fixture(autouse=True)
def _many_switches(monkeypatch: pytest.MonkeyPatch, seed: str) -> Iterator[None]:
    import kiqcluster.worker.fetch.redis_health as redis_health

    rng = Random(seed)
    # A random depth: some batches are sent ahead, which single jobs would never bring about.
    monkeypatch.setattr(
        Prefetch, "record_finished", lambda prefetch, *_: setattr(prefetch, "depth", rng.choice((0, 2, 4, 8, 16)))
    )
    monkeypatch.setattr(
        ConcurrencyLimit,
        "lower",
        lambda limit, _: setattr(limit, "current", rng.choice((1, limit.current, limit.most))),
    )
    for name in ("MIN_RETRY_SECONDS", "MAX_RETRY_SECONDS"):  # so that thousands of outages fit in a second
        monkeypatch.setattr(redis_health, name, 0.002)
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    yield
    sys.setswitchinterval(before)


@contextmanager
def rig(server: RedisServer, setup: Setup, processors: int, seed: str, *, is_faulty: bool) -> Iterator[Rig]:
    print(f"KIQ_SEED={seed}")
    rig = Rig(server, setup, processors, Random(f"{seed} {processors} {is_faulty}"), is_faulty=is_faulty)
    try:
        yield rig
    finally:
        rig.is_over = True
        rig.fetch.coordinator.end()
        rig.is_woken.set()


@pytest.mark.parametrize("is_faulty", [False, True], ids=["fine", "faulty"])
@pytest.mark.parametrize("processors", [1, 3, 9])
def test_every_burst_is_done_and_every_thread_ends(
    store: Store, redis_server: RedisServer, setup: Setup, seed: str, processors: int, is_faulty: bool
) -> None:
    with rig(redis_server, setup, processors, seed, is_faulty=is_faulty) as worker:
        until = time.monotonic() + SECONDS
        bursts = 0
        while time.monotonic() < until:
            worker.burst(3 * processors + 2)
            worker.wait_done()
            if not is_faulty:
                worker.meet()
                worker.wait_done()
            bursts += 1
        worker.stop()

    ended = Counter(store.call("LRANGE", ENDED, 0, -1))
    counts = (
        f"{bursts} bursts, {len(worker.pushed)} jobs, {sum(worker.runs.values())} runs, {worker.ahead} batches ahead"
    )
    print(counts)
    assert worker.ahead
    assert ended == Counter(worker.pushed)
    assert not worker.crashes
    assert store.call("KEYS", "kiq:inflight:*") == []
    assert store.call("LLEN", f"queue:{QUEUE}") == 0
