"""Poller: moves due entries of the retry and schedule sets, and of other sources, to their queues.

Runs in: its own thread; it goes on while the process is quiet, so a quiet fleet misses nothing.
1. look       claim the duties of the fleet that are due, polls of the sources among them (duties.py); do the others
2. read       the entries that are due, at most MAX_DUE and MAX_DUE_BYTES at a time, of all sources in turns; and when
              the next one is due
3. prepare    client middleware, as for any push (reenqueue.py); what is not a job goes to the dead set with its reason
4. move       one script, which moves only what is still there and due (a second poller may be Ruby's).  What Redis
              refuses holds up only itself: where a whole script is refused (an ACL forbids one queue), its entries go
              key by key, and those of the refused one are due again in a minute, unasked until then
5. trim       the rest of what a burial found too much in the dead set
6. wait       for the next look; but no longer than until an entry is due that this process knows of, or has written
              itself (due_times.py)

A poll costs one command per source while nothing is due before the next poll.
Counterpart: sidekiq scheduled.rb; its window between ZREM and LPUSH is closed here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import NamedTuple, Protocol

from kiqcluster.client.reenqueue import DEFAULT_QUEUE, enqueued
from kiqcluster.errors import MalformedPayload, RedisRefused, StoreError, as_exception
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import read, wrap
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import REFUSED_ENTRY_DELAY_SECONDS, Engine
from kiqcluster.store.entry_moves import Move
from kiqcluster.store.wire import ErrorReply
from kiqcluster.worker.maintenance.due_times import DueTimes
from kiqcluster.worker.maintenance.duties import Duties, Duty, due_after, longest_gap
from kiqcluster.worker.maintenance.poller_inbox import PollerInbox

__all__ = ["BatchSource", "DueSource", "Moved", "Poller", "sidekiq_sources"]

OUTAGE_PAUSE_SECONDS = 1.0  # until the next look while Redis is away
MAX_REMEMBERED_KEYS = 1_000  # that Redis has refused


@dataclass(frozen=True, slots=True)
class DueSource:
    """A sorted set whose entries are due at their score, epoch seconds.

    enqueue: (entry, now) → what becomes of a due entry.  It raises MalformedPayload for what is not a job, and what
    client middleware raises.
    """

    key: str
    enqueue: Callable[[bytes, float], Move]

    @property
    def duty(self) -> str:
        """Name of the duty to poll it."""
        return self.key


class Moved(NamedTuple):
    """What a BatchSource has done.

    entries: how many it has moved.  now: the time that it compared, epoch seconds.  next_at: when its next
    entry is due by that clock, inf for never; None when more are due.
    """

    entries: int
    now: float
    next_at: float | None


class BatchSource(Protocol):
    """A sorted set whose entries are due at their score, and that moves its entries itself.

    duty: name of the duty to poll it, the same in all processes that know what to do with its entries.
    """

    key: str
    duty: str

    def move(self, now: float) -> Moved:
        """Move some of what is due.  Raises RedisRefused if the set cannot be used; other StoreErrors."""
        ...


def sidekiq_sources(keys: Keys, setup: Setup) -> list[DueSource]:
    """Return the retry set and the schedule set."""
    return [DueSource(key, partial(enqueued, setup)) for key in (keys.retry, keys.schedule)]


class Poller(Service):
    """sources: what it polls; None for the retry set and the schedule set.

    duties: of the fleet, that it has besides.  first: called at the start, in order, until none raises StoreError.
    inbox: None for one of its own.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        on_crash: Callable[[str, Exception], None],
        sources: Iterable[DueSource | BatchSource] | None = None,
        duties: Iterable[Duty] = (),
        first: Iterable[Callable[[], None]] = (),
        inbox: PollerInbox | None = None,
    ) -> None:
        super().__init__("poller", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._keys = engine.store.keys
        served = sidekiq_sources(self._keys, runtime.setup) if sources is None else sources
        self._sources: dict[str, DueSource | BatchSource] = {source.key: source for source in served}
        self._others = tuple(duties)
        self._interval = runtime.config.average_scheduled_poll_interval
        intervals = {source.duty: self._interval for source in self._sources.values()}
        self._duties = Duties(runtime, "poller", intervals | {duty.name: duty.interval for duty in self._others})
        self._due_times = DueTimes(runtime.rng)
        self._refused = RefusedKeys(runtime)
        self._first = tuple(first)
        self.inbox = PollerInbox(runtime) if inbox is None else inbox

    def run(self) -> None:
        is_new = True
        while not self.stopping.is_set():
            try:
                if is_new:
                    for step in self._first:
                        step()
                    is_new = False
                self.look()
                self._wait_for_look()
            except StoreError as error:
                self._runtime.trouble("poller", error)
                self.pause(OUTAGE_PAUSE_SECONDS)

    def wake(self) -> None:
        self.inbox.wake()

    def look(self) -> int:
        """Do what is due in the fleet and nobody has begun; return how many entries have moved.

        One round trip, and those of what it does.  Raises StoreError when Redis is away.
        """
        asked = self._now()
        claims = self._duties.claim()
        self._due_times.begin(claims.processes)
        claimed = {name for name, left in claims.left.items() if not left}
        for source in self._sources.values():
            if source.duty in claims.left.keys() - claimed:
                begun = asked - due_after(self._interval) + claims.left[source.duty]
                self._due_times.leave(source.key, begun)
        polled = [key for key, source in self._sources.items() if source.duty in claimed]
        moved = self._poll(polled, longest_gap(self._interval), until=self._duties.next_look)
        self._trim()
        for duty in self._others:
            if duty.name in claimed:
                self._do(duty)
        return moved

    def _do(self, duty: Duty) -> None:
        """Do a duty; a refusal of Redis (an ACL, memory) is reported once, and holds up no other."""
        try:
            duty.do()
            self._refused.forget(duty.name)
        except RedisRefused as error:
            if is_outage(error):
                raise
            self._refused.remember(duty.name, str(error))
            self._duties.leave_to_others(duty.name)

    def poll(self, ahead: float = 0.0, processes: int = 1) -> int:
        """Move all that is due now, whoever polls besides; return how many entries.

        ahead: seconds from now; the time of the next entry that is due within them is learned.
        processes: in the fleet.
        One round trip to look, then one per source that has something due or due within `ahead`, and two per batch
        that moves.  Raises StoreError when Redis is away.
        """
        self._due_times.begin(processes)
        moved = self._poll(list(self._sources), ahead)
        self._trim()
        return moved

    def _poll(self, keys: Sequence[str], ahead: float, until: float = inf) -> int:
        """Move all that is due in these sources.  until: as in _move_due."""
        for key in keys:
            self._due_times.follow(key, self._now())
        return self._move_due(self._with_due(keys, ahead), until)

    # 6. wait

    def _wait_for_look(self) -> None:
        """Wait for the next look; move entries that are known to become due before it at their time."""
        while not self.stopping.is_set():
            self._take_written()
            if self.stopping.is_set():  # its wake may have been taken for that of an entry
                return
            wake_at, look_at = self._due_times.wake_at(), self._duties.next_look
            if self.inbox.wait_until(min(wake_at, look_at)):
                continue
            if wake_at >= look_at:
                return
            self.move_known(look_at)

    def _take_written(self) -> None:
        for key, due in self.inbox.take_written():
            self._due_times.expect(key, due)

    def move_known(self, until: float = inf) -> int:
        """Move the entries that are known to be due by now; return how many.  until: as in _move_due.

        One round trip per source, and one per batch that moves.  Raises StoreError when Redis is away.
        """
        keys = self._due_times.take_due(self._now())
        moved = self._move_due(keys, until)
        self._due_times.woke(self._now(), in_vain=bool(keys) and not moved)
        return moved

    def _now(self) -> float:
        return self._runtime.clock.monotonic()

    # 2. read

    def _with_due(self, keys: Sequence[str], ahead: float) -> list[str]:
        """Return those of these keys under which something is due within so many seconds.

        One that cannot be read is among them, so that the read says why.
        """
        if not keys:
            return []
        until = repr(self._runtime.clock.now() + ahead)
        with self._engine.store.borrowed() as connection:
            counts = connection.exchange_each([("ZCOUNT", key, "-inf", until) for key in keys])
        pairs = zip(keys, counts, strict=True)
        return [key for key, count in pairs if isinstance(count, ErrorReply) or count]

    def _move_due(self, keys: Iterable[str], until: float = inf) -> int:
        """Move all that is due in these sources; return how many entries.

        until: monotonic seconds of the next look.  What is left then waits for it: no backlog holds up other duties.
        """
        moved, waiting = 0, deque(keys)
        while waiting and not self.stopping.is_set():
            key = waiting.popleft()
            if (now := self._now()) >= until:
                self._due_times.expect(key, now)
                continue
            try:
                count, is_all = self._move_some(self._sources[key])
                self._refused.forget(key)
            except RedisRefused as error:  # this source is of no use, and holds up no other
                self._refused.remember(key, str(error))
                self._duties.leave_to_others(self._sources[key].duty)
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
        """Return what becomes of a due entry that cannot be enqueued: bytes that are no job are buried.

        Client middleware may raise MalformedPayload as well: so the entry decides, and not the error.
        """
        try:
            job = read(old)
        except MalformedPayload as error:
            self._runtime.setup.notify_error_handlers(error, {"context": "malformed payload", "payload": old})
            return Move(old, "bury", "", wrap(old, DEFAULT_QUEUE, error, now))
        context = {"context": "client middleware", "job": job}
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
        while self.inbox.is_trim_wanted and not self.stopping.is_set():
            self.inbox.is_trim_wanted = False  # first: whoever buries meanwhile may want it again
            if self._engine.trim_dead(self._runtime.clock.now()).has_more:
                self.inbox.is_trim_wanted = True


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
