"""Cluster document: what a cluster says of itself, read from either of its two sources.

view_of          the state that its processes publish in Redis, with their heartbeats
view_of_status   the answer to GET /status

Both end in the same form (View), in which whatever is odd reads as nothing: anybody may write to Redis.  The supervisor
writes the first in supervisor/publisher.py, the second in supervisor/http/status.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from kiqcluster.clock import SystemClock
from kiqcluster.control.process_registry import Cluster, Process

__all__ = [
    "Child",
    "View",
    "Worker",
    "number_of",
    "processes_of",
    "report_of",
    "view_of",
    "view_of_process",
    "view_of_status",
    "worker_of",
]


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


def report_of(told: object) -> Mapping[str, Any] | None:
    """Return what a supervisor says of a roll, or a reload; None where it says nothing, or no such thing."""
    return told if isinstance(told, dict) else None


def number_of(told: object) -> float:
    """Return a number, 0 for what is none."""
    try:
        number = float(told)  # type: ignore[arg-type]  # what is no number is caught
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if isfinite(number) else 0.0


def view_of(cluster: Cluster) -> View:
    """Return what a cluster is doing, by what its processes have published."""
    state, latest = cluster.state, cluster.latest
    lease = state.get("lease_remaining")
    now = latest.beat + latest.age
    told_at = number_of(state.get("at")) or latest.beat
    age = max(0.0, now - told_at)
    return View(
        name=cluster.supervisor,
        host=cluster.host,
        version=str(state.get("version", "")),
        slots=int(number_of(state.get("slots"))) or len(cluster.processes),
        workers=tuple(worker_of(each) for each in sorted(cluster.processes, key=lambda each: each.identity)),
        quiet_by=str(state.get("quiet_by") or ""),
        lease_remaining=None if lease is None else max(0.0, number_of(lease) - age),
        roll=report_of(state.get("roll")),
        reload=report_of(state.get("reload")),
        stopping=bool(state.get("stopping")),
        restart_needed=str(state.get("restart_needed") or ""),
        reload_needed=str(state.get("reload_needed") or ""),
        roll_needed=str(state.get("roll_needed") or ""),
        children=_children(state.get("children"), age),
        now=now,
        silent_for=max(0.0, max(each.beat for each in cluster.processes) - told_at),
    )


def _children(told: Any, age: float) -> tuple[Child, ...]:
    """Return the rows of a list that is so old; what is none of them is left out, for anybody may write there."""
    rows = told if isinstance(told, list) else []
    found = [
        Child.read(row["slot"], row, age) for row in rows if isinstance(row, dict) and type(row.get("slot")) is int
    ]
    return tuple(sorted(found, key=lambda each: each.slot))


def view_of_process(process: Process) -> View:
    return View(process.identity, process.host, process.version, 1, (worker_of(process),))


def worker_of(process: Process) -> Worker:
    """Return what is known of a process."""
    return Worker(
        identity=process.identity,
        pid=process.pid,
        queues=process.queues,
        concurrency=process.concurrency,
        busy=process.busy,
        quiet=process.is_quiet,
        rss=process.rss,
        age=process.age,
        uptime=process.uptime,
        version=process.version,
    )


def view_of_status(status: Mapping[str, Any], path: str, since: float) -> View:
    """Return what GET /status says.

    since: seconds since something was asked for.  A beat from before says nothing of what that has led to: until there
    is one from afterwards, a worker counts as one that still fetches.
    """
    quiet = status.get("quiet") or {}
    slots = status.get("slots") or []
    version = str(status.get("version") or "")
    return View(
        name=str(status.get("supervisor") or path),
        host=str(status.get("host") or ""),
        version=version,
        slots=len(slots),
        workers=tuple(_worker_of(process, since, version) for slot in slots for process in processes_of(slot)),
        quiet_by=str(quiet.get("by") or ""),
        lease_remaining=quiet.get("lease_remaining"),
        roll=report_of(status.get("roll")),
        reload=report_of(status.get("reload")),
        stopping=status.get("state") == "stopping",
        restart_needed=str(status.get("restart_needed") or ""),
        reload_needed=str(status.get("reload_needed") or ""),
        roll_needed=str(status.get("roll_needed") or ""),
        children=tuple(child for slot in slots for child in _children_of(slot)),
        now=SystemClock.now(),
        deploy=str(status.get("deploy") or ""),
    )


def _children_of(slot: Mapping[str, Any]) -> Iterator[Child]:
    """Yield what is said of each process of a slot; of the slot itself, where there is none."""
    number, processes = int(slot.get("slot") or 0), list(processes_of(slot))
    died_at = (slot.get("last_death") or {}).get("at")
    for process in processes or [slot]:
        yield Child.read(number, {**process, "restarts": slot.get("unplanned_restarts"), "died_at": died_at})


def processes_of(slot: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the processes of a slot: what serves, what will, and what was replaced and still runs something."""
    shared = {name: slot.get(name) for name in ("queues", "concurrency")}
    for process in (slot, slot.get("successor") or {}, *slot.get("leaving", ())):
        if process.get("pid"):
            yield {**process, **shared}


def _worker_of(slot: Mapping[str, Any], since: float, version: str) -> Worker:
    age = float(slot.get("last_beat_ago") or 0.0)
    has_beaten = slot.get("last_beat_ago") is not None and (age < since or since < 0)
    return Worker(
        identity=str(slot.get("identity") or ""),
        pid=int(slot.get("pid") or 0),
        queues=tuple(slot.get("queues") or ()),
        concurrency=int(slot.get("concurrency") or 0),
        busy=int(slot.get("busy") or 0),
        quiet=bool(slot.get("quiet")) and has_beaten,
        rss=int(slot.get("rss") or 0),
        age=age,
        uptime=slot.get("uptime"),
        version=version,
    )
