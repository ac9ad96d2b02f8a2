"""Dashboard: everything that `top` shows, as of one moment, for three round trips.

1. names and sizes   queues, processes, counters, sizes of the sets, a page of entries where the view shows them
2. each of them      a queue's length and next job, a process' heartbeat, and in the view BUSY what it runs
3. each cluster      its state, from one of its processes
4. in the view BUSY, one more: how far the jobs have come
One more round trip for each 5 000 commands of the second kind: a queue takes four, a process two, or four.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from kiqcluster.api.processes import Work, read_work, with_progress
from kiqcluster.api.processes import read_commands as work_commands
from kiqcluster.api.queues import QueueSummary, read_summary, summary_commands
from kiqcluster.api.records import JobRecord
from kiqcluster.api.sets import DeadSet, RetrySet, ScheduledSet, SortedEntry
from kiqcluster.control import process_registry
from kiqcluster.control.process_registry import Cluster, RegisteredProcess
from kiqcluster.process.clock import Clock
from kiqcluster.store import Store
from kiqcluster.store.replies import broken_keys
from kiqcluster.store.wire import Command

__all__ = ["MAX_ENTRIES", "Dashboard", "View", "job_as_json", "read_dashboard"]

MAX_ENTRIES = 100  # entries of a set in one picture
MAX_COMMANDS_PER_ROUND_TRIP = 5_000  # commands in one round trip


class View(Enum):
    """What is looked at closely."""

    QUEUES = "Queues"
    PROCESSES = "Processes"
    BUSY = "Busy"
    RETRIES = "Retries"
    SCHEDULED = "Scheduled"
    DEAD = "Dead"


SETS: Mapping[View, type[RetrySet] | type[ScheduledSet] | type[DeadSet]] = {
    View.RETRIES: RetrySet,
    View.SCHEDULED: ScheduledSet,
    View.DEAD: DeadSet,
}


@dataclass(frozen=True, slots=True)
class Dashboard:
    """taken: monotonic seconds, for rates.  at: epoch seconds.  sizes: of the sets, by their views.

    unreadable: keys of the wrong type; what they should hold counts as 0.
    work: only in the view BUSY.  entries: a page, in the views of sets: what is due next, of the dead the latest.
    """

    at: float
    taken: float
    view: View
    processed: int
    failed: int
    sizes: Mapping[View, int]
    queues: Sequence[QueueSummary]
    processes: Sequence[RegisteredProcess]
    unreadable: Sequence[str] = ()
    work: Sequence[Work] = ()
    entries: Sequence[SortedEntry] = ()

    @property
    def enqueued(self) -> int:
        return sum(each.size for each in self.queues)

    @property
    def busy(self) -> int:
        return sum(each.busy for each in self.processes)

    @property
    def concurrency(self) -> int:
        return sum(each.concurrency for each in self.processes)

    @property
    def clusters(self) -> list[Cluster]:
        return process_registry.group_by_cluster(self.processes)

    def as_json(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "processed": self.processed,
            "failed": self.failed,
            "enqueued": self.enqueued,
            "busy": self.busy,
            "concurrency": self.concurrency,
            **{view.name.lower(): self.sizes[view] for view in SETS},
            "unreadable": list(self.unreadable),
            "queues": [asdict(each) for each in self.queues],
            "processes": [process_as_json(each) for each in self.processes],
        }


def process_as_json(process: RegisteredProcess) -> dict[str, Any]:
    """Return what a document says of a process."""
    return {
        "identity": process.identity,
        "host": process.host,
        "pid": process.pid,
        "supervisor": process.supervisor,
        "is_ours": process.is_ours,
        "version": process.version,
        "queues": list(process.queues),
        "busy": process.busy,
        "concurrency": process.concurrency,
        "quiet": process.is_quiet,
        "rss": process.rss,
        "uptime": process.uptime,
        "age": process.age,
    }


def read_dashboard(store: Store, clock: Clock, view: View = View.QUEUES, offset: int = 0) -> Dashboard:
    """Return the current dashboard.  offset: of the first entry, in views of sets.  Raises StoreError.

    Three round trips; see above.
    """
    with broken_keys() as broken:
        look = _look(store, clock, view, offset)
    return replace(look, unreadable=tuple(broken))


def _look(store: Store, clock: Clock, view: View, offset: int) -> Dashboard:
    keys = store.keys
    sets = {each: (keys.retry, keys.schedule, keys.dead)[at] for at, each in enumerate(SETS)}
    page: list[Command] = []
    if view in sets:
        order = ("REV",) if view is View.DEAD else ()
        page = [("ZRANGE", sets[view], offset, offset + MAX_ENTRIES - 1, *order, "WITHSCORES")]
    commands: list[Command] = [
        *(("SMEMBERS", key) for key in (keys.queues, keys.paused, keys.processes)),
        *(("GET", key) for key in (keys.processed, keys.failed)),
        *(("ZCARD", key) for key in sets.values()),
        *page,
    ]
    replies = store.read_each(commands)
    names, paused, identities, *counts = replies
    paused_names = _names(paused)
    details = _Details(
        store, sorted(_names(names) | paused_names), sorted(_names(identities)), is_busy=view is View.BUSY
    )
    processes, now = details.processes(), clock.now()
    return Dashboard(
        at=now,
        taken=clock.monotonic(),
        view=view,
        processed=_count(counts[0]),
        failed=_count(counts[1]),
        sizes=dict(zip(sets, map(_count, counts[2:5]), strict=True)),
        queues=details.queues(paused_names, processes, now),
        processes=processes,
        work=details.work(),
        entries=_entries(store, view, counts[5]) if page else (),
    )


class _Details:
    """The second and third round trips: what is known of each queue, process and cluster."""

    def __init__(self, store: Store, names: Sequence[str], identities: Sequence[str], *, is_busy: bool) -> None:
        keys = store.keys
        commands = [command for name in names for command in summary_commands(keys, name)]
        commands += [command for each in identities for command in process_registry.read_commands(keys, each)]
        if is_busy:
            commands += [command for each in identities for command in work_commands(keys, each)]
        replies = store.read_each(commands, MAX_COMMANDS_PER_ROUND_TRIP)
        self._store, self._names, self._identities = store, names, identities
        self._queues, beats = replies[: 4 * len(names)], replies[4 * len(names) :]
        self._beats, self._work = beats[: 2 * len(identities)], beats[2 * len(identities) :]

    def processes(self) -> list[RegisteredProcess]:
        told = zip(self._identities, self._beats[::2], self._beats[1::2], strict=True)
        return process_registry.read_processes(self._store, list(told))

    def queues(self, paused: set[str], processes: Sequence[RegisteredProcess], now: float) -> list[QueueSummary]:
        served: dict[str, int] = {}
        for process in processes:
            for name in process.queues:
                served[name] = served.get(name, 0) + 1
        return [
            read_summary(
                name,
                self._queues[4 * at : 4 * at + 4],
                now,
                is_paused=name in paused,
                processes=served.get(name, 0),
            )
            for at, name in enumerate(self._names)
        ]

    def work(self) -> list[Work]:
        if not self._work:
            return []
        told = zip(self._identities, self._work[::2], self._work[1::2], strict=True)
        return with_progress(self._store, [work for each in told for work in read_work(*each)])


def _entries(store: Store, view: View, reply: Any) -> list[SortedEntry]:
    if not isinstance(reply, list):
        return []
    job_set = SETS[view](store=store)
    return [SortedEntry(raw, float(score), job_set) for raw, score in zip(reply[::2], reply[1::2], strict=True)]


def _names(reply: Any) -> set[str]:
    return {name.decode(errors="replace") for name in reply} if isinstance(reply, list) else set()


def _count(reply: Any) -> int:
    try:
        return int(reply)
    except (TypeError, ValueError):
        return 0


def job_as_json(job: JobRecord) -> dict[str, Any]:
    """Return what a document says of a job."""
    document = {"jid": job.jid, "queue": job.queue, "class": job.display_class, "args": job.display_args}
    return {**document, "compressed": True} if job.is_compressed else document
