"""Clock: reads the time from the operating system.  Code receives a clock as an argument.

`now()` is for times that are stored or shown (epoch seconds), `monotonic()` for durations and deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "RunningClock", "SystemClock", "WorkerClock", "zone"]

MIN_STANDSTILL_SECONDS = 2.0  # a reading that is this late counts as a standstill


class Clock(Protocol):
    """All readings in float seconds.

    cpu, process_cpu: used by this thread, by this process so far; system calls, ten times as slow.
    """

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def cpu(self) -> float: ...

    def process_cpu(self) -> float: ...


class SystemClock:
    """The real clock."""

    @staticmethod
    def now() -> float:
        """Return the epoch second; looked up in `time` at each call, where tools for tests replace it."""
        return time.time()

    # Bound directly, without a frame of Python, because such tools may stop it: deadlines go on all the same.
    monotonic = staticmethod(time.monotonic)
    cpu = staticmethod(time.thread_time)
    process_cpu = staticmethod(time.process_time)


class WorkerClock(SystemClock):
    """The real clock in a worker, where no tool for tests replaces it: each job reads it twice."""

    now = staticmethod(time.time)


def zone() -> str:
    """Return the names of the time zone that this process uses, as C's library has read them last."""
    return "/".join(time.tzname)


class RunningClock(SystemClock):
    """The real clock, whose monotonic() leaves out the time in which its process stood still.

    A frozen host (docker pause, a suspended virtual machine, a live migration) freezes the supervisor together with its
    workers: without this, all deadlines would have passed at the thaw.  For a loop of one thread that reads it at
    least every `longest_pause` seconds: a longer gap counts as a standstill.
    """

    def __init__(self, longest_pause: float, source: Callable[[], float] = time.monotonic) -> None:
        self._longest_pause = longest_pause
        self._source = source
        self._last = source()
        self.stood_still = 0.0  # seconds, in all
        self._taken = 0.0  # of these

    def monotonic(self) -> float:
        now = self._source()
        gap, self._last = now - self._last, now
        if gap > self._longest_pause + MIN_STANDSTILL_SECONDS:
            self.stood_still += gap - self._longest_pause
        return now - self.stood_still

    def take_standstill(self) -> float:
        """Return the seconds for which the process has stood still since the last call."""
        seconds, self._taken = self.stood_still - self._taken, self.stood_still
        return seconds
