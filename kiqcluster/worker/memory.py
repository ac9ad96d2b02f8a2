"""MemoryProbe: the bytes that the end of this process would free.

Shared pages count in part: after a fork, what each process seems to use is mostly the same memory.  The worker reads
that itself, since the kernel walks all its pages for it, some 30 ms for a gigabyte: too long for the supervisor's loop.
"""

from __future__ import annotations

from kiqcluster.ipc.operating_system import proportional_bytes
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import Config

__all__ = ["MemoryProbe"]

CHECK_SECONDS = 2.0  # between two looks at the memory


class MemoryProbe:
    """Measures the memory, where the configuration limits it."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._is_limited = bool(config.recycle_memory or config.recycle_memory_hard)
        self._clock = clock
        self._check_at = 0.0
        self._latest: int | None = None

    def proportional_bytes(self) -> int | None:
        """Return the proportional set size (PSS) at the latest check; None without a limit, or if it is not known."""
        now = self._clock.monotonic()
        if self._is_limited and now >= self._check_at:
            self._check_at = now + CHECK_SECONDS
            self._latest = proportional_bytes()
        return self._latest
