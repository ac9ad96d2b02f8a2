"""Once: a fault that each job of a class would report is reported once a minute by a process.

Price: a look into a dictionary for each fault.  Runs in: any thread; two that report at once may both do so.
"""

from __future__ import annotations

from kiqcluster.process.clock import SystemClock

__all__ = ["Once"]

SECONDS = 60.0
MAX_KEYS = 1_000  # whose last report is remembered; then all of them are forgotten


class Once:
    """Says whether a fault is to be reported now."""

    def __init__(self) -> None:
        self._now = SystemClock().monotonic
        self._next_by_key: dict[str, float] = {}

    def may(self, key: str) -> bool:
        """Return whether to report a fault, and remember that.  key: of the fault, the same for each job."""
        now = self._now()
        if now < self._next_by_key.get(key, 0.0):
            return False
        if len(self._next_by_key) >= MAX_KEYS:
            self._next_by_key = {}
        self._next_by_key[key] = now + SECONDS
        return True
