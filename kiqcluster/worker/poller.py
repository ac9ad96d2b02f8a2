"""Poller: moves due jobs of the retry and schedule sets to their queues.

Runs in: its own thread; it goes on while the process is quiet, so a quiet fleet misses nothing.
1. wait       a random time, so that a fleet polls once per `average_scheduled_poll_interval` without coordination
2. read       the entries that are due in both sets, at most 100 at a time
3. prepare    client middleware, as for any push (entries.py); what is no job goes to the dead set with its reason
4. move       one script, which moves only what is still there and due (a second poller may be Ruby's)

Counterpart: sidekiq scheduled.rb; its window between ZREM and LPUSH is closed here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kiqcluster.entries import DEFAULT_QUEUE, enqueued
from kiqcluster.errors import MalformedPayload, StoreError
from kiqcluster.payload import read, wrap
from kiqcluster.runtime import Runtime
from kiqcluster.service import Service
from kiqcluster.store.engine import DEFERRAL, Engine
from kiqcluster.store.moves import Move

__all__ = ["Poller", "poll_pause"]

BATCH = 100  # entries moved by one script
FIRST_WAIT = 10.0  # seconds after boot, so that the process is registered before it counts the fleet
FALLBACK_PAUSE = 5.0  # seconds until the next poll when the fleet could not be counted
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

    def poll(self) -> int:
        """Move all that is due now; return how many entries.  One read, and one of a set and one script per 100."""
        sources = (self._keys.retry, self._keys.schedule)
        moved = 0
        for source, due in zip(sources, self._read_due(*sources), strict=True):
            while due and not self.stopping.is_set():
                now = self._runtime.clock.now()
                moved += self._engine.move_due(source, [self._prepare(entry, now) for entry in due], now)
                (due,) = self._read_due(source)
        return moved

    def _read_due(self, *sources: str) -> list[list[bytes]]:
        now = repr(self._runtime.clock.now())
        return self._engine.store.pipeline(
            [("ZRANGEBYSCORE", source, "-inf", now, "LIMIT", 0, BATCH) for source in sources]
        )

    def _processes(self) -> int:
        count: int = self._engine.store.call("SCARD", self._keys.processes)
        return count

    def _prepare(self, old: bytes, now: float) -> Move:
        """Return what becomes of a due entry."""
        try:
            return enqueued(self._runtime.setup, old, now)
        except MalformedPayload as error:
            self._runtime.setup.report(error, {"context": "malformed payload", "payload": old})
            return Move(old, "bury", "", wrap(old, DEFAULT_QUEUE, error, now))
        except Exception as error:  # noqa: BLE001  # the application's code must not stop the poller
            self._runtime.setup.report(error, {"context": "client middleware", "job": read(old)})
            return Move(old, "defer", "", repr(now + DEFERRAL).encode())  # the link may work the next time
