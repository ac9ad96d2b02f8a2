"""Cron entries: list, add, remove, enable, disable, enqueue now; the records of sidekiq-cron (features/cron.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kiqcluster.api._store import CLOCK, store_in_force
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.client.cron_jobs import resolved
from kiqcluster.client.draft import Draft
from kiqcluster.client.sending import send
from kiqcluster.control.fleet import Fleet, read_fleet
from kiqcluster.errors import InvalidArguments, UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.cron_entries import (
    CRON,
    CRON_AT,
    GRACE_SECONDS,
    CronEntry,
    CronRun,
    Missed,
    parse_entries,
    ruby_entry,
)
from kiqcluster.sidekiq.payload import Jid, new_jid
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store
from kiqcluster.store.cron import HISTORY_SIZE, CronRow, StoredEntry, find_ids, read_entries, write
from kiqcluster.store.wire import Reply, server_time

__all__ = ["CronPush", "CronSet", "CronStatus", "RubyCronJob", "enqueued_twice", "labels_of"]

RUBY_NAMESPACES = ("", "default")  # of sidekiq-cron's records: before release 2, and its default since
RECORD_PREFIX = "cron_job:"
MAX_RECORDS = 10_000
OWN_KEYS = 4  # of write_cron.lua


@dataclass(frozen=True, slots=True)
class CronStatus:
    """A cron entry as it is in Redis.

    id: `<name>@<application>` of one that an application declares, else its name.  entry: None for bytes that are no
    entry; error then says why.  next_at: its next tick, epoch seconds, None while
    disabled.  latest: its latest job, None if nobody remembers one.
    """

    id: str
    entry: CronEntry | None
    error: str
    is_enabled: bool
    next_at: float | None
    latest: CronRun | None

    @property
    def name(self) -> str:
        return self.id if self.entry is None else self.entry.name

    @property
    def application(self) -> str:
        """The application that declares it, "" for one that was added at run time."""
        return "" if self.entry is None else self.entry.application

    def is_served(self, fleet: Fleet) -> bool:
        """Return whether a process fetches from the queue of its jobs."""
        return self.entry is None or fleet.serves(self.entry.queue)

    def is_orphaned(self, fleet: Fleet) -> bool:
        """Return whether no process of the application runs that declares it."""
        return bool(self.application) and not fleet.runs(self.application)


@dataclass(frozen=True, slots=True)
class RubyCronJob:
    """A record of sidekiq-cron.  key: of its hash.  error: why it cannot be taken over, "" if it can."""

    name: str
    key: str
    record: Mapping[str, str]
    entry: CronEntry | None
    is_enabled: bool
    error: str


@dataclass(frozen=True, slots=True)
class CronPush:
    """What became of a job that somebody enqueues now.

    jid: of the job, None if it was not enqueued.  holder: jid of the job whose lock has kept it out (deduplication);
    without both, client middleware has stopped it.
    """

    jid: Jid | None
    holder: Jid | None


def labels_of(entries: Iterable[CronStatus]) -> dict[str, str]:
    """Return id of each entry → its name; the id where several have that name."""
    names = {each.id: each.name for each in entries}
    counts = Counter(names.values())
    return {identifier: identifier if counts[name] > 1 else name for identifier, name in names.items()}


class CronSet:
    """The cron entries of a Redis.

    Methods take the name of an entry, or its id where several applications have one of that name; they raise UsageError
    for a name that several have.
    """

    def __init__(self, *, store: Store | None = None, clock: Clock = CLOCK) -> None:
        self._given = store
        self._store = store_in_force(store)
        self._clock = clock

    def __repr__(self) -> str:
        return "<CronSet>"

    def list(self) -> list[CronStatus]:
        """Return all entries, by id.  One round trip, and one for each 500.  Raises StoreError."""
        return [_status(each) for each in read_entries(self._store)]

    def get(self, name: str) -> CronStatus | None:
        """Return an entry, None if there is none.  Two round trips, one for an id.  Raises UsageError, StoreError."""
        found = read_entries(self._store, [name])
        if not found and (ids := find_ids(self._store, name=name)):
            found = read_entries(self._store, ids)
        several = [each for each in map(_status, found) if name in (each.id, each.name)]
        if len(several) > 1:
            ids = [each.id for each in several]
            raise UsageError(f"there are several cron entries {name}; write {' or '.join(ids)}")
        return several[0] if several else None

    def fleet(self) -> Fleet:
        """Return which queues and applications have a live process.  Two round trips, one more per 500 processes.

        Raises StoreError.
        """
        return read_fleet(self._store)

    def history(self, name: str) -> tuple[CronRun, ...]:
        """Return the latest jobs of an entry, the newest first, 10 at most.

        Three round trips, two for an id.  Raises UsageError, StoreError.
        """
        status = self.get(name)
        key = self._store.keys.cron_history(name if status is None else status.id)
        (lines,) = self._store.read_each([("LRANGE", key, 0, HISTORY_SIZE - 1)])
        return tuple(
            run for line in (lines if isinstance(lines, list) else ()) if (run := CronRun.read(line)) is not None
        )

    def add(
        self,
        name: str,
        schedule: str,
        job: Any,
        args: Sequence[JSON] = (),
        *,
        tz: str | None = None,
        queue: str = "",
        retry: bool | int | None = None,
        missed: Missed = "once",
        grace: float = GRACE_SECONDS,
        description: str = "",
    ) -> CronEntry:
        """Add an entry, or change one that was added so, and return it.  Deploys leave it alone.

        job: a job class, a job function or a name; one that this process does not know needs a queue.  The other
        arguments are those of an entry in the configuration.  Two round trips.
        Raises UsageError for an entry that cannot work, and for one that an application declares; StoreError.
        """
        definition: Definition | None = getattr(job, "definition", None) or current_registry().get(str(job))
        try:
            arguments = list(args) if definition is None else definition.write(list(args))
        except InvalidArguments as error:
            raise UsageError(f"cron entry {name}: args do not fit: {error}") from error
        table: dict[str, Any] = {
            "schedule": schedule,
            "job": definition.name if definition else job,
            "args": arguments,
        }
        table |= {
            "tz": tz,
            "queue": queue,
            "retry": retry,
            "missed": missed,
            "grace": grace,
            "description": description,
        }
        (declared,) = parse_entries({name: table})
        declared.schedule.check_steps()
        if definition is None and not queue:
            raise UsageError(f"cron entry {name}: this process does not know the job {job!r}; pass its queue")
        if definition is not None and (misfit := definition.fits(declared.args)):
            raise UsageError(f"cron entry {name}: args do not fit: {misfit}")
        entry, shard = resolved(current_setup(), definition, declared)
        store = self._store if self._given or not shard else current_setup().shard(shard)
        self._write(store, CronRow("put", entry.id, entry.encoded(), self._next(store, entry)))
        return entry

    def remove(self, name: str) -> bool:
        """Remove an entry; return whether it was there.  Three round trips; three more if an application declares it.

        Raises UsageError for one of an application that runs, which would write it again; StoreError.
        """
        status = self.get(name)
        if status is None:
            return False
        owner = status.application
        if owner and (fleet := self.fleet()).runs(owner):
            raise UsageError(
                f"cron entry {status.id} is declared by the application {owner}, which runs "
                f"({fleet.members.get(owner, 'as it seems')}): remove it there, or disable it"
            )
        return _check(write(self._store, [CronRow("remove", status.id)], owner), status.id)

    def disable(self, name: str) -> bool:
        """Have an entry enqueue nothing until it is enabled, deploys notwithstanding; return whether it is there.

        Three round trips.  Raises UsageError, StoreError.
        """
        status = self.get(name)
        return status is not None and self._write(self._store, CronRow("disable", status.id))

    def enable(self, name: str) -> bool:
        """Have an entry enqueue jobs again, from its next tick on; return whether it is there.

        Four round trips.  Raises UsageError, also for bytes that are no entry; StoreError.
        """
        status = self.get(name)
        if status is None:
            return False
        return self._write(self._store, CronRow("enable", status.id, self._next(self._store, _entry_of(status))))

    def enqueue(self, name: str) -> Jid | None:
        """Enqueue the job of an entry now, whatever its schedule; return its jid, None if middleware stopped it.

        As with any push: where a lock keeps the job out, the jid is that of the job that holds the lock.
        Four round trips.  Raises UsageError if there is no such entry; what a push raises.
        """
        pushed = self.push(name)
        return pushed.jid or pushed.holder

    def push(self, name: str) -> CronPush:
        """Do the same; return what became of it.  The history gets a line only if a job was enqueued."""
        status = self.get(name)
        if status is None:
            raise UsageError(f"there is no cron entry {name!r}; kiqctl cron list shows those that there are")
        entry, now = _entry_of(status), self._clock.now()
        options = {**entry.options, "queue": entry.queue, CRON: entry.name, CRON_AT: int(now)}
        definition = current_registry().get(entry.job)
        jid = new_jid()
        draft = Draft(entry.job, options, list(entry.args), definition, jid=jid, store=self._store)
        found = send(current_setup(), draft)
        if found != jid:
            return CronPush(None, found)
        history = self._store.keys.cron_history(entry.id)
        line = CronRun(jid, now, now).encoded()
        self._store.pipeline([("LPUSH", history, line), ("LTRIM", history, 0, HISTORY_SIZE - 1)])
        return CronPush(jid, None)

    def ruby_jobs(self, namespaces: Sequence[str] = RUBY_NAMESPACES) -> tuple[RubyCronJob, ...]:
        """Return the records of sidekiq-cron, by name.  namespaces: "" for those before its release 2.

        Two round trips.  Raises StoreError.
        """
        sets = self._store.read_each(
            [("SRANDMEMBER", self._store.keys.cron_jobs(each), MAX_RECORDS) for each in namespaces]
        )
        keys = sorted({key.decode(errors="replace") for names in sets if isinstance(names, list) for key in names})
        keys = [key for key in keys if key.startswith(RECORD_PREFIX)]
        records = self._store.read_each([("HGETALL", key) for key in keys]) if keys else []
        found = [_ruby_job(key, flat) for key, flat in zip(keys, records, strict=True) if flat]
        return tuple(sorted(found, key=lambda each: each.name))

    def take_over(self, job: RubyCronJob) -> CronEntry:
        """Add the entry of a record of sidekiq-cron, and disable the record, in one step; return the entry.

        An entry whose record is disabled becomes disabled as well.  Two round trips.
        Raises UsageError for a record that only Ruby can enqueue; StoreError.
        """
        if job.entry is None:
            raise UsageError(job.error)
        entry, _ = resolved(current_setup(), None, job.entry)
        following = self._next(self._store, entry)
        rows = [CronRow("take_over", entry.id, entry.encoded(), f"{following} {OWN_KEYS + 1}")]
        if not job.is_enabled:
            rows.append(CronRow("disable", entry.id))
        _check(write(self._store, rows, keys=[job.key]), entry.name)
        return entry

    def _next(self, store: Store, entry: CronEntry) -> int:
        """Return the next tick by the clock of Redis, which all processes share."""
        return entry.schedule.next(server_time(store.call("TIME")))

    def _write(self, store: Store, row: CronRow) -> bool:
        return _check(write(store, [row]), row.id)


def enqueued_twice(ours: Iterable[CronStatus], theirs: Iterable[RubyCronJob]) -> frozenset[str]:
    """Return the names of entries whose jobs kiqcluster and sidekiq-cron both enqueue.

    That is so once somebody has enabled the record of an entry that was taken over.
    """
    jobs = {(each.name, each.record.get("klass")) for each in theirs if each.is_enabled}
    enabled = [(each.name, each.entry.job) for each in ours if each.is_enabled and each.entry is not None]
    return frozenset(name for name, job in enabled if (name, job) in jobs)


def _check(words: Sequence[str] | None, name: str) -> bool:
    """Return whether the entry was there.  Raises UsageError."""
    word = (words or ["ABSENT"])[0]
    if word == "DECLARED":
        raise UsageError(
            f"cron entry {name} is declared by an application: change it there, disable it, or take another name"
        )
    return word == "DONE"


def _status(stored: StoredEntry) -> CronStatus:
    entry, error = None, ""
    try:
        entry = CronEntry.read(stored.id, stored.raw)
    except UsageError as problem:
        error = str(problem)
    return CronStatus(stored.id, entry, error, not stored.is_disabled, stored.next_at, CronRun.read(stored.latest))


def _entry_of(status: CronStatus) -> CronEntry:
    if status.entry is None:
        raise UsageError(status.error)
    return status.entry


def _ruby_job(key: str, flat: Reply) -> RubyCronJob:
    if not isinstance(flat, list):
        return RubyCronJob(key.rpartition(":")[2], key, {}, None, True, f"{key} is not a hash: {flat}")
    words = [word.decode(errors="replace") for word in flat]
    record = dict(zip(words[::2], words[1::2], strict=True))
    name = record.get("name") or key.rpartition(":")[2]
    try:
        entry, is_enabled = ruby_entry(name, record)
    except UsageError as error:
        return RubyCronJob(name, key, record, None, record.get("status", "enabled") == "enabled", str(error))
    return RubyCronJob(name, key, record, entry, is_enabled, "")
