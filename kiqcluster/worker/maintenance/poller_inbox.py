"""Poller inbox: what other threads of a worker tell its poller.

Made before the poller, for parts that are made before it need it: those that run jobs, write ticks, or bury.
1. expect       an entry of this process becomes due: the poller looks for it in time
2. trim_soon    the dead set has more to drop than one script does
3. wait_until   the poller waits, until one of these, or a stop, wakes it
"""

from __future__ import annotations

import threading
from math import inf

from kiqcluster.process.runtime import Runtime
from kiqcluster.worker.maintenance.due_times import gathered
from kiqcluster.worker.maintenance.duties import longest_gap

__all__ = ["PollerInbox"]

WRITE_SECONDS = 0.05  # until an outcome is written: no entry of our own is looked for earlier


class PollerInbox:
    """One poller takes from it; any thread adds.  `_lock` guards `_written`."""

    def __init__(self, runtime: Runtime) -> None:
        self.is_trim_wanted = False
        self._clock = runtime.clock
        self._longest_gap = longest_gap(runtime.config.average_scheduled_poll_interval)
        self._written: set[tuple[str, float]] = set()  # source, and when an entry of this process is due (gathered)
        self._lock = threading.Lock()
        self._wake_at = inf  # monotonic seconds of the end of the wait; inf while the poller does not wait
        self._woken = threading.Event()

    def expect(self, key: str, at: float) -> None:
        """Take note that this process writes an entry into a source.  at: epoch seconds.  From any thread."""
        now, seconds = self._clock.monotonic(), max(at - self._clock.now(), WRITE_SECONDS)
        if seconds >= self._longest_gap:  # the next poll learns of it, whoever makes that
            return
        due = gathered(now + seconds)
        with self._lock:
            self._written.add((key, due))
        if due < self._wake_at:
            self._woken.set()

    def trim_soon(self) -> None:
        """Have the dead set trimmed at the next look.  From any thread."""
        self.is_trim_wanted = True

    def wake(self) -> None:
        """End the wait of the poller.  From any thread."""
        self._woken.set()

    def take_written(self) -> set[tuple[str, float]]:
        """Return the entries of which this was told since the last call: source, and monotonic second of each."""
        self._woken.clear()
        with self._lock:
            written, self._written = self._written, set()
        return written

    def wait_until(self, at: float) -> bool:
        """Wait until a monotonic second; return whether something came before it."""
        self._wake_at = at
        is_woken = self._woken.wait(max(0.0, at - self._clock.monotonic()))
        self._wake_at = inf
        return is_woken
