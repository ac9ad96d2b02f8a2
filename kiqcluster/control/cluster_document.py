"""Cluster document: the state of a cluster, read from either of its two sources.

status_from_redis   the state that its processes publish in Redis with their heartbeats
status_from_http    the answer to GET /status

Both return a ClusterStatus.  Values of an unexpected type read as missing, because anybody may write to Redis.
supervisor/publisher.py writes the first source, supervisor/http/status.py the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from kiqcluster.control.process_registry import LATE_SECONDS, Cluster, RegisteredProcess, read_count, read_number
from kiqcluster.control.slot_state import SlotState
from kiqcluster.process.clock import SystemClock

__all__ = [
    "NO_REDIS",
    "SERVES",
    "ClusterStatus",
    "ProcessStatus",
    "WorkerStatus",
    "process_rows",
    "read_report",
    "shown_processes",
    "shown_state",
    "status_from_http",
    "status_from_redis",
    "status_of_process",
    "worker_status",
]

SERVES, NO_REDIS = "serves", "no Redis"  # states that are shown, besides those of slots
STALE_STATE_SECONDS = 20.0  # without news, of which a supervisor sends some every ten, after which it may stand still


@dataclass(frozen=True, slots=True)
class WorkerStatus:
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
class ProcessStatus:
    """The supervisor's view of a process, or of a slot without one.

    state: ready, booting, quiet, stopping, unresponsive or backoff.  release: the directory of its code.
    generation: of the rolling restart that started it, None if unknown.  backoff: seconds until the slot starts its
    next process.  waits_for: why it is still booting.  redis: whether it reaches Redis.  restarts: unplanned restarts
    of the slot, None if unknown.  died_at: time of the latest unplanned death, epoch seconds; 0 if there was none.
    shard: of the slot, "" for the default one.
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
    shard: str = ""

    @classmethod
    def read(cls, slot: int, row: Mapping[str, Any], age: float = 0.0) -> ProcessStatus:
        """Return the status in a row that is `age` seconds old."""
        pid, generation, restarts = row.get("pid"), row.get("generation"), row.get("restarts")
        return cls(
            slot=slot,
            pid=pid if isinstance(pid, int) else None,
            state=str(row.get("state") or ""),
            release=str(row.get("release") or ""),
            generation=generation if isinstance(generation, int) else None,
            backoff=max(0.0, read_number(row.get("backoff")) - age),
            waits_for=str(row.get("waits_for") or ""),
            redis=bool(row.get("redis")),
            restarts=restarts if isinstance(restarts, int) else None,
            died_at=read_number(row.get("died_at")),
            shard=str(row.get("shard") or ""),
        )


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The state of one cluster.

    name: the identity of its supervisor, `host:pid:nonce`, or of a process where a command addresses one.
    quiet_by: who made the whole cluster quiet, empty if nobody did.  lease_remaining: seconds, None without an end.
    roll: the latest (id, state, done, of, error, ended_at).  reload: the same without done and of.
    all_quiet: none of its workers fetches.  children: its processes and its empty slots; if there are too many for
    all, those that do not serve come first.  deploy: who began the latest deploy, if known.  now: epoch seconds, by
    its clock.  silent_for: seconds since the supervisor published its state, while its workers still sent heartbeats.
    """

    name: str
    host: str
    version: str
    slots: int
    workers: tuple[WorkerStatus, ...]
    quiet_by: str = ""
    lease_remaining: float | None = None
    roll: Mapping[str, Any] | None = None
    reload: Mapping[str, Any] | None = None
    stopping: bool = False
    restart_needed: str = ""
    reload_needed: str = ""
    roll_needed: str = ""
    children: tuple[ProcessStatus, ...] = ()
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
    def is_stale(self) -> bool:
        """Whether its supervisor has published nothing for so long that it may stand still."""
        return self.silent_for >= STALE_STATE_SECONDS

    @property
    def needs(self) -> list[tuple[str, str]]:
        """What it waits for somebody to do, as pairs of restart, reload or roll, and why."""
        reasons = (("restart", self.restart_needed), ("reload", self.reload_needed), ("roll", self.roll_needed))
        return [(what, why) for what, why in reasons if why]

    @property
    def is_drained(self) -> bool:
        """Whether no job runs, and none will until somebody resumes the cluster."""
        return self.all_quiet and not self.busy

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "busy": self.busy, "concurrency": self.concurrency, "quiet": self.all_quiet}


def read_report(value: object) -> Mapping[str, Any] | None:
    """Return the report of a roll or reload; None if the value is not one."""
    return value if isinstance(value, dict) else None


def status_from_redis(cluster: Cluster) -> ClusterStatus:
    """Return the state of a cluster from the fields that its processes publish."""
    state, latest = cluster.state, cluster.latest
    lease = state.get("lease_remaining")
    now = latest.beat + latest.age
    told_at = read_number(state.get("at")) or latest.beat
    age = max(0.0, now - told_at)
    return ClusterStatus(
        name=cluster.supervisor,
        host=cluster.host,
        version=str(state.get("version", "")),
        slots=read_count(state.get("slots")) or len(cluster.processes),
        workers=tuple(worker_status(each) for each in sorted(cluster.processes, key=lambda each: each.identity)),
        quiet_by=str(state.get("quiet_by") or ""),
        lease_remaining=None if lease is None else max(0.0, read_number(lease) - age),
        roll=read_report(state.get("roll")),
        reload=read_report(state.get("reload")),
        stopping=bool(state.get("stopping")),
        restart_needed=str(state.get("restart_needed") or ""),
        reload_needed=str(state.get("reload_needed") or ""),
        roll_needed=str(state.get("roll_needed") or ""),
        children=_processes_from_redis(state.get("children"), age),
        now=now,
        silent_for=max(0.0, max(each.beat for each in cluster.processes) - told_at),
    )


def _processes_from_redis(value: Any, age: float) -> tuple[ProcessStatus, ...]:
    """Return the rows of a list that is `age` seconds old.  Malformed rows are left out: anybody may write there."""
    rows = value if isinstance(value, list) else []
    found = [
        ProcessStatus.read(row["slot"], row, age)
        for row in rows
        if isinstance(row, dict) and type(row.get("slot")) is int
    ]
    return tuple(sorted(found, key=lambda each: each.slot))


def status_of_process(process: RegisteredProcess) -> ClusterStatus:
    return ClusterStatus(process.identity, process.host, process.version, 1, (worker_status(process),))


def worker_status(process: RegisteredProcess) -> WorkerStatus:
    """Return the status of a worker process in the registry."""
    return WorkerStatus(
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


def shown_processes(status: ClusterStatus) -> list[tuple[ProcessStatus | None, WorkerStatus | None]]:
    """Return a row for each process of a cluster, and for each slot without one: what is known from either side."""
    by_pid = {each.pid: each for each in sorted(status.workers, key=lambda each: -each.age)}  # of two, the later one
    known = {process.pid for process in status.children}
    pairs: list[tuple[ProcessStatus | None, WorkerStatus | None]] = [
        (each, by_pid.get(each.pid or 0)) for each in status.children
    ]
    return pairs + [(None, worker) for worker in status.workers if worker.pid not in known]


def shown_state(worker: WorkerStatus | None, process: ProcessStatus | None) -> str:
    """Return the state of a process or slot: a SlotState, SERVES or NO_REDIS.

    For quiet, the worker's own report counts.
    """
    state = process.state if process is not None else ""
    if process is not None and state in (SlotState.BACKOFF, SlotState.BOOTING):
        return state
    if state == SlotState.UNRESPONSIVE or (
        worker is not None and state != SlotState.STOPPING and worker.age >= LATE_SECONDS
    ):
        return SlotState.UNRESPONSIVE
    if process is not None and state in (SlotState.READY, SlotState.QUIET) and not process.redis:
        return NO_REDIS
    if state == SlotState.STOPPING:
        return state
    return SlotState.QUIET if (state == SlotState.QUIET if worker is None else worker.quiet) else SERVES


def status_from_http(document: Mapping[str, Any], path: str, seconds_since_request: float) -> ClusterStatus:
    """Return the state of a cluster from the document of GET /status.

    path: the socket, as a name where the document has none.
    seconds_since_request: since the latest order was sent.  A worker counts as quiet only if it sent a heartbeat
    after that.
    """
    quiet = document.get("quiet") or {}
    slots = document.get("slots") or []
    version = str(document.get("version") or "")
    return ClusterStatus(
        name=str(document.get("supervisor") or path),
        host=str(document.get("host") or ""),
        version=version,
        slots=len(slots),
        workers=tuple(
            _worker_from_http(process, seconds_since_request, version)
            for slot in slots
            for process in process_rows(slot)
        ),
        quiet_by=str(quiet.get("by") or ""),
        lease_remaining=quiet.get("lease_remaining"),
        roll=read_report(document.get("roll")),
        reload=read_report(document.get("reload")),
        stopping=document.get("state") == "stopping",
        restart_needed=str(document.get("restart_needed") or ""),
        reload_needed=str(document.get("reload_needed") or ""),
        roll_needed=str(document.get("roll_needed") or ""),
        children=tuple(child for slot in slots for child in _processes_of_slot(slot)),
        now=SystemClock.now(),
        deploy=str(document.get("deploy") or ""),
    )


def _processes_of_slot(slot: Mapping[str, Any]) -> Iterator[ProcessStatus]:
    """Yield the status of each process of a slot; of the slot itself if it has none."""
    number, processes = int(slot.get("slot") or 0), list(process_rows(slot))
    died_at = (slot.get("last_death") or {}).get("at")
    for process in processes or [slot]:
        about = {"restarts": slot.get("unplanned_restarts"), "died_at": died_at, "shard": slot.get("shard")}
        yield ProcessStatus.read(number, {**process, **about})


def process_rows(slot: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the processes of a slot: the current one, its replacement, and replaced ones that still run jobs."""
    shared = {name: slot.get(name) for name in ("queues", "concurrency")}
    for process in (slot, slot.get("successor") or {}, *slot.get("leaving", ())):
        if process.get("pid"):
            yield {**process, **shared}


def _worker_from_http(slot: Mapping[str, Any], seconds_since_request: float, version: str) -> WorkerStatus:
    age = float(slot.get("last_beat_ago") or 0.0)
    has_beaten = slot.get("last_beat_ago") is not None and (age < seconds_since_request or seconds_since_request < 0)
    return WorkerStatus(
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
