"""Limits: concurrency limits, who holds their places, and the jobs that are parked until a place is free.

LimitStatus   one limit, or one key of it: places held and by whom, jobs parked, the limit, its override
ParkedJobs    the parked jobs of a limit: to look at, and to delete
LimitLine     one limit, or one key of it, and a page of its line
override_limit, end_override   another limit for a while (store/limits/parking.py)

What is known of a limit without parked jobs is what a worker has used last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import zip_longest
from math import isfinite
from typing import Any

from kiqcluster.api._pages import Order, batches, walk_set
from kiqcluster.api._store import integer, store_in_force
from kiqcluster.api.records import JobRecord, is_verbatim, renamed
from kiqcluster.errors import UsageError
from kiqcluster.features.chains import DELETED, told_of_dropped
from kiqcluster.sidekiq.payload import check_queue_name
from kiqcluster.store import Store
from kiqcluster.store.entry_moves import STAGE, DeadSetLimits, Move, drop_entries, move_entries
from kiqcluster.store.limits import parking
from kiqcluster.store.replies import note
from kiqcluster.store.search import search_entries
from kiqcluster.store.shard_moves import ShardMove
from kiqcluster.store.store import scan
from kiqcluster.store.wire import Command, WrongType, server_time

__all__ = [
    "LimitLine",
    "LimitStatus",
    "ParkedJob",
    "ParkedJobs",
    "PlaceHolder",
    "concurrency_limits",
    "end_override",
    "override_limit",
    "parked_count",
    "place_holders",
]

MAX_PER_ROUND_TRIP = 500
MAX_MEMBERS_PER_SCAN = 1_000
NO_LIMITS = DeadSetLimits(0, 0)  # of the dead set, where nothing is buried


@dataclass(frozen=True, slots=True)
class PlaceHolder:
    """A job that holds a place, and its process."""

    job: JobRecord
    identity: str


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """name: of the class.  key: "" for a limit without keys.  limit: declared, as a worker has used it last.

    override: another limit that is in force.  override_until: epoch seconds by Redis' clock, inf until it is ended.
    0 is no limit, less than 0 lets nothing run.  parked: jobs that wait for a place.
    """

    name: str
    key: str
    limit: int | None
    override: int | None
    override_until: float | None
    holders: tuple[PlaceHolder, ...]
    parked: int

    @property
    def in_force(self) -> int | None:
        return self.limit if self.override is None else self.override


class ParkedJob(JobRecord):
    """A job in the line of a limit.  parked_at: epoch seconds of its first parking."""

    __slots__ = ("_entry", "_slots", "key", "parked_at")

    def __init__(self, entry: bytes, score: float, slots: str, key: str, prefix: str) -> None:
        queue, _, payload = entry.partition(b"\0")
        super().__init__(payload, queue.decode(errors="replace").removeprefix(prefix))
        self.key = key
        self.parked_at = score / 1e6
        self._entry = entry
        self._slots = slots


class ParkedJobs:
    """The jobs parked by the limit of a class, of all its keys.  Iteration is in the order in which they will go on."""

    def __init__(self, name: str, *, store: Store | None = None) -> None:
        self.name = name
        self._store = store_in_force(store)

    def __len__(self) -> int:
        """Return how many there are.  Two round trips."""
        return sum(_lengths(self._store, self._slots()))

    def __iter__(self) -> Iterator[ParkedJob]:
        """Yield the jobs, key by key.  One round trip per page of 500."""
        for slots in self._slots():
            for entry, score in walk_set(self._store, self._store.keys.parked(slots), Order.OLDEST_FIRST):
                yield self._record(slots, entry, score)

    def holding(self, texts: Sequence[bytes]) -> Iterator[ParkedJob]:
        """Yield the jobs whose bytes hold one of up to 8 texts, in no order.  One round trip per 2 000 jobs."""
        for slots in self._slots():
            for entry, score in search_entries(self._store, self._store.keys.parked(slots), texts):
                yield self._record(slots, entry, score)

    def find_job(self, jid: str) -> ParkedJob | None:
        """Return the job of this id.  One round trip per 2 000 jobs."""
        jobs = self.holding([jid.encode()]) if is_verbatim(jid) else iter(self)
        return next((job for job in jobs if job.jid == jid), None)

    def delete(self, job: ParkedJob) -> bool:
        """Delete a job; return False when it was not parked any more.  One round trip."""
        return self.delete_all([job]) == 1

    def delete_all(self, jobs: Iterable[ParkedJob]) -> int:
        """Delete jobs; return how many were still parked.  One round trip per 500."""
        parked = self._store.keys.parked
        return sum(
            drop_entries(
                self._store,
                [(parked(job._slots), job._entry) for job in batch],
                {job._entry: told_of_dropped(job._entry, DELETED) for job in batch},
            )
            for batch in batches(jobs)
        )

    def move(self, jobs: Iterable[ParkedJob], to: str) -> int:
        """Give parked jobs another queue, to which they go in their turn; return how many were still parked.

        Two round trips per 500 and line.  Raises InvalidPush for a name that is none.
        """
        name, keys = check_queue_name(to), self._store.keys
        moved = 0
        for batch in batches(jobs, lambda one, other: one._slots == other._slots):
            self._store.call("SADD", keys.queues, name)
            moves = [_moved(keys.queue(name), job, name) for job in batch]
            moved += len(move_entries(self._store, keys.parked(batch[0]._slots), moves, 0.0, NO_LIMITS).indexes)
        return moved

    def stage(self, jobs: Iterable[ParkedJob], to: str, move: ShardMove) -> int:
        """Stage parked jobs for a queue of another shard, where they may be parked again; return how many were parked.

        `ShardMove.deliver` is to follow.  One round trip per 500 and line.  Raises InvalidPush.
        """
        name, moved = check_queue_name(to), 0
        for batch in batches(jobs, lambda one, other: one._slots == other._slots):
            moves = [Move(job._entry, STAGE, move.to, move.entry(renamed(job.raw, name), name)) for job in batch]
            moved += len(move_entries(self._store, self._store.keys.parked(batch[0]._slots), moves, 0.0, NO_LIMITS)[0])
        return moved

    def _slots(self) -> list[str]:
        keys = self._store.keys
        found = (slots for slots in parking.parked_sets(self._store) if parking.name_of(keys, slots)[0] == self.name)
        return sorted({keys.slots(self.name), *found})

    def _record(self, slots: str, entry: bytes, score: float) -> ParkedJob:
        keys = self._store.keys
        return ParkedJob(entry, score, slots, parking.name_of(keys, slots)[1], keys.queue(""))


class LimitLine:
    """One limit, or one key of it, and the line of jobs that it has parked."""

    def __init__(self, name: str, key: str = "", *, store: Store | None = None) -> None:
        self.name = name
        self.key = key
        self._store = store_in_force(store)
        self._slots = self._store.keys.slots(name, key)
        self._line = self._store.keys.parked(self._slots)

    def look(self, start: int, count: int, most_holders: int) -> tuple[LimitStatus, int, list[ParkedJob]]:
        """Return the limit, how many places are held, and so many jobs of its line, those first that go on first.

        most_holders: so many of those who hold places are told.  Three round trips.  Raises StoreError.
        """
        keys = self._store.keys
        time, words, held, holders, parked, flat = self._store.read_each(
            [
                ("TIME",),
                ("HMGET", keys.limits, self.name, f"{self.name}|override"),
                ("SCARD", self._slots),
                ("SSCAN", self._slots, 0, "COUNT", most_holders),
                ("ZCARD", self._line),
                ("ZRANGE", self._line, start, start + count - 1, "WITHSCORES"),
            ]
        )
        limit, override = words if isinstance(words, list) else (None, None)
        in_force, until = parking.override_of(override, server_time(time)) or (None, None)
        found = holders[1][:most_holders] if isinstance(holders, list) else []
        status = LimitStatus(
            self.name, self.key, integer(limit), in_force, until, self._holders(found), _number(parked)
        )
        return status, _number(held), self._records(flat)

    def at_places(self, times: Iterable[float]) -> list[ParkedJob]:
        """Return the jobs that were parked at one of these times (epoch seconds).  One round trip per 500."""
        scores = sorted({repr(round(1e6 * time)) for time in times if isfinite(time)})
        commands: list[Command] = [("ZRANGE", self._line, each, each, "BYSCORE", "WITHSCORES") for each in scores]
        return [job for flat in _ask(self._store, commands) for job in self._records(flat)]

    def _records(self, flat: Any) -> list[ParkedJob]:
        """Return the jobs of a reply; none where the key is no line."""
        if not isinstance(flat, list):
            return []
        prefix = self._store.keys.queue("")
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return [ParkedJob(entry, float(score), self._slots, self.key, prefix) for entry, score in pairs]

    def _holders(self, members: Sequence[bytes]) -> tuple[PlaceHolder, ...]:
        """Return who they are.  members: "<identity>/<token>".  Two round trips."""
        pairs = [member.decode(errors="replace").rpartition("/")[::2] for member in members]
        identities = sorted({identity for identity, _ in pairs})
        names = _ask(self._store, [("HKEYS", self._store.keys.held(identity)) for identity in identities])
        fields = {
            (identity, field.partition(b":")[0].decode(errors="replace")): field.decode(errors="replace")
            for identity, found in zip(identities, names, strict=True)
            for field in (found if isinstance(found, list) else ())
        }
        held = [(identity, fields.get((identity, token), f"{token}:")) for identity, token in pairs]
        payloads = _ask(self._store, [("HGET", self._store.keys.inflight(identity), field) for identity, field in held])
        return tuple(
            _place_holder(identity, field, payload) for (identity, field), payload in zip(held, payloads, strict=True)
        )


def concurrency_limits(*, store: Store | None = None, most_holders: int | None = None) -> list[LimitStatus]:
    """Return the limits that workers have used, by name and key; of keys only those with held places or parked jobs.

    most_holders: the jobs of so many who hold places are read, None for all; of the others the record is empty.
    Three round trips, one more per 500 processes, held places that are read, and lines.  Raises StoreError.
    """
    shard = store_in_force(store)
    time, known = shard.read_each([("TIME",), ("HGETALL", shard.keys.limits)])
    known = known if isinstance(known, list) else []
    now = server_time(time)
    words = {name.decode(errors="replace"): value for name, value in zip(known[::2], known[1::2], strict=True)}
    holders = place_holders(shard, shard.keys.slots(""), most_holders)
    lines = sorted(set(_unless_broken(parking.parked_sets(shard))))
    sizes = dict(zip(lines, _lengths(shard, lines), strict=True))
    used = {slots for slots in lines if sizes[slots]} | holders.keys()
    names = {name for name in words if not name.endswith("|override")}
    names -= {parking.name_of(shard.keys, slots)[0] for slots in used}
    found = []
    for slots in (*used, *(shard.keys.slots(name) for name in names)):
        name, key = parking.name_of(shard.keys, slots)
        override, until = parking.override_of(words.get(f"{name}|override"), now) or (None, None)
        limit = integer(words.get(name))
        parked = sizes.get(slots, 0)
        found.append(LimitStatus(name, key, limit, override, until, tuple(holders.get(slots, ())), parked))
    return sorted(found, key=lambda each: (each.name, each.key))


def parked_count(*, store: Store | None = None) -> int:
    """Return how many jobs are parked by all limits.  Two round trips, one more per 500 lines.  Raises StoreError."""
    shard = store_in_force(store)
    return sum(_lengths(shard, list(set(_unless_broken(parking.parked_sets(shard))))))


def override_limit(name: str, limit: int, last: float | timedelta | None = None, *, store: Store | None = None) -> None:
    """Put another limit into force, for so many seconds by Redis' clock; None: until `end_override`.

    limit: 0 for none, less than 0: nothing runs.  Jobs that run go on.  Raises UsageError, StoreError.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        raise UsageError(f"{limit!r} is not a limit; pass a whole number: 0 for none, -1 to let nothing run")
    seconds = last.total_seconds() if isinstance(last, timedelta) else last
    if seconds is not None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
            raise UsageError(f"an override cannot last {last!r}; pass seconds, a timedelta, or None: until it is ended")
        if seconds <= 0:
            raise UsageError(f"an override lasts longer than {seconds:g} s")
    parking.override_limit(store_in_force(store), name, limit, seconds)


def end_override(name: str, *, store: Store | None = None) -> bool:
    """Put the declared limit back into force; return whether there was an override.  Raises StoreError."""
    return parking.end_override(store_in_force(store), name)


def _moved(key: str, job: ParkedJob, to: str) -> Move:
    entry = b"\0".join((key.encode(), renamed(job.raw, to)))
    return Move(job._entry, "rename", "", entry)


def place_holders(store: Store, prefix: str, most: int | None = None) -> dict[str, list[PlaceHolder]]:
    """Return set of places → who holds them, of the members of the fleet.  prefix: of the keys of these sets.

    most: the jobs of so many are read, None for all; of the others the record is empty.
    Two round trips, one more per 500 processes and held places that are read.  Raises StoreError.
    """
    keys, found = store.keys, list[tuple[str, str, str]]()  # set, identity, field
    identities = _unless_broken(_members(store))
    rows = _ask(store, [("HGETALL", keys.held(identity)) for identity in identities])
    for identity, flat in zip(identities, rows, strict=True):
        if not isinstance(flat, list):
            continue
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            found += ((slots, identity, field.decode(errors="replace")) for slots in parking.held_sets(value))
    found = [each for each in found if each[0].startswith(prefix)]
    payloads = _ask(store, [("HGET", keys.inflight(identity), field) for _, identity, field in found[:most]])
    by_set: dict[str, list[PlaceHolder]] = {}
    for (slots, identity, field), payload in zip_longest(found, payloads):
        by_set.setdefault(slots, []).append(_place_holder(identity, field, payload))
    return by_set


def _place_holder(identity: str, field: str, payload: Any) -> PlaceHolder:
    """Return who holds a place.  field: of the unit in flight, "<token>:<queue>"."""
    return PlaceHolder(JobRecord(payload if isinstance(payload, bytes) else b"", field.partition(":")[2]), identity)


def _number(reply: Any) -> int:
    """Return the reply, 0 for a key of another type."""
    return reply if isinstance(reply, int) else 0


def _members(store: Store) -> Iterator[str]:
    for flat in scan(store, "HSCAN", store.keys.members, "COUNT", MAX_MEMBERS_PER_SCAN):
        yield from (name.decode(errors="replace") for name in flat[::2])


def _unless_broken(names: Iterable[str]) -> list[str]:
    """Return the names in a key; none where it is of another type."""
    try:
        return list(names)
    except WrongType as error:
        note(error)
        return []


def _lengths(store: Store, lines: Sequence[str]) -> list[int]:
    """Return how many jobs are in each line, 0 for what is not one."""
    replies = _ask(store, [("ZCARD", store.keys.parked(slots)) for slots in lines])
    return [_number(reply) for reply in replies]


def _ask(store: Store, commands: Sequence[Command]) -> list[Any]:
    return store.read_each(commands, MAX_PER_ROUND_TRIP)
