"""Overflow: counts and logs the jobs that the dead set drops to keep its limits.

Runs in: whichever thread settles or moves (`note`).
1. count   for /metrics, by reason (metrics.py)
2. log     entries dropped because there were too many: the first at once, then their number once an hour
3. go on   a script drops a slice; the poller is asked for the rest
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from threading import Lock

from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime
from kiqcluster.store.entry_moves import Dropped

__all__ = ["Overflow"]

LOG_PERIOD_SECONDS = 3_600.0  # between two lines about a dead set that is full


class Overflow:
    """trim_soon: asks for another slice.  The lock guards the count that is not logged yet."""

    def __init__(self, runtime: Runtime, metrics: JobMetrics, trim_soon: Callable[[], None]) -> None:
        self._runtime = runtime
        self._metrics = metrics
        self._trim_soon = trim_soon
        self._lock = Lock()
        self._unlogged = 0
        self._logged_at = -inf  # monotonic seconds

    def note(self, dropped: Dropped) -> None:
        """Count the entries that a burial has dropped."""
        self._metrics.count_dead_dropped(*dropped)
        if dropped.has_more:
            self._trim_soon()
        count = self._due_to_log(dropped.too_many)
        if count:
            largest = self._runtime.config.dead_max_jobs
            self._runtime.events.emit("dead_set_overflows", count=count, largest=largest)

    def _due_to_log(self, count: int) -> int:
        """Return how many to log now: 0, or all since the last line."""
        now = self._runtime.clock.monotonic()
        with self._lock:
            self._unlogged += count
            if not self._unlogged or now < self._logged_at + LOG_PERIOD_SECONDS:
                return 0
            self._logged_at = now
            count, self._unlogged = self._unlogged, 0
            return count
