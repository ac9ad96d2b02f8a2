"""Runs of jobs as they have noted them, in a file beside the ledger, and which of them were at once.

1. write, noted   called by jobs: one line of JSON each, by one O_APPEND write
2. Runs           the file, as a test reads it
3. held           the time in which a run may hold what its process was given

Times are seconds of the monotonic clock, the same in all processes of a machine.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from math import inf
from pathlib import Path
from typing import Any
from uuid import uuid4

from kiqcluster import current_job
from tests.chaos.ledger import VARIABLE

__all__ = ["Line", "OneRun", "Runs", "digest_of", "noted", "write"]

SUFFIX = ".runs"  # after the path of the ledger


# the jobs' half


@cache
def _descriptor(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(word: str, **facts: object) -> None:
    """Write a line: a word, what is known beside it, this process, and now."""
    line = json.dumps({"word": word, "pid": os.getpid(), "at": time.monotonic(), "wall": time.time(), **facts})
    os.write(_descriptor(os.environ[VARIABLE] + SUFFIX), line.encode() + b"\n")


def digest_of(text: str) -> str:
    """Return what a line has of a text, which may be a secret."""
    return sha1(text.encode(), usedforsecurity=False).hexdigest()


@contextmanager
def noted(*lines: str, **facts: object) -> Iterator[None]:
    """Write the begin and the end of the running job, however it ends.  lines: limits that count it."""
    running = current_job()
    assert running is not None
    run = uuid4().hex
    write("began", run=run, jid=running.jid, identity=running._identity, lines=lines, **facts)
    try:
        yield
    finally:
        write("left", run=run)


# the tests' half

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OneRun:
    """A run.  facts: what it has written when it began.  end: None if it has written no end."""

    facts: Line
    end: float | None

    @property
    def jid(self) -> str:
        return str(self.facts["jid"])

    @property
    def name(self) -> str:
        return str(self.facts["name"])

    @property
    def subject(self) -> str:
        return str(self.facts["subject"])

    @property
    def begin(self) -> float:
        return float(self.facts["at"])


@dataclass
class Runs:
    """The file.  frozen: identity of a process that others have recovered while it stood still → when it froze."""

    ledger: Path
    frozen: dict[str, float] = field(default_factory=dict)

    def lines(self, word: str) -> list[Line]:
        """Return the lines with that word, in the order in which they were written."""
        return [line for line in self._read() if line["word"] == word]

    def all(self) -> list[OneRun]:
        """Return the runs, in the order in which they began."""
        ends = {line["run"]: line["at"] for line in self.lines("left")}
        return [OneRun(line, ends.get(line["run"])) for line in self.lines("began")]

    def held(self, longest: Mapping[str, float]) -> dict[str, list[tuple[float, float]]]:
        """Return for each limit when runs have held a place in it.

        A run without an end has ended with its process, at the latest when that wrote for the last time.  A process
        that others have recovered has lost its places when it froze.  longest: limit → seconds after which the product
        takes a place away from a run.
        """
        last: dict[int, float] = {}
        for line in self._read():
            last[line["pid"]] = line["at"]
        found: dict[str, list[tuple[float, float]]] = {}
        for run in self.all():
            until = self.frozen.get(run.facts["identity"], inf)
            end = min(last[run.facts["pid"]] if run.end is None else run.end, until)
            for limit in run.facts["lines"] if run.begin < end else ():
                found.setdefault(limit, []).append((run.begin, min(end, run.begin + longest.get(limit, inf))))
        return found

    def _read(self) -> list[Line]:
        path = Path(f"{self.ledger}{SUFFIX}")
        data = path.read_bytes().rpartition(b"\n")[0] if path.exists() else b""
        return [json.loads(line) for line in data.splitlines()]
