"""Ways to supervisors: what goes there, what comes back, and what a cluster looks like from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Protocol

from kiqcluster.ctl.tables import ago, clean, counted, duration
from kiqcluster.durations import show_duration
from kiqcluster.errors import KiqError
from kiqcluster.fleet import Message

__all__ = ["Answer", "Child", "NobodyThere", "View", "Way", "Worker", "number_of", "report_of"]

STALE = 20.0  # seconds without news, of which a supervisor sends some every ten, after which it may stand still
WHOLE = "the whole text: `kiqctl ps --json`, or the log"


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
class Child:
    """What a supervisor says of a process, or of a slot without one.

    state: ready, booting, quiet, stopping or backoff.  release: the directory of its code; generation: of the rolling
    restart that brought it, None if unknown.  backoff: seconds until the slot's next try.  waits_for: why it still
    boots.  redis: whether it reaches Redis.  restarts: how often a process of the slot was replaced that nobody wanted
    to be, None if unknown.  died_at: when the latest of these died, epoch seconds; 0 if none did.
    """

    slot: int
    pid: int | None
    state: str
    release: str = ""
    generation: int | None = None
    backoff: float = 0.0
    waits_for: str = ""
    redis: bool = True
    restarts: int | None = None
    died_at: float = 0.0

    @classmethod
    def read(cls, slot: int, row: Mapping[str, Any], age: float = 0.0) -> Child:
        """Return what a row says that is so old.  What has no `redis` is from before there was such a thing."""
        pid, generation, restarts = row.get("pid"), row.get("generation"), row.get("restarts")
        return cls(
            slot=slot,
            pid=pid if isinstance(pid, int) else None,
            state=str(row.get("state") or ""),
            release=str(row.get("release") or ""),
            generation=generation if isinstance(generation, int) else None,
            backoff=max(0.0, number_of(row.get("backoff")) - age),
            waits_for=str(row.get("waits_for") or ""),
            redis=bool(row.get("redis", True)),
            restarts=restarts if isinstance(restarts, int) else None,
            died_at=number_of(row.get("died_at")),
        )


@dataclass(frozen=True, slots=True)
class View:
    """What one cluster is doing.

    name: of its supervisor, `host:pid:nonce`; of a process, where a command is about one.  quiet_by: who has made all
    of it quiet, empty if nobody has.  lease_remaining: seconds, None without an end.  roll: the latest (id, state,
    done, of, error, ended_at); reload: the same without done and of.  all_quiet: none of its workers fetches.
    children: its processes and its slots without one, those that do not serve first if there are too many for all.
    deploy: who has begun the latest deploy, where that is known.
    now: epoch seconds, by its clock.  silent_for: seconds since it has said anything of itself, though its workers
    have beaten since.
    """

    name: str
    host: str
    version: str
    slots: int
    workers: tuple[Worker, ...]
    quiet_by: str = ""
    lease_remaining: float | None = None
    roll: Mapping[str, Any] | None = None
    reload: Mapping[str, Any] | None = None
    stopping: bool = False
    restart_needed: str = ""
    reload_needed: str = ""
    roll_needed: str = ""
    children: tuple[Child, ...] = ()
    now: float = 0.0
    silent_for: float = 0.0
    deploy: str = ""

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
        """Return what it is doing, and what waits, in one line that a terminal only shows."""
        words = [f"{counted(len(self.workers), 'worker')} in {counted(self.slots, 'slot')}"]
        words.append(f"busy {self.busy} of {self.concurrency}")
        if self.quiet_by:
            lease = "no end" if self.lease_remaining is None else f"{show_duration(self.lease_remaining)} left"
            words.append(f"quiet by {self.quiet_by} ({lease})")
        elif count := sum(worker.quiet for worker in self.workers):
            words.append(f"{count} quiet")
        if self.roll is not None and self.roll.get("state") == "rolling":
            words.append(f"rolling {self.roll.get('done')} of {self.roll.get('of')}")
        if self.reload is not None and self.reload.get("state") == "reloading":
            words.append("reloading")
        if self.stopping:
            words.append("stopping")
        for what, why in (("restart", self.restart_needed), ("reload", self.reload_needed), ("roll", self.roll_needed)):
            if why:
                words.append(f"{what} needed: {_first_line(why)}")
        return clean(", ".join(words))

    def in_hindsight(self) -> list[str]:
        """Return in lines of the same kind how the latest roll went, what failed, and whether this is old news."""
        lines = []
        if self.silent_for >= STALE:
            lines.append(f"its supervisor has not reported for {duration(self.silent_for)}; it may be stuck")
        if self.roll is not None and self.roll.get("state") == "done" and self.roll.get("of"):
            when = self._when(self.roll)
            lines.append(f"rolled {self.roll.get('done')} of {self.roll.get('of')}{',' if when else ''}{when}")
        elif self.roll is not None and self.roll.get("state") == "failed":
            done = f" with {self.roll.get('done')} of {self.roll.get('of')} replaced"
            lines += self._failure("roll", self.roll, done)
        if self.reload is not None and self.reload.get("state") == "failed":
            lines += self._failure("reload", self.reload)
        return [clean(line) for line in lines]

    def _failure(self, what: str, report: Mapping[str, Any], how_far: str = "") -> Iterator[str]:
        error = str(report.get("error") or "no reason is known").strip()
        yield f"the last {what} failed{self._when(report)}{how_far}: {_first_line(error)}"
        if "\n" in error:
            yield f"  {WHOLE}"

    def _when(self, report: Mapping[str, Any]) -> str:
        """Return how long ago it ended; nothing where that is unknown."""
        ended_at = number_of(report.get("ended_at"))
        return f" {ago(min(ended_at, self.now), self.now)}" if ended_at and self.now else ""


class Way(Protocol):
    """How a command reaches those that it is about."""

    def tell(self, message: Message) -> Sequence[Answer]:
        """Have all of them do something; return what each has answered.  Raises NobodyThere, StoreError."""
        ...

    def look(self) -> Mapping[str, View]:
        """Return what they are doing, by name; whoever is gone is not in it.  Raises StoreError."""
        ...


def report_of(told: object) -> Mapping[str, Any] | None:
    """Return what a supervisor says of a roll, or a reload; None where it says nothing, or no such thing."""
    return told if isinstance(told, dict) else None


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0].rstrip()


def number_of(told: object) -> float:
    """Return a number, 0 for what is none."""
    try:
        number = float(told)  # type: ignore[arg-type]  # what is no number is caught
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if isfinite(number) else 0.0
