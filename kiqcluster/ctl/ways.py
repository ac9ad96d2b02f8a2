"""Ways to supervisors: what goes there, what comes back, and what a cluster looks like from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from kiqcluster.ctl.tables import counted
from kiqcluster.durations import show_duration
from kiqcluster.errors import KiqError
from kiqcluster.fleet import Message

__all__ = ["Answer", "NobodyThere", "View", "Way", "Worker"]


class NobodyThere(KiqError):
    """There is no kiqcluster process that a command could be about."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a message to one supervisor, or process.  error: None when it is done or on its way."""

    name: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process.  age: seconds since its last beat.  uptime: seconds, None if unknown.  rss: bytes."""

    identity: str
    pid: int
    queues: tuple[str, ...]
    concurrency: int
    busy: int
    quiet: bool
    rss: int
    age: float
    uptime: float | None = None
    version: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """What one cluster is doing.

    name: of its supervisor, `host:pid:nonce`; of a process, where a command is about one.  quiet_by: who has made all
    of it quiet, empty if nobody has.  lease_remaining: seconds, None without an end.  roll: the latest (id, state,
    done, of, error).  all_quiet: none of its workers fetches.
    """

    name: str
    host: str
    version: str
    slots: int
    workers: tuple[Worker, ...]
    quiet_by: str = ""
    lease_remaining: float | None = None
    roll: Mapping[str, Any] | None = None
    stopping: bool = False
    restart_needed: str = ""

    @property
    def busy(self) -> int:
        return sum(worker.busy for worker in self.workers)

    @property
    def concurrency(self) -> int:
        return sum(worker.concurrency for worker in self.workers)

    @property
    def all_quiet(self) -> bool:
        return all(worker.quiet for worker in self.workers)

    @property
    def is_drained(self) -> bool:
        """Whether nothing runs, and nothing will before somebody resumes it."""
        return self.all_quiet and not self.busy

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "busy": self.busy, "concurrency": self.concurrency, "quiet": self.all_quiet}

    def in_words(self) -> str:
        """Return what it is doing, in one line."""
        words = [f"{counted(len(self.workers), 'worker')} in {counted(self.slots, 'slot')}"]
        words.append(f"busy {self.busy} of {self.concurrency}")
        if self.quiet_by:
            lease = "no end" if self.lease_remaining is None else f"{show_duration(self.lease_remaining)} left"
            words.append(f"quiet by {self.quiet_by} ({lease})")
        elif count := sum(worker.quiet for worker in self.workers):
            words.append(f"{count} quiet")
        if self.roll is not None and self.roll.get("state") == "rolling":
            words.append(f"rolling {self.roll.get('done')} of {self.roll.get('of')}")
        elif self.roll is not None and self.roll.get("state") == "failed":
            words.append(f"the last roll failed: {self.roll.get('error')}")
        if self.stopping:
            words.append("stopping")
        if self.restart_needed:
            words.append(f"restart needed: {self.restart_needed}")
        return ", ".join(words)


class Way(Protocol):
    """How a command reaches those that it is about."""

    def tell(self, message: Message) -> Sequence[Answer]:
        """Have all of them do something; return what each has answered.  Raises NobodyThere, StoreError."""
        ...

    def look(self) -> Mapping[str, View]:
        """Return what they are doing, by name; whoever is gone is not in it.  Raises StoreError."""
        ...
