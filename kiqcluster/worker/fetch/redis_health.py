"""Redis health: whether Redis answers, and what it refuses.  It reports each change once.

1. on_error      no answer: event redis_lost, once; `pause` waits a little longer after each failure
2. on_refusal    Redis answers with an error: event redis_refused, once for each text
3. on_reply      Redis answers: event redis_back, with the seconds that it was away

Runs in: one thread at a time, the one that flushes.  Any thread may read `is_reachable`.
"""

from __future__ import annotations

from threading import Event

from kiqcluster.errors import RedisRefused, StoreError
from kiqcluster.process.backoff import jittered
from kiqcluster.process.runtime import Runtime

__all__ = ["RedisHealth"]

MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.05, 2.0  # between tries while Redis is away


class RedisHealth:
    """What one user of Redis knows about it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._failures = 0
        self._lost_at = 0.0  # monotonic seconds; 0 while it answers
        self._last_refusal = ""

    @property
    def is_reachable(self) -> bool:
        """Whether the last exchange got an answer."""
        return not self._lost_at

    def on_error(self, operation: str, error: StoreError) -> None:
        """Report that an exchange has failed."""
        if isinstance(error, RedisRefused):
            self.on_refusal(operation, str(error))
        elif not self._lost_at:
            self._lost_at = self._runtime.clock.monotonic()
            self._runtime.events.emit("redis_lost", error=str(error))

    def on_refusal(self, operation: str, reason: str) -> None:
        """Report what Redis refuses, unless that was the last report."""
        if reason != self._last_refusal:
            self._last_refusal = reason
            self._runtime.events.emit("redis_refused", operation=operation, error=reason)

    def on_nothing_refused(self) -> None:
        """Forget the last refusal: if it comes again, it is reported again."""
        self._last_refusal = ""

    def on_reply(self) -> None:
        """Report that Redis answers again, if it did not."""
        self._failures = 0
        if self._lost_at:
            self._runtime.events.emit("redis_back", seconds=self._runtime.clock.monotonic() - self._lost_at)
            self._lost_at = 0.0

    def pause(self, ending: Event) -> None:
        """Wait before the next try, or until `ending` is set."""
        ending.wait(jittered(self._failures, MIN_RETRY_SECONDS, MAX_RETRY_SECONDS, self._runtime.rng))
        self._failures += 1
