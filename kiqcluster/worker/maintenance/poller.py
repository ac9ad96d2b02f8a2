"""Poller: moves due entries of the retry and schedule sets, and of other sources, to their queues.

Runs in: its own thread; it goes on while the process is quiet, so a quiet fleet misses nothing.
1. wait       a random time, so that a fleet polls once per `average_scheduled_poll_interval` without coordination; but
              no longer than until an entry is due that this process knows of, or has written itself (due_times.py)
2. read       the entries that are due, at most MAX_DUE and MAX_DUE_BYTES at a time, of all sources in turns; and when
              the next one is due
3. prepare    client middleware, as for any push (reenqueue.py); what is not a job goes to the dead set with its reason
4. move       one script, which moves only what is still there and due (a second poller may be Ruby's).  What Redis
              refuses holds up only itself: where a whole script is refused (an ACL forbids one queue), its entries go
              key by key, and those of the refused one are due again in a minute, unasked until then
5. trim       the rest of what a burial found too much in the dead set

A poll costs a count of the fleet and one command per source while nothing is due before the next poll.
Counterpart: sidekiq scheduled.rb; its window between ZREM and LPUSH is closed here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from typing import NamedTuple, Protocol

from kiqcluster.client.reenqueue import DEFAULT_QUEUE, enqueued
from kiqcluster.errors import MalformedPayload, RedisRefused, StoreError, as_exception
from kiqcluster.process.boundary.calls import guarded, is_a
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import read, wrap
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import REFUSED_ENTRY_DELAY_SECONDS, Engine
from kiqcluster.store.entry_moves import Move
from kiqcluster.worker.maintenance.due_times import DueTimes

__all__ = ["BatchSource", "DueSource", "Moved", "Poller", "poll_pause", "sidekiq_sources"]

FIRST_WAIT_SECONDS = 10.0  # after boot, so that the process is registered before it counts the fleet
FALLBACK_PAUSE_SECONDS = 5.0  # until the next poll when the fleet could not be counted
MAX_REMEMBERED_KEYS = 1_000  # that Redis has refused
WRITE_SECONDS = 0.05  # until an outcome is written: no entry of our own is looked for earlier
SMALL_FLEET_PROCESSES = 10  # below, the pause varies less (sidekiq scheduled.rb)


@dataclass(frozen=True, slots=True)
class DueSource:
    """A sorted set whose entries are due at their score, epoch seconds.

    enqueue: (entry, now) → what becomes of a due entry.  It raises MalformedPayload for what is not a job, and what
    client middleware raises.
    """

    key: str
    enqueue: Callable[[bytes, float], Move]


class Moved(NamedTuple):
    """What a BatchSource has done.

    entries: how many it has moved.  now: the time that it compared, epoch seconds.  next_at: when its next
    entry is due by that clock, inf for never; None when more are due.
    """

    entries: int
    now: float
    next_at: float | None


class BatchSource(Protocol):
    """A sorted set whose entries are due at their score, and that moves its entries itself."""

    key: str

    def move(self, now: float) -> Moved:
        """Move some of what is due.  Raises RedisRefused if the set cannot be used; other StoreErrors."""
        ...


def sidekiq_sources(keys: Keys, setup: Setup) -> list[DueSource]:
    """Return the retry set and the schedule set."""
    return [DueSource(key, partial(enqueued, setup)) for key in (keys.retry, keys.schedule)]


def poll_pause(processes: int, interval: float, rng: Random) -> float:
    """Return the seconds until the next poll, so that `processes` together poll once per `interval` on average."""
    average = max(1, processes) * interval
    if processes < SMALL_FLEET_PROCESSES:
        return average * (rng.random() + 0.5)
    return average * rng.random() * 2


class Poller(Service):
    """sources: what it serves; None for the retry set and the schedule set.

    upkeep: called at the start and at each poll, in order.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        on_crash: Callable[[str, Exception], None],
        sources: Iterable[DueSource | BatchSource] | None = None,
        upkeep: Iterable[Callable[[], None]] = (),
    ) -> None:
        super().__init__("poller", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._keys = engine.store.keys
        served = sidekiq_sources(self._keys, runtime.setup) if sources is None else sources
        self._sources: dict[str, DueSource | BatchSource] = {source.key: source for source in served}
        self._due_times = DueTimes(runtime.rng)
        self._refused = RefusedKeys(runtime)
        self._upkeep = tuple(upkeep)
        self._trim_wanted = False
        self._written: dict[str, float] = {}  # source → monotonic seconds when the first entry of this process is due
        self._written_lock = threading.Lock()
        self._poll_at = inf  # monotonic seconds, of the next poll
        self._wake_at = inf  # the same of the end of the wait; inf while it does not wait
        self._woken = threading.Event()

    def run(self) -> None:
        interval = self._runtime.config.average_scheduled_poll_interval
        # Sidekiq waits 10 to 15 s before its first poll; an interval set below that wants its jobs sooner.
        pause = min(FIRST_WAIT_SECONDS, interval * 2) + self._runtime.rng.random() * interval
        self._poll_at = self._now() + pause
        is_new = True
        while not self.stopping.is_set():
            try:
                if is_new:
                    self._do_upkeep()
                    is_new = False
                self._wait_for_poll()
                processes = self._processes()
                pause = poll_pause(processes, interval, self._runtime.rng)
                self._poll_at = self._now() + pause
                self.poll(pause, processes)
            except StoreError as error:
                self._runtime.trouble("poller", error)
                self.pause(FALLBACK_PAUSE_SECONDS)

    def wake(self) -> None:
        self._woken.set()

    def expect(self, key: str, at: float) -> None:
        """Take note that this process writes an entry into a source.  at: epoch seconds.  From any thread."""
        due = self._now() + max(at - self._runtime.clock.now(), WRITE_SECONDS)
        if due >= self._poll_at:  # the poll learns of it
            return
        with self._written_lock:
            self._written[key] = min(due, self._written.get(key, inf))
        if due < self._wake_at:
            self._woken.set()

    def trim_soon(self) -> None:
        """Trim the dead set at the next poll: there was more to drop than one script does.  From any thread."""
        self._trim_wanted = True

    def poll(self, ahead: float = 0.0, processes: int = 1) -> int:
        """Move all that is due now; return how many entries.

        ahead: seconds from now; the time of the next entry that is due within them is learned.
        processes: in the fleet.
        One round trip to look, then one per source that has something due or due within `ahead`, and two per batch
        that moves.  Raises StoreError when Redis is away.
        """
        self._due_times.begin(processes)
        moved = self._move_due(self._sources_with_due(ahead))
        self._trim()
        self._do_upkeep()
        return moved

    def _do_upkeep(self) -> None:
        for step in self._upkeep:
            step()

    # 1. wait

    def _wait_for_poll(self) -> None:
        """Wait for the next poll; move entries that are known to become due before it at their time."""
        while not self.stopping.is_set():
            self._take_written()
            if self.stopping.is_set():  # its wake may have been taken for that of an entry
                return
            wake_at = self._due_times.wake_at()
            self._wake_at = min(wake_at, self._poll_at)
            is_woken = self._woken.wait(max(0.0, self._wake_at - self._now()))
            self._wake_at = inf
            if is_woken:
                continue
            if wake_at >= self._poll_at:
                return
            self.move_known()

    def _take_written(self) -> None:
        self._woken.clear()
        with self._written_lock:
            written, self._written = self._written, {}
        for key, due in written.items():
            self._due_times.expect(key, due)

    def move_known(self) -> int:
        """Move the entries that are known to be due by now; return how many.

        One round trip per source, and one per batch that moves.  Raises StoreError when Redis is away.
        """
        keys = self._due_times.take_due(self._now())
        moved = self._move_due(keys)
        self._due_times.woke(self._now(), in_vain=bool(keys) and not moved)
        return moved

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    def _processes(self) -> int:
        """Return how many processes there are; 1 where the key is broken, which the heartbeat reports."""
        try:
            count: int = self._engine.store.call("SCARD", self._keys.processes)
        except RedisRefused as error:
            if is_outage(error):
                raise
            return 1
        return count

    # 2. read

    def _sources_with_due(self, ahead: float) -> list[str]:
        """Return the keys under which something is due within so many seconds.

        One that cannot be read is among them, so that the read says why.
        """
        until = repr(self._runtime.clock.now() + ahead)
        with self._engine.store.borrowed() as connection:
            counts = connection.exchange([("ZCOUNT", key, "-inf", until) for key in self._sources])
        return [key for key, count in zip(self._sources, counts, strict=True) if count != 0]

    def _move_due(self, keys: Iterable[str]) -> int:
        """Move all that is due in these sources; return how many entries."""
        moved, waiting = 0, deque(keys)
        while waiting and not self.stopping.is_set():
            key = waiting.popleft()
            try:
                count, is_all = self._move_some(self._sources[key])
                self._refused.forget(key)
            except RedisRefused as error:  # this source is of no use, and holds up no other
                self._refused.remember(key, str(error))
                continue
            moved += count
            if not is_all:
                waiting.append(key)  # behind the others: a million retries hold up no schedule
        return moved

    def _move_some(self, source: DueSource | BatchSource) -> tuple[int, bool]:
        """Move a batch of a source's due entries; return how many, and whether these were all."""
        asked = self._now()
        if not isinstance(source, DueSource):
            moved = source.move(self._runtime.clock.now())
            if moved.next_at is not None:
                self._due_times.learn(source.key, asked + moved.next_at - moved.now)
            return moved.entries, moved.next_at is not None
        due = self._engine.read_due(source.key, self._runtime.clock.now())
        if due.next_at is not None:
            self._due_times.learn(source.key, asked + due.next_at - due.now)
        if not due.entries:
            return 0, True
        moves = [self._prepare(source, entry, due.now) for entry in due.entries]
        return self._move(source.key, moves, due.now), due.next_at is not None

    # 3. prepare

    def _prepare(self, source: DueSource, old: bytes, now: float) -> Move:
        """Return what becomes of a due entry."""
        move = guarded(partial(self._unprepared, old, now), source.enqueue, old, now)
        if move.verb == "push" and self._refused.holds(self._keys.queue(move.queue)):
            return _deferred(old, now)
        return move

    def _unprepared(self, old: bytes, now: float, raised: BaseException) -> Move:
        """Return what becomes of a due entry that cannot be enqueued: bytes that are no job are buried."""
        if is_a(raised, MalformedPayload):
            error = as_exception(raised)
            self._runtime.setup.notify_error_handlers(error, {"context": "malformed payload", "payload": old})
            return Move(old, "bury", "", wrap(old, DEFAULT_QUEUE, error, now))
        context = {"context": "client middleware", "job": read(old)}
        self._runtime.setup.notify_error_handlers(as_exception(raised), context)
        return _deferred(old, now)  # the middleware may succeed the next time

    # 4. move

    def _move(self, source: str, moves: Sequence[Move], now: float) -> int:
        """Move entries, or put them off; return how many moved.  Raises RedisRefused where neither is allowed."""
        try:
            count, refusals = self._engine.move_due(source, moves, now)
        except RedisRefused:  # as a whole: one of its keys is forbidden, and the words may not say which
            return self._move_by_key(source, moves, now)
        for words in refusals:
            self._refused.log(words, words)
        if not refusals:
            self._refused.forget(*{self._keys.queue(move.queue) for move in moves if move.verb == "push"})
        return count

    def _move_by_key(self, source: str, moves: Sequence[Move], now: float) -> int:
        """Move entries, those together that need the same key beside their own."""
        moved = 0
        by_key: dict[str, list[Move]] = {}
        for move in moves:
            by_key.setdefault(self._other_key(move), []).append(move)
        for key, group in by_key.items():
            try:
                count, _ = self._engine.move_due(source, group, now)
                moved += count
            except RedisRefused as error:
                self._engine.move_due(source, [_deferred(move.old, now) for move in group], now)
                self._refused.remember(key or source, str(error))
        return moved

    def _other_key(self, move: Move) -> str:
        """Return the key to which an entry goes, "" for none."""
        if move.verb == "push":
            return self._keys.queue(move.queue)
        return self._keys.dead if move.verb == "bury" else ""

    # 5. trim

    def _trim(self) -> None:
        while self._trim_wanted and not self.stopping.is_set():
            self._trim_wanted = False  # first: whoever buries meanwhile may want it again
            self._trim_wanted |= self._engine.trim_dead(self._runtime.clock.now()).has_more


def _deferred(old: bytes, now: float) -> Move:
    return Move(old, "defer", "", repr(now + REFUSED_ENTRY_DELAY_SECONDS).encode())


class RefusedKeys:
    """Keys that Redis has refused: not asked for within REFUSED_ENTRY_DELAY_SECONDS; each refusal is logged once.

    One thread.  A refusal is over at the next use that succeeds; MAX_REMEMBERED_KEYS are remembered.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._until: dict[str, float] = {}  # key → monotonic second from which it is asked for again
        self._logged: dict[str, str] = {}  # key, or words that name one → Redis' words

    def holds(self, key: str) -> bool:
        return self._until.get(key, 0.0) > self._runtime.clock.monotonic()

    def remember(self, key: str, words: str) -> None:
        """Ask for a key no more for a while."""
        if len(self._until) >= MAX_REMEMBERED_KEYS:
            self._until.clear()
        self._until[key] = self._runtime.clock.monotonic() + REFUSED_ENTRY_DELAY_SECONDS
        self.log(key, words)

    def log(self, key: str, words: str) -> None:
        """Log a refusal of Redis, unless it was logged before."""
        if self._logged.get(key) == words:
            return
        if len(self._logged) >= MAX_REMEMBERED_KEYS:
            self._logged.clear()
        self._logged[key] = words
        named = words if f"key {key}" in words or words == key else f"{words} (key {key})"
        self._runtime.events.emit("redis_refused", operation="a move of what is due", error=named)

    def forget(self, *keys: str) -> None:
        """Take note that these can be used."""
        for key in keys:
            self._until.pop(key, None)
            self._logged.pop(key, None)
