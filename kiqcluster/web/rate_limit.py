"""Rate limit: limits that keep a few clients from taking everything.

RateLimit       token buckets by key (a user, an address): so many at once, and so many a second after that
DownloadLimit   how many files are sent at a time: each keeps a thread of the server for as long as it is read
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Generator, Iterable
from typing import Self

from kiqcluster.process.clock import Clock

__all__ = ["DownloadLimit", "LimitedDownload", "RateLimit"]

MAX_KEYS = 10_000  # that are remembered; then those that are full again are forgotten


class RateLimit:
    """Buckets that fill up by themselves.  Thread-safe: `_lock` guards them."""

    def __init__(self, clock: Clock, capacity: float, per_second: float) -> None:
        self._clock = clock
        self._capacity = capacity
        self._per_second = per_second
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # what was left, and when (monotonic)

    def wait(self, key: str, cost: float = 1.0) -> float:
        """Return the seconds until so much is there, 0 if it is; nothing is taken."""
        with self._lock:
            return self._lack(self._left(key), cost)

    def take(self, key: str, cost: float = 1.0) -> float:
        """Take so much if it is there; return the seconds until it is, 0 if it was taken."""
        with self._lock:
            left = self._left(key)
            lack = self._lack(left, cost)
            if not lack:
                self._buckets[key] = (left - cost, self._clock.monotonic())
            return lack

    def _lack(self, left: float, cost: float) -> float:
        return 0.0 if left >= min(cost, self._capacity) else (cost - left) / self._per_second

    def _left(self, key: str) -> float:
        now = self._clock.monotonic()
        if len(self._buckets) > MAX_KEYS:
            self._forget(now)
        left, at = self._buckets.get(key, (self._capacity, now))
        return min(self._capacity, left + (now - at) * self._per_second)

    def _forget(self, now: float) -> None:
        """Forget the full buckets; all of them, if that does not help."""
        full = [
            key for key, (left, at) in self._buckets.items() if left + (now - at) * self._per_second >= self._capacity
        ]
        for key in full:
            del self._buckets[key]
        if len(self._buckets) > MAX_KEYS:
            self._buckets.clear()


class LimitedDownload:
    """Parts of a file while it is sent.  It counts until it ends, is closed, or the server forgets it."""

    def __init__(self, parts: Iterable[bytes], semaphore: threading.Semaphore) -> None:
        self._parts = iter(parts)
        self._end = weakref.finalize(self, semaphore.release)
        self._end.atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        """Count no more; a WSGI server calls this also where the reader has gone."""
        self._end()
        if isinstance(self._parts, Generator):
            self._parts.close()


class DownloadLimit:
    """At most `count` files at a time.  Thread-safe: the semaphore guards itself."""

    def __init__(self, count: int) -> None:
        self._semaphore = threading.Semaphore(count)

    def begin(self, parts: Iterable[bytes]) -> LimitedDownload | None:
        """Return the parts of a file that counts from now on; None if too many are sent already."""
        return LimitedDownload(parts, self._semaphore) if self._semaphore.acquire(blocking=False) else None
