"""Descriptors: whether the descriptors that this worker waits on are still its own.

A job, or a library that it uses, may close descriptors that it does not own: by a second close, or by closing all.  A
worker reconnects to Redis, but it cannot replace the descriptors that wake its threads, nor the socket to its
supervisor.  Without these it hears nothing, or it writes to another file that has the number by now.

1. Descriptors   records which open file each number is
2. lost          the names of those that are closed, or another file

Runs in: the main thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

__all__ = ["Descriptors"]

CLOSED = (0, 0, 0)


class Descriptors:
    """numbers: descriptors by their purpose."""

    def __init__(self, numbers: Mapping[str, Iterable[int]]) -> None:
        self._known = [(name, number, _identify(number)) for name, each in numbers.items() for number in each]

    def lost(self) -> list[str]:
        """Return the purposes whose descriptors are lost.  A few microseconds."""
        return sorted({name for name, number, identity in self._known if _identify(number) != identity})


def _identify(number: int) -> tuple[int, int, int]:
    """Return the device, inode and type of an open file; two epoll descriptors look the same."""
    try:
        found = os.fstat(number)
    except OSError:
        return CLOSED
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)
