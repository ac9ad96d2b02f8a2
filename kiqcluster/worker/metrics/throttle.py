"""Throttle: keeps repeated work from taking more than a share of the time."""

from __future__ import annotations

from types import TracebackType

from kiqcluster.process.clock import Clock

__all__ = ["Throttle"]


class Throttle:
    """Measures each go, used as a context, and says when the next one is due.

    share: of one core's time, at most.  longest: seconds from the beginning of a go until the next one is due, at most;
    beyond it the share is exceeded.  One thread's: its CPU seconds count, not its waits for the interpreter.
    """

    def __init__(self, clock: Clock, share: float, longest: float) -> None:
        self._clock = clock
        self._share, self._longest = share, longest
        self._due_at = self._began = self._used = 0.0

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._due_at

    def __enter__(self) -> None:
        self._began, self._used = self._clock.monotonic(), self._clock.cpu()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        took = self._clock.cpu() - self._used
        self._due_at = self._began + min(took / self._share, self._longest)
