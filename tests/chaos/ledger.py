"""The ledger: which jobs began and which ended, in a file that no queue and no Redis can lose.

1. write      called by jobs (tests/apps/chaos.py): one line per begin or end, one O_APPEND write each
2. Ledger     the file, as a test reads it
3. Audit      the jobs that were pushed against the lines: lost, complete, more than once and why

A line is `begin|end <jid> <pid> <monotonic seconds>`; that clock is the same in all processes of a machine, Ruby's
included.  The page cache keeps what was written when its writer is killed.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from kiqcluster import current_job
from tests.chaos.scale import sized

__all__ = ["VARIABLE", "Audit", "Entry", "Ledger", "noted", "write"]

VARIABLE = "CHAOS_LEDGER"  # of the environment: path of the file that jobs write to
# Before its death in which a process may have ended jobs without settling them; the long form runs beside other work.
MAX_UNSETTLED_SECONDS = sized(1.0, 5.0)


# the jobs' half


@cache
def _descriptor(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def write(word: str, jid: str) -> None:
    """Note that a job began or ended, in this process and now."""
    line = f"{word} {jid} {os.getpid()} {time.monotonic():.6f}\n"
    os.write(_descriptor(os.environ[VARIABLE]), line.encode())


@contextmanager
def noted() -> Iterator[None]:
    """Write the running job's begin, and its end unless it fails or is killed."""
    running = current_job()
    assert running is not None
    write("begin", running.jid)
    yield
    write("end", running.jid)


# the tests' half


@dataclass(frozen=True, slots=True)
class Entry:
    """at: seconds of the monotonic clock."""

    word: str
    jid: str
    pid: int
    at: float


@dataclass(frozen=True)
class Audit:
    """What became of the jobs that were pushed.

    lost: never ran to their end, and were not buried.  repeated: ran to their end more often than once, with the ends
    in order.  unexplained: those of them whose earlier ends were not in processes that died before they could settle,
    and that the test did not expect to be recovered.
    broken_off: jobs that began more often than they ended, which kills bring about.  strangers: were never pushed.
    """

    pushed: int
    ended: int
    lost: frozenset[str]
    buried: int
    repeated: Mapping[str, tuple[Entry, ...]]
    unexplained: frozenset[str]
    broken_off: int
    strangers: frozenset[str]

    def miscount(self) -> str:
        """Return which promise is broken; "" if none is.  A test that fails with one may not run again."""
        wrong = {"lost": self.lost, "done twice": self.unexplained}
        return "; ".join(f"{name}: {', '.join(sorted(jids))}" for name, jids in wrong.items() if jids)

    def counts(self) -> dict[str, int]:
        """Return the figures of a report."""
        return {
            "pushed": self.pushed,
            "ended": self.ended,
            "lost": len(self.lost),
            "buried": self.buried,
            "ended twice": len(self.repeated),
            "unexplained": len(self.unexplained),
            "broken off": self.broken_off,
        }


@dataclass
class Ledger:
    """The file.  directory: the test's own; what `tests.apps.chaos.hold` waits for is opened there as well."""

    directory: Path
    deaths: dict[int, float] = field(default_factory=dict)  # pid → when the test killed it
    _read: list[Entry] = field(default_factory=list)
    _read_to: int = 0
    _begun: Counter[str] = field(default_factory=Counter)
    _ended: Counter[str] = field(default_factory=Counter)

    @property
    def path(self) -> Path:
        return self.directory / "ledger"

    @property
    def environ(self) -> dict[str, str]:
        """The environment by which jobs find the file."""
        return {VARIABLE: str(self.path)}

    def died(self, pid: int) -> None:
        """Note that the test has just killed a process: jobs that it had ended and not settled may end twice."""
        self.deaths[pid] = time.monotonic()

    def open_gate(self, name: str) -> None:
        """Let the jobs go on that hold at a gate."""
        (self.directory / name).touch()

    def entries(self) -> list[Entry]:
        """Return the lines so far, in the order in which they were written.  Reads only what is new."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            whole = file.read().rpartition(b"\n")[0]  # without a line that is just being written
        for line in whole.splitlines():
            word, jid, pid, at = line.decode().split(" ")
            self._read.append(Entry(word, jid, int(pid), float(at)))
            (self._begun if word == "begin" else self._ended)[jid] += 1
        self._read_to += len(whole) + bool(whole)
        return self._read

    def begun(self) -> Counter[str]:
        """Return jid → how often it began, as of now; not a copy, for tests ask often and of 10⁵ jobs."""
        self.entries()
        return self._begun

    def ended(self) -> Counter[str]:
        """Return jid → how often it ran to its end; likewise."""
        self.entries()
        return self._ended

    def has_ended(self, jids: Collection[str]) -> bool:
        """Return whether each of these jobs ran to its end; to wait for."""
        return all(map(self.ended().__contains__, jids))  # it stops at the first that has not

    def audit(self, pushed: Iterable[str], *, recovered: Collection[str] = (), buried: Collection[str] = ()) -> Audit:
        """Return what became of these jobs.

        recovered: those that others took over from a process which still lived, so that they may end there as well.
        buried: those that the dead set holds.
        """
        jids, begun = set(pushed), Counter[str]()
        ends: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries():
            if entry.word == "end":
                ends[entry.jid].append(entry)
            else:
                begun[entry.jid] += 1
        repeated = {jid: tuple(each) for jid, each in ends.items() if len(each) > 1}
        return Audit(
            pushed=len(jids),
            ended=len(ends),
            lost=frozenset(jids - ends.keys() - set(buried)),
            buried=len(set(buried)),
            repeated=repeated,
            unexplained=frozenset(
                jid
                for jid, each in repeated.items()
                if jid not in recovered and not all(map(self._explains, each[:-1]))
            ),
            broken_off=sum(times > len(ends[jid]) for jid, times in begun.items()),
            strangers=frozenset((ends.keys() | begun.keys()) - jids),
        )

    def _explains(self, end: Entry) -> bool:
        """Return whether a process ended a job and died before its outcome can be expected in Redis."""
        died_at = self.deaths.get(end.pid)
        return died_at is not None and died_at - end.at <= MAX_UNSETTLED_SECONDS
