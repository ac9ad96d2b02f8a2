"""Reach: whether Redis is there, and what it refuses; each is said once, when it begins and when it ends.

1. lost       no answer: redis_lost, once; `pause` waits a little longer each time
2. refused    an answer, but no: redis_refused, until it refuses something else or nothing
3. back       an answer: redis_back, with the seconds that it was away

One thread at a time: the leader's.  `is_there` may be read by any.
"""

from __future__ import annotations

from threading import Event

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.process.backoff import jittered
from kiqcluster.process.runtime import Runtime

__all__ = ["Reach"]

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between tries while Redis is away


class Reach:
    """What one user of Redis knows of it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._failures = 0
        self._lost_at = 0.0  # monotonic seconds; 0 while it is there
        self._complaint = ""

    @property
    def is_there(self) -> bool:
        """Whether the last exchange had an answer."""
        return not self._lost_at

    def failed(self, operation: str, error: StoreError) -> None:
        """Say how an exchange has failed."""
        if isinstance(error, RedisRefused):
            self.refused(operation, str(error))
        elif not self._lost_at:
            self._lost_at = self._runtime.clock.monotonic()
            self._runtime.events.emit("redis_lost", error=str(error))

    def refused(self, operation: str, reason: str) -> None:
        """Say what Redis refuses; once, until it refuses something else or nothing."""
        if reason != self._complaint:
            self._complaint = reason
            self._runtime.events.emit("redis_refused", operation=operation, error=reason)

    def agreed(self) -> None:
        """Take note that it refuses nothing."""
        self._complaint = ""

    def back(self) -> None:
        """Take note that it answers."""
        self._failures = 0
        if self._lost_at:
            self._runtime.events.emit("redis_back", seconds=self._runtime.clock.monotonic() - self._lost_at)
            self._lost_at = 0.0

    def pause(self, ending: Event) -> None:
        """Wait before the next try, or until `ending` is set."""
        ending.wait(jittered(self._failures, FIRST_PAUSE, LONGEST_PAUSE, self._runtime.rng))
        self._failures += 1
