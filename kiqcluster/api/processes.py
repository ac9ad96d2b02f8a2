"""Processes: who works, what they run, and what they can be asked to do; Ruby's processes like ours.

ProcessSet   a look at all processes: quiet one, stop one, dump the stacks of its threads
WorkSet      the jobs that run, by the latest heartbeats: up to 10 s old

Counterpart: sidekiq api.rb ProcessSet, WorkSet.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kiqcluster.api._store import store_in_force
from kiqcluster.api.records import JobRecord
from kiqcluster.client.results import Progress, read_progress
from kiqcluster.control import process_registry
from kiqcluster.control.control_messages import MESSAGE_TTL_SECONDS, Message, send
from kiqcluster.control.orders import MAX_LEASE_SECONDS
from kiqcluster.errors import MalformedIteration, UsageError
from kiqcluster.features.iteration import STATE_FIELDS, Iteration, read_iteration
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import seconds
from kiqcluster.store import Store

__all__ = [
    "RUBY_ACTIONS",
    "Iteration",
    "Process",
    "ProcessSet",
    "Told",
    "Work",
    "WorkSet",
    "read_commands",
    "read_iterations",
    "read_told",
    "read_work",
    "read_works",
    "with_progress",
]

MAX_PER_ROUND_TRIP = 500  # processes asked for in one round trip
MAX_KEYS_PER_ROUND_TRIP = 1_000  # jobs whose progress is asked for in one round trip
RUN_AT = re.compile(rb'"run_at": ?([0-9]{1,12}(?:\.[0-9]{1,9})?)\}\Z')  # at the end of a running job
MAX_RUN_AT_BYTES = 40
SIGNALS = {"quiet": "TSTP", "stop": "TERM", "dump": "TTIN"}  # what Ruby's processes are sent instead of words
RUBY_ACTIONS = tuple(SIGNALS)  # that the heartbeat of Ruby's Sidekiq understands


@dataclass(frozen=True, slots=True)
class Process(process_registry.RegisteredProcess):
    """A live process, and what it can be asked to do.

    It is asked through Redis and acts within a moment; Ruby's Sidekiq at its next heartbeat, up to 10 s later.  Each
    request is one round trip.  Raises StoreError, and UsageError for what this process cannot do.
    """

    store: Store = field(kw_only=True, repr=False, compare=False)

    def quiet(self, lease: float | None = None) -> None:
        """Have it fetch nothing more; what it runs goes on.

        lease: seconds after which that ends by itself, 0 for never, None for what it is set to.  Ruby's are quiet
        until they stop.
        """
        if lease is not None and not self.is_ours:
            raise UsageError(f"{self.identity} is Ruby's Sidekiq: once quiet, it stays so; leave the lease out")
        if lease is not None and not 0 <= lease < MAX_LEASE_SECONDS:  # it would drop the message, and nobody would know
            raise UsageError(f"a lease is seconds, and 0 has no end; {lease} is none")
        self._ask("quiet", None if lease is None else float(lease))

    def resume(self) -> None:
        """End its quiet."""
        if not self.is_ours:
            raise UsageError(f"{self.identity} is Ruby's Sidekiq, which cannot end a quiet; stop it and start another")
        self._ask("resume")

    def stop(self) -> None:
        """Have it end: what still runs at its deadline is put back.  A supervisor starts another in its place."""
        self._ask("stop")

    def dump(self) -> None:
        """Have it write the stacks of its threads to its log."""
        self._ask("dump")

    def _ask(self, action: str, lease: float | None = None) -> None:
        if self.is_embedded:
            raise UsageError(f"{self.identity} runs inside of another program, which alone can {action} it")
        if self.is_ours:
            message = Message(action, scope="process", lease=lease, by="kiqcluster.api", id=secrets.token_hex(8))
            send(self.store, self.identity, message)
            return
        key = self.store.keys.signals(self.identity)
        self.store.transaction([("LPUSH", key, SIGNALS[action]), ("EXPIRE", key, MESSAGE_TTL_SECONDS)])


class ProcessSet:
    """A look at the live processes, by identity: what it says is as of the moment it was made.

    Two round trips when it is made, one more for each 500 processes.  Raises StoreError.
    """

    def __init__(self, *, store: Store | None = None) -> None:
        self._store = store_in_force(store)
        found = process_registry.list_processes(self._store)
        names = [each.name for each in fields(process_registry.RegisteredProcess)]
        self._by_identity = {
            each.identity: Process(**{name: getattr(each, name) for name in names}, store=self._store) for each in found
        }

    def __iter__(self) -> Iterator[Process]:
        return iter(self._by_identity.values())

    def __len__(self) -> int:
        return len(self._by_identity)

    def __getitem__(self, identity: str) -> Process:
        """Return the process of that identity.  Raises KeyError."""
        return self._by_identity[identity]

    def __contains__(self, process: object) -> bool:
        """Return whether a process, or the process of an identity, was there."""
        identity = process.identity if isinstance(process, process_registry.RegisteredProcess) else process
        return identity in self._by_identity

    @property
    def total_concurrency(self) -> int:
        """Threads of all processes."""
        return sum(each.concurrency for each in self)

    @property
    def total_rss(self) -> int:
        """Bytes that all processes occupy; what they share counts for each."""
        return sum(each.rss for each in self)

    @property
    def leader(self) -> str | None:
        """Identity of Sidekiq Enterprise's leader, None where there is none.  One round trip, now."""
        leader = self._store.call("GET", self._store.keys.leader)
        return leader.decode(errors="replace") if leader else None

    def cleanup(self) -> int:
        """Drop from the registry who has not been heard of for a minute; return how many.

        Processes do it by themselves, about once a minute over the whole fleet; within a minute of the last time this
        returns 0.  One round trip, three when it is time.
        """
        return process_registry.prune(self._store)


@dataclass(frozen=True, slots=True)
class Work:
    """A job that runs.  tid: the thread's name within its process.  run_at: since when, epoch seconds.

    progress: how far it has come, as of two seconds ago at most; None where it has not said so.
    """

    identity: str
    tid: str
    queue: str
    run_at: float
    job: JobRecord
    progress: Progress | None = None


class WorkSet:
    """The jobs that run, as processes tell with their heartbeats, longest first.

    Shorter jobs than the time between two heartbeats, 10 s, mostly do not show.  Raises StoreError.
    """

    def __init__(self, *, store: Store | None = None) -> None:
        self._store = store_in_force(store)

    def __iter__(self) -> Iterator[Work]:
        """Look.  Three round trips, two more for each 500 processes."""
        identities = _names(self._store.call("SMEMBERS", self._store.keys.processes))
        found: list[Work] = []
        for at in range(0, len(identities), MAX_PER_ROUND_TRIP):
            found += self._look(identities[at : at + MAX_PER_ROUND_TRIP])
        return iter(sorted(found, key=lambda work: work.run_at))

    @property
    def size(self) -> int:
        """How many jobs run, as the processes count them.  Round trips as iteration: list() would ask for a length."""
        return sum(each.busy for each in process_registry.list_processes(self._store))

    def __bool__(self) -> bool:
        return self.size > 0

    def find_work(self, jid: str) -> Work | None:
        """Return where a job runs, None if nowhere.  Round trips as iteration."""
        return next((work for work in self if work.job.jid == jid), None)

    def _look(self, identities: list[str]) -> list[Work]:
        return with_progress(self._store, read_works(self._store, identities))


def read_commands(keys: Keys, identity: str) -> list[tuple[str, str]]:
    """Return the two commands whose replies `read_work` reads, for whoever asks for more in one round trip."""
    return [("HGETALL", keys.work(identity)), ("HGETALL", keys.workers(identity))]


def read_work(identity: str, work: Any, workers: Any) -> Iterator[Work]:
    """Yield what a process runs: the younger form, else that of 6.4.1."""
    flat = work if isinstance(work, list) and work else workers
    if isinstance(flat, list):
        for tid, raw in zip(flat[::2], flat[1::2], strict=True):
            if (found := _read(identity, tid, raw)) is not None:
                yield found


@dataclass(frozen=True, slots=True)
class Told:
    """A running job as a process has told it: decoded by `read`, since a page shows a few of thousands."""

    identity: str
    tid: bytes
    raw: bytes
    run_at: float

    def read(self) -> Work | None:
        """Return the job; None for what cannot be read."""
        return _read(self.identity, self.tid, self.raw)


def read_told(store: Store, identities: Sequence[str]) -> list[Told]:
    """Return what processes run, longest first.  One round trip per 500.  Raises StoreError."""
    found: list[Told] = []
    commands = [command for each in identities for command in read_commands(store.keys, each)]
    replies = store.read_each(commands, 2 * MAX_PER_ROUND_TRIP)
    for identity, work, workers in zip(identities, replies[::2], replies[1::2], strict=True):
        flat = work if isinstance(work, list) and work else workers
        if isinstance(flat, list):
            pairs = zip(flat[::2], flat[1::2], strict=True)
            found += [Told(identity, tid, raw, _run_at(identity, tid, raw)) for tid, raw in pairs]
    return sorted(found, key=lambda each: each.run_at)


def _run_at(identity: str, tid: bytes, raw: bytes) -> float:
    """Return since when a job runs: the last member, in the order in which Sidekiq and kiqcluster write."""
    last = RUN_AT.search(raw, max(0, len(raw) - MAX_RUN_AT_BYTES))
    if last is not None:
        return float(last[1])
    work = _read(identity, tid, raw)
    return 0.0 if work is None else work.run_at


def read_works(store: Store, identities: Sequence[str]) -> list[Work]:
    """Return what processes run, without progress, longest first.  One round trip per 500.  Raises StoreError."""
    return [work for each in read_told(store, identities) if (work := each.read()) is not None]


def with_progress(store: Store, works: Iterable[Work]) -> list[Work]:
    """Return running jobs with their progress.  One round trip for each 1 000, none for none.  Raises StoreError."""
    found = list(works)
    asked = [at for at, work in enumerate(found) if work.job.jid and ruby_json.is_unicode(work.job.jid)]
    commands = [("GET", store.keys.progress(found[at].job.jid)) for at in asked]
    for at, raw in zip(asked, store.read_each(commands, MAX_KEYS_PER_ROUND_TRIP), strict=True):
        if isinstance(raw, bytes):
            found[at] = replace(found[at], progress=read_progress(raw))
    return found


def read_iterations(store: Store, works: Iterable[Work]) -> dict[str, Iteration]:
    """Return jid → where an iterable job is, for those that have told it.  One round trip.  Raises StoreError."""
    jids = list(dict.fromkeys(each.job.jid for each in works if each.job.jid and ruby_json.is_unicode(each.job.jid)))
    keys = [store.keys.iteration(each) for each in jids]
    if not keys:
        return {}
    replies = store.read_each([("HMGET", key, *STATE_FIELDS) for key in keys])
    found: dict[str, Iteration] = {}
    for jid, key, values in zip(jids, keys, replies, strict=True):
        if isinstance(values, list) and any(values):
            with suppress(MalformedIteration):
                found[jid] = read_iteration(key, values)
    return found


def _read(identity: str, tid: bytes, raw: bytes) -> Work | None:
    """Return what a thread runs; None for what cannot be read."""
    try:
        told = ruby_json.decode(raw)
    except ruby_json.Undecodable:
        return None
    if not isinstance(told, dict):
        return None
    payload, queue = told.get("payload"), told.get("queue")
    if isinstance(payload, str):
        raw_job = payload.encode(errors="surrogatepass")
    else:  # an object, until Sidekiq 6.5
        raw_job = bytes(ruby_json.members(raw).get("payload", b""))
    job = JobRecord(raw_job, queue if isinstance(queue, str) else None)
    return Work(identity, tid.decode(errors="replace"), job.queue, seconds(told.get("run_at")) or 0.0, job)


def _names(reply: Any) -> list[str]:
    return sorted(name.decode(errors="replace") for name in reply)
