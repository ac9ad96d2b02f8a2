"""CronSync: has Redis hold the cron entries that this application declares, and no others of it.

Runs in: the poller's thread; `refuse_held` in the main thread, at boot.
1. refuse_held   another application that runs has an entry of the same name in the same queue: this one does not start
2. compare       what is declared with what Redis has: at boot and once a minute, by the newest release
3. write         the entries that Redis lacks, a slice in each script; one that is the same keeps its next tick
4. remove        what the application has declared before and does not any more; entries added at run time stay
5. bring back    ticks that a clock which was ahead has put off: of all entries, whoever has added them

A mark in Redis says which declaration of the application is in force: that of the process which started last.  So a
process of the release before writes nothing over those of a new one, as long as a process lives that declares the same
as the mark; each publishes the digest of its entries with its heartbeat.  When none is left, as after a deploy that
failed, the processes that are left write theirs.  All converge when the mark itself is lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

from kiqcluster.application.registry import Registry
from kiqcluster.client.cron_jobs import resolved
from kiqcluster.control.fleet import Fleet, read_fleet
from kiqcluster.errors import ExitCode, RedisRefused, UsageError
from kiqcluster.features.cron import declared_entries
from kiqcluster.process.runtime import Runtime
from kiqcluster.sidekiq.cron_entries import CronEntry
from kiqcluster.store import is_outage
from kiqcluster.store.cron import (
    HELD,
    CronRow,
    Mark,
    StoredEntry,
    begin_writing,
    far_ticks,
    find_ids,
    names_of_others,
    read_entries,
    skip_ticks,
    write,
)
from kiqcluster.store.wire import server_time

__all__ = ["CronSync", "Step", "next_step"]

MAX_SHOWN_NAMES = 20  # of entries, in one line of the log
DIGEST_CHARACTERS = 16
DEPLOY_SECONDS = 900.0  # within which the processes of the release before are expected to end
# A tick is brought back that is later by this much than it would be: clocks differ, and each must have its tick once.
CLOCK_SLACK_SECONDS = 300.0
GIVEN_UP_SECONDS = 60.0  # after which a process that writes is taken for dead


class Step(Enum):
    """What a look finds to do."""

    LEAVE = auto()
    COMPARE = auto()
    WRITE = auto()
    WRITE_IF_ENDED = auto()  # once no process is left that declares what is in force


def next_step(mark: Mark | None, own: Mark, *, is_first: bool, is_given_up: bool) -> Step:
    """Return what to do about the entries of an application.

    mark: what Redis has of it.  own: of this process.  is_first: since its start.  is_given_up: whether the process
    that writes has begun so long ago that it must have died.
    """
    if mark is not None and mark.digest == own.digest:
        return Step.COMPARE
    if mark is None or is_first:
        return Step.WRITE
    if mark.is_unfinished:
        return Step.WRITE if is_given_up else Step.LEAVE
    # An older process has written what it declares; or a younger one, which may have ended since.
    return Step.WRITE if mark.since < own.since else Step.WRITE_IF_ENDED


class CronSync:
    """shard: of this worker; it writes the entries whose jobs go there.

    expect: takes note of a tick of which the poller does not know yet.  cluster_queues: from which the processes of
    this cluster fetch, also those that start at this moment.
    """

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        shard: str,
        expect: Callable[[str, float], None],
        cluster_queues: frozenset[str],
    ) -> None:
        self._runtime = runtime
        self._store = runtime.store
        self._shard = shard
        self._expect = expect
        self._application = runtime.config.known_cron_application()
        self._entries = {each.id: each for each in self._declared(registry)}
        self.digest = _digest_of(self._entries.values())
        self._own: Mark | None = None  # known from the first look on
        self._cluster_queues = cluster_queues
        self._told: dict[str, str] = {}  # entry that another application has → that application, as it was logged
        self._superseded = ""  # digest of what is in force in place of these entries, as it was logged
        self._unserved: frozenset[str] = frozenset()  # queues from which nobody fetches, as it was logged
        self._known: dict[str, float] = {}  # id of an entry → its far tick, which is right
        self._latest = 0.0  # second of the latest look

    def refuse_held(self) -> None:
        """Raise UsageError if another application that runs has one of these entries.

        One round trip; one more if others have entries of one name, two more if one is in the way.
        """
        with self._reporting_refusals():
            others = names_of_others(self._store, self._application) if self._entries else frozenset()
            rows = [CronRow("check", each.id, each.encoded()) for each in self._entries.values() if each.name in others]
            held = _held(rows, write(self._store, rows, self._application) or ())
            fleet = read_fleet(self._store) if held else Fleet()
            for identifier, application in held.items():
                if fleet.runs(application):
                    raise UsageError(self._refusal(identifier, application, fleet), ExitCode.NAME_IN_USE)

    def keep(self) -> None:
        """Write the entries that Redis lacks, and remove those that are not declared any more; bring ticks back.

        Three round trips, and one for each 500 entries; some more if something is written.  What Redis refuses is
        reported, and tried again.  Raises StoreError when Redis is away.
        """
        with self._reporting_refusals():
            self._bring_back(self._look())

    @contextmanager
    def _reporting_refusals(self) -> Iterator[None]:
        """Report an ACL or a broken key: no reason to run no jobs."""
        try:
            yield
        except RedisRefused as error:
            if is_outage(error):
                raise
            self._runtime.trouble("cron", error)

    def _declared(self, registry: Registry) -> list[CronEntry]:
        """Return the entries of this shard.  Raises UsageError."""
        config, setup, found = self._runtime.config, self._runtime.setup, []
        for entry in declared_entries(config, registry, Path.cwd()):
            one, shard = resolved(setup, registry.get(entry.job), entry)
            if shard == self._shard:
                found.append(replace(one, application=self._application))
        return found

    def _look(self) -> float:
        """Do what is to do about the entries of this application; return the time of Redis."""
        raw, time = self._store.pipeline([("HGET", self._store.keys.cron_applications, self._application), ("TIME",)])
        now, mark = server_time(time), Mark.read(raw)
        is_first = self._own is None
        own = self._own = self._own or Mark(self.digest, f"{now:.6f}")
        if not self._entries and mark is None:
            return now
        is_given_up = mark is not None and not 0.0 <= now - mark.since < GIVEN_UP_SECONDS
        step = next_step(mark, own, is_first=is_first, is_given_up=is_given_up)
        if step is Step.WRITE:
            self._write(begin_writing(self._store, self._application, now), own, now)
        elif step is Step.COMPARE and mark is not None:
            self._restore(mark, now)
        elif step is Step.WRITE_IF_ENDED and mark is not None:
            self._write_if_ended(mark, own, now)
        self._tell_unserved()
        return now

    # 3. write

    def _write_if_ended(self, mark: Mark, own: Mark, now: float) -> None:
        """Write all entries if no process is left that declares those of the mark; else say when that lasts long."""
        if not read_fleet(self._store).declares(self._application, mark.digest):
            self._write(begin_writing(self._store, self._application, now), own, now)
        elif now - mark.since > DEPLOY_SECONDS:
            self._tell_superseded(mark, now)

    def _write(self, mark: Mark, own: Mark, now: float) -> None:
        """Write all entries, and remove those of this application that it does not declare any more."""
        if self._put(self._entries.values(), mark, now) is None:  # another process does it
            return
        switches = [
            CronRow("enable", each.id, each.schedule.next(now)) if each.enabled else CronRow("disable", each.id)
            for each in self._entries.values()
            if each.enabled is not None and each.id not in self._told
        ]
        gone = [each for each in find_ids(self._store, application=self._application) if each not in self._entries]
        rows = [*switches, *(CronRow("remove", each) for each in gone), CronRow("finish", "", str(own))]
        words = write(self._store, rows, self._application, mark)
        if words is None:
            return
        removed = _removed(rows, words)
        self._runtime.events.emit("cron_entries_written", entries=len(self._entries), removed=len(removed))
        self._tell("cron_entries_removed", removed)

    def _restore(self, mark: Mark, now: float) -> None:
        """Write what Redis has lost of the entries, or has otherwise; remove what it has beside them."""
        ids = {*self._entries, *find_ids(self._store, application=self._application)}
        stored = {each.id: each for each in read_entries(self._store, sorted(ids), with_history=False)}
        lost = [each for each in self._entries.values() if _is_lost(each, stored.get(each.id))]
        written = self._put(lost, mark, now) if lost else []
        if written is None:
            return
        off = [each for each in written if self._entries[each].enabled is False and not _is_on(stored.get(each))]
        gone = sorted(stored.keys() - self._entries.keys())
        rows = [*(CronRow("disable", each) for each in off), *(CronRow("remove", each) for each in gone)]
        words = write(self._store, rows, self._application, mark) if rows else []
        if words is not None:
            self._tell("cron_entries_restored", written)
            self._tell("cron_entries_removed", _removed(rows, words))

    def _put(self, entries: Iterable[CronEntry], mark: Mark, now: float) -> list[str] | None:
        """Put entries; return the ids of those that are there now, None if another process writes by now.

        Those of an application that has ended are taken over; those of one that runs are not written.
        """
        rows = [CronRow("put", each.id, each.encoded(), each.schedule.next(now)) for each in entries]
        words = write(self._store, rows, self._application, mark)
        if words is None:
            return None
        held, fleet = _held(rows, words), Fleet()
        if held:
            fleet = read_fleet(self._store)
            ended = sorted({each for each in held.values() if not fleet.runs(each)})
            again = [row for row in rows if held.get(row.id) in ended]
            words = write(self._store, again, self._application, mark, ended) if again else []
            if words is None:
                return None
            self._tell("cron_entries_taken_over", [row.id for row in again], others=", ".join(ended))
            held = {each: by for each, by in held.items() if by not in ended} | _held(again, words)
        self._tell_held(held, fleet)
        put = [row for row in rows if row.id not in held]
        if put:
            self._expect(self._store.keys.cron_ticks, min(float(row.further) for row in put))
        return [row.id for row in put]

    # 5. bring back

    def _bring_back(self, now: float) -> None:
        """Have entries await their next tick, where they await a later one because a clock was ahead.

        now: of Redis.  Each tick is looked at once, and all of them once more when that clock has gone back.
        """
        if now < self._latest:
            self._known = {}
        self._latest = now
        far = far_ticks(self._store, now + CLOCK_SLACK_SECONDS)
        unknown = [each for each, at in far.items() if self._known.get(each) != at]
        late: list[tuple[str, float, float | None]] = []
        for stored in read_entries(self._store, unknown, with_history=False) if unknown else ():
            try:
                schedule = CronEntry.read(stored.id, stored.raw).schedule
            except UsageError:  # others may be able to read it
                continue
            if far[stored.id] > schedule.next(now + CLOCK_SLACK_SECONDS):
                late.append((stored.id, far[stored.id], float(schedule.next(now))))
        self._known = far
        if late and skip_ticks(self._store, late):
            self._tell("cron_ticks_brought_back", [each for each, _, _ in late])
            self._expect(self._store.keys.cron_ticks, min(at for _, _, at in late if at is not None))

    # telling

    def _tell(self, event: str, ids: Sequence[str], **fields: str | float) -> None:
        """Name entries, if there are any."""
        if ids:
            names = [each.removesuffix(f"@{self._application}") for each in ids]
            more = f" and {len(names) - MAX_SHOWN_NAMES} more" if len(names) > MAX_SHOWN_NAMES else ""
            shown = ", ".join(names[:MAX_SHOWN_NAMES]) + more
            self._runtime.events.emit(event, names=shown, application=self._application, **fields)

    def _tell_superseded(self, mark: Mark, now: float) -> None:
        """Say once that younger processes declare something else: a deploy would be over by now."""
        if self._superseded != mark.digest:
            self._superseded = mark.digest
            self._tell("cron_entries_superseded", list(self._entries), seconds=now - mark.since)

    def _tell_held(self, held: Mapping[str, str], fleet: Fleet) -> None:
        """Say once that another application has an entry: both have started at the same time."""
        for identifier, application in held.items():
            if self._told.get(identifier) != application:
                self._runtime.events.emit("cron_entry_held", refusal=self._refusal(identifier, application, fleet))
        self._told = dict(held)

    def _tell_unserved(self) -> None:
        """Say once of entries that nobody runs their jobs.  No round trip where this cluster has their queues."""
        entries = [each for each in self._entries.values() if each.queue not in self._cluster_queues]
        fleet = read_fleet(self._store) if entries else Fleet()
        unserved = frozenset(each.queue for each in entries if not fleet.serves(each.queue))
        for queue in sorted(unserved - self._unserved):
            names = [each.id for each in entries if each.queue == queue]
            self._tell("cron_queue_unserved", names, queue=queue)
        self._unserved = unserved

    def _refusal(self, identifier: str, application: str, fleet: Fleet) -> str:
        entry, identity = self._entries[identifier], fleet.members.get(application, "as it seems")
        return (
            f"cron entry {entry.name} of the application {self._application!r} has the name and the queue "
            f"({entry.queue}) of an entry of the application {application!r}, which runs ({identity}): each tick would "
            "run twice. If both are one application, set the same cron_application in both; if this is its new name, "
            f"keep cron_application = {application!r}, or stop the processes of the old name first. If they are two, "
            "give this entry another name or another queue"
        )


def _digest_of(entries: Iterable[CronEntry]) -> str:
    text = b"\n".join(
        b"%s %r %s" % (each.id.encode(), each.enabled, each.encoded())
        for each in sorted(entries, key=lambda each: each.id)
    )
    return hashlib.sha256(text).hexdigest()[:DIGEST_CHARACTERS]


def _held(rows: Sequence[CronRow], words: Sequence[str]) -> dict[str, str]:
    """Return id of an entry → the application that has it already."""
    pairs = zip(rows, words, strict=True)
    return {row.id: word.removeprefix(HELD) for row, word in pairs if word.startswith(HELD)}


def _removed(rows: Sequence[CronRow], words: Sequence[str]) -> list[str]:
    """Return the ids of the entries that were removed; another application may have one that ends with our name."""
    return [row.id for row, word in zip(rows, words, strict=True) if row.verb == "remove" and word == "DONE"]


def _is_on(stored: StoredEntry | None) -> bool:
    return stored is not None and stored.next_at is not None


def _is_lost(entry: CronEntry, stored: StoredEntry | None) -> bool:
    """Return whether Redis lacks an entry or its tick, or has another one in its place."""
    return stored is None or stored.raw != entry.encoded() or not (stored.is_disabled or _is_on(stored))
