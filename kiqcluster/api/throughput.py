"""Throughput: jobs per second, from what the counters in Redis said lately.  Pure.

Ruby's processes count every ten seconds only, ours as they go; so it is measured over a window longer than that, or
over as much of it as there is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["WINDOW_SECONDS", "Rate", "Throughput"]

WINDOW_SECONDS = 12.0  # seconds


@dataclass(frozen=True, slots=True)
class Rate:
    """Jobs per second; None while there is nothing to compare with."""

    processed: float | None = None
    failed: float | None = None


class Throughput:
    """Told the counters as they are seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int, int]] = deque()

    def add(self, now: float, processed: int, failed: int) -> Rate:
        """Return the rate by now.  now: monotonic seconds."""
        if self._seen and (processed < self._seen[-1][1] or failed < self._seen[-1][2]):
            self._seen.clear()  # somebody has reset the counters
        self._seen.append((now, processed, failed))
        while len(self._seen) > 2 and self._seen[1][0] <= now - WINDOW_SECONDS:
            self._seen.popleft()
        then, processed_then, failed_then = self._seen[0]
        if now <= then:
            return Rate()
        return Rate((processed - processed_then) / (now - then), (failed - failed_then) / (now - then))
