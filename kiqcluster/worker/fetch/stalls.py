"""Stalls: whether this process could run at all while its units waited.

A host that stands still for 100 ms looks like a job that runs for 100 ms, and a penalty stops prefetch for seconds.
The difference: the manager, who looks every few milliseconds, comes late as well, and no CPU time was used.

1. record    a moment at which this process runs
2. check     the manager looks: did the process stand still since?  Then waits count from now on

No I/O and no lock: whoever holds the coordinator's lock calls this.
"""

from __future__ import annotations

from math import inf

from kiqcluster.process.clock import Clock

__all__ = ["MIN_STALL_SECONDS", "STALL_INTERVAL_SECONDS", "StallDetector"]

MIN_STALL_SECONDS = 0.04  # between two looks of the manager, who looks twice as often while units wait
MAX_CPU_SHARE = 0.5  # of a core, in a stall: a job that holds the interpreter lock uses more
STALL_INTERVAL_SECONDS = 1.0  # more stalls than one in this time are the fault of jobs, not of the host


class StallDetector:
    """What one process knows of its stalls.

    over_at: monotonic seconds at which the last one was over.
    """

    def __init__(self, clock: Clock) -> None:
        self._process_cpu = clock.process_cpu
        self._seen_at, self._seen_cpu = inf, 0.0
        self.over_at = -inf

    def record(self, now: float) -> None:
        """Remember that the process runs.  now: monotonic seconds."""
        self._seen_at, self._seen_cpu = now, self._process_cpu()

    def check(self, now: float) -> None:
        """Look whether the process stood still since the last moment at which it ran."""
        seconds, cpu = now - self._seen_at, self._seen_cpu
        self.record(now)
        is_idle = self._seen_cpu - cpu < MAX_CPU_SHARE * seconds
        if seconds > MIN_STALL_SECONDS and is_idle and now > self.over_at + STALL_INTERVAL_SECONDS:
            self.over_at = now
