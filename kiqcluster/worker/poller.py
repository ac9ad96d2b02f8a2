"""Poller: moves due jobs of the retry and schedule sets to their queues.

Runs in: its own thread; it goes on while the process is quiet, so a quiet fleet misses nothing.
1. wait       a random time, so that a fleet polls once per `average_scheduled_poll_interval` without coordination
2. read       the entries that are due, at most MAX_DUE and MAX_DUE_BYTES at a time, of both sets in turns
3. prepare    client middleware, as for any push (reenqueue.py); what is no job goes to the dead set with its reason
4. move       one script, which moves only what is still there and due (a second poller may be Ruby's).  What Redis
              refuses holds up only itself: where a whole script is refused (an ACL forbids one queue), its entries go
              key by key, and those of the refused one are due again in a minute, unasked until then
5. trim       the rest of what a burial found too much in the dead set

Counterpart: sidekiq scheduled.rb; its window between ZREM and LPUSH is closed here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from random import Random

from kiqcluster.errors import MalformedPayload, RedisRefused, StoreError
from kiqcluster.ipc.forks import exit_forked_children
from kiqcluster.process.runtime import Runtime
from kiqcluster.process.service import Service
from kiqcluster.reenqueue import DEFAULT_QUEUE, enqueued
from kiqcluster.sidekiq.payload import read, wrap
from kiqcluster.store.engine import DEFERRAL, Engine
from kiqcluster.store.entry_moves import Move

__all__ = ["Poller", "poll_pause"]

FIRST_WAIT = 10.0  # seconds after boot, so that the process is registered before it counts the fleet
FALLBACK_PAUSE = 5.0  # seconds until the next poll when the fleet could not be counted
MAX_REMEMBERED = 1_000  # keys that Redis has refused
SMALL_FLEET = 10  # processes; below, the pause varies less (sidekiq scheduled.rb)


def poll_pause(processes: int, interval: float, rng: Random) -> float:
    """Return the seconds until the next poll, so that `processes` together poll once per `interval` on average."""
    average = max(1, processes) * interval
    if processes < SMALL_FLEET:
        return average * (rng.random() + 0.5)
    return average * rng.random() * 2


class Poller(Service):
    """See the module's docstring."""

    def __init__(self, runtime: Runtime, engine: Engine, on_crash: Callable[[str, Exception], None]) -> None:
        super().__init__("poller", on_crash)
        self._runtime = runtime
        self._engine = engine
        self._keys = engine.store.keys
        self._refused = RefusedKeys(runtime)
        self._trim_wanted = False

    def run(self) -> None:
        interval = self._runtime.config.average_scheduled_poll_interval
        # Sidekiq waits 10 to 15 s before its first poll; an interval set below that wants its jobs sooner.
        self.pause(min(FIRST_WAIT, interval * 2) + self._runtime.rng.random() * interval)
        while not self.stopping.is_set():
            try:
                self.poll()
                pause = poll_pause(self._processes(), interval, self._runtime.rng)
            except StoreError as error:
                self._runtime.trouble("poller", error)
                pause = FALLBACK_PAUSE
            self.pause(pause)

    def trim_soon(self) -> None:
        """Trim the dead set at the next poll: there was more to drop than one script does.  From any thread."""
        self._trim_wanted = True

    def poll(self) -> int:
        """Move all that is due now; return how many entries.

        One round trip to look, two per batch of a set that has something due.  Raises StoreError when Redis is away.
        """
        moved, sources = 0, deque(self._sets_with_due())
        while sources and not self.stopping.is_set():
            source = sources.popleft()
            try:
                count = self._move_some(source)
                self._refused.forget(source)
            except RedisRefused as error:  # this set is of no use, and holds up no other
                self._refused.remember(source, str(error))
                continue
            if count is not None:
                moved += count
                sources.append(source)  # behind the other: a million retries hold up no schedule
        self._trim()
        return moved

    # 2. read

    def _sets_with_due(self) -> list[str]:
        """Return the sets in which something is due; one that cannot be read counts, so that the read says why."""
        sources, now = (self._keys.retry, self._keys.schedule), repr(self._runtime.clock.now())
        with self._engine.store.borrowed() as link:
            counts = link.exchange([("ZCOUNT", source, "-inf", now) for source in sources])
        return [source for source, count in zip(sources, counts, strict=True) if count != 0]

    def _move_some(self, source: str) -> int | None:
        """Move a batch of what is due in a set; return how many entries, None when nothing was due any more."""
        due = self._engine.read_due(source, self._runtime.clock.now())
        if not due.entries:
            return None
        return self._move(source, [self._prepare(entry, due.now) for entry in due.entries], due.now)

    def _processes(self) -> int:
        count: int = self._engine.store.call("SCARD", self._keys.processes)
        return count

    # 3. prepare

    def _prepare(self, old: bytes, now: float) -> Move:
        """Return what becomes of a due entry."""
        try:
            with exit_forked_children():
                move = enqueued(self._runtime.setup, old, now)
        except MalformedPayload as error:
            self._runtime.setup.notify_error_handlers(error, {"context": "malformed payload", "payload": old})
            return Move(old, "bury", "", wrap(old, DEFAULT_QUEUE, error, now))
        except Exception as error:  # noqa: BLE001  # the application's code must not stop the poller
            self._runtime.setup.notify_error_handlers(error, {"context": "client middleware", "job": read(old)})
            return _deferred(old, now)  # the link may work the next time
        if move.verb == "push" and self._refused.holds(self._keys.queue(move.queue)):
            return _deferred(old, now)
        return move

    # 4. move

    def _move(self, source: str, moves: Sequence[Move], now: float) -> int:
        """Move entries, or put them off; return how many moved.  Raises RedisRefused where neither is allowed."""
        try:
            count, refusals = self._engine.move_due(source, moves, now)
        except RedisRefused:  # as a whole: one of its keys is forbidden, and the words may not say which
            return self._move_by_key(source, moves, now)
        for words in refusals:
            self._refused.say(words, words)
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
    return Move(old, "defer", "", repr(now + DEFERRAL).encode())


class RefusedKeys:
    """Keys that Redis has refused lately: nobody asks for them again within DEFERRAL, and each refusal is said once.

    One thread.  A refusal is over at the next use that succeeds; MAX_REMEMBERED are remembered.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._until: dict[str, float] = {}  # key → monotonic second from which it is asked for again
        self._said: dict[str, str] = {}  # key, or words that name one → Redis' words

    def holds(self, key: str) -> bool:
        return self._until.get(key, 0.0) > self._runtime.clock.monotonic()

    def remember(self, key: str, words: str) -> None:
        """Ask for a key no more for a while."""
        if len(self._until) >= MAX_REMEMBERED:
            self._until.clear()
        self._until[key] = self._runtime.clock.monotonic() + DEFERRAL
        self.say(key, words)

    def say(self, key: str, words: str) -> None:
        """Say what Redis refuses, unless it was said before."""
        if self._said.get(key) == words:
            return
        if len(self._said) >= MAX_REMEMBERED:
            self._said.clear()
        self._said[key] = words
        named = words if f"key {key}" in words or words == key else f"{words} (key {key})"
        self._runtime.events.emit("redis_refused", operation="a move of what is due", error=named)

    def forget(self, *keys: str) -> None:
        """Take note that these can be used."""
        for key in keys:
            self._until.pop(key, None)
            self._said.pop(key, None)
