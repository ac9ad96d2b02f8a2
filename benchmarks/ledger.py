"""Ledger: what jobs tell of themselves, outside Redis: a line appended to a file, in one write.

A line is `event pid time facts…`.  time: seconds of CLOCK_MONOTONIC, which all processes of a machine share.
It is imported by the workers of all Python peers, so it costs them next to nothing; ruby/jobs.rb writes the same form.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["VARIABLE", "Entry", "Ledger", "write"]

VARIABLE = "BENCH_LEDGER"  # environment variable with the file's path


@cache
def _descriptor() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def write(event: str, *facts: float) -> None:
    """Append a line about this process, now."""
    line = " ".join(map(str, (event, os.getpid(), time.monotonic(), *facts)))
    os.write(_descriptor(), f"{line}\n".encode())


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the ledger."""

    event: str
    pid: int
    time: float
    facts: tuple[float, ...]


class Ledger:
    """The file, read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def clear(self) -> None:
        """Forget all; workers of earlier runs must have ended."""
        self.path.write_bytes(b"")

    def lines(self) -> int:
        """Return how many lines there are so far; cheap enough to be asked often."""
        return self.path.read_bytes().count(b"\n")

    def entries(self, event: str) -> list[Entry]:
        """Return the lines about an event, oldest first."""
        return sorted(self._read(event), key=lambda entry: entry.time)

    def _read(self, event: str) -> Iterator[Entry]:
        for line in self.path.read_text().splitlines():
            name, pid, moment, *facts = line.split()
            if name == event:
                yield Entry(name, int(pid), float(moment), tuple(map(float, facts)))
