"""Descriptors: whether those that this worker waits on are still its own.

A job, or a library of it, may close numbers that it does not own: a second time, or all that there are.  Connections to
Redis are made anew; what wakes the threads of a worker, and its line to the supervisor, are not.  Without these it is
deaf, or its bytes go to whatever has the number by now.

1. Descriptors   takes note of what the numbers are
2. lost          the names of those that are something else, or closed

Runs in: the main thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

__all__ = ["Descriptors"]

CLOSED = (0, 0, 0)


class Descriptors:
    """numbers: by what they are for."""

    def __init__(self, numbers: Mapping[str, Iterable[int]]) -> None:
        self._known = [(name, number, _identify(number)) for name, each in numbers.items() for number in each]

    def lost(self) -> list[str]:
        """Return what can be relied on no more.  A few microseconds."""
        return sorted({name for name, number, identity in self._known if _identify(number) != identity})


def _identify(number: int) -> tuple[int, int, int]:
    """Return what tells an open file from others; two epoll descriptors look the same."""
    try:
        found = os.fstat(number)
    except OSError:
        return CLOSED
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)
