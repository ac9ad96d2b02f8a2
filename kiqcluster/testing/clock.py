"""A frozen clock, for tests of schedules and retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from kiqcluster.process.clock import SystemClock
from kiqcluster.process.durations import due_at

__all__ = ["FrozenClock", "frozen_clock"]


class FrozenClock:
    """The clock that kiqcluster uses in this process; it stands still until a test moves it."""

    def __init__(self, now: float) -> None:
        self._now = now

    def __repr__(self) -> str:
        return f"<FrozenClock {datetime.fromtimestamp(self._now, UTC).isoformat()}>"

    def now(self) -> float:
        """Return the epoch second."""
        return self._now

    def move(self, by: float | timedelta) -> None:
        """Move the clock forward by seconds or a timedelta, or back by a negative one."""
        self._now += by.total_seconds() if isinstance(by, timedelta) else by

    def set(self, at: float | datetime) -> None:
        """Set the clock to an epoch second or an aware datetime."""
        self._now = due_at(at, self._now)


@contextmanager
def frozen_clock(at: float | datetime | None = None) -> Iterator[FrozenClock]:
    """Freeze kiqcluster's clock for a `with` block, at a given time or now.  May be nested.

    The clock gives the times at which jobs are created, scheduled, due and retried.  The application's own clocks go
    on, and so do durations, deadlines and other processes, including a `kiq_cluster`.
    """
    clock = FrozenClock(SystemClock.now())
    if at is not None:
        clock.set(at)
    before = SystemClock.now
    SystemClock.now = staticmethod(clock.now)  # type: ignore[method-assign]
    try:
        yield clock
    finally:
        SystemClock.now = staticmethod(before)  # type: ignore[method-assign]
