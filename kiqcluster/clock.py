"""Time, passed in: the only module that asks the operating system what time it is.

`now()` is for what is stored or shown (epoch seconds), `monotonic()` for durations and deadlines.
"""

from __future__ import annotations

import time
from typing import Protocol

__all__ = ["Clock", "SystemClock", "utc_date"]


class Clock(Protocol):
    """All readings in float seconds.  cpu: used by this thread so far; a system call, at ten times the price."""

    def now(self) -> float: ...

    def monotonic(self) -> float: ...

    def cpu(self) -> float: ...


class SystemClock:
    """The real clock."""

    # Bound directly: a job's path reads the clock twice, and a Python frame around it would double the cost.
    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    cpu = staticmethod(time.thread_time)


def utc_date(now: float) -> str:
    """Return the UTC date of an epoch second as YYYY-MM-DD, the form in Sidekiq's stat keys."""
    return time.strftime("%Y-%m-%d", time.gmtime(now))
