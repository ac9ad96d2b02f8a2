"""Moves: each script moves an entry or job as a whole, so that it is always in exactly one place.

read_due       reads due entries of a sorted set, bounded in number and bytes
move_entries   moves entries of a sorted set to queues, the dead set, another score or name, or deletes them
move_bulk      the same for a slice of a bulk action, with its counts in the same step
trim_dead      drops entries of the dead set that are too old or too many, a slice at a time
move_bulk_jobs  the same for jobs of a queue
move_jobs      moves jobs of a queue to another queue, or deletes them
read_queue     reads a part of a queue, whose tail is its wake list
drop_entries   deletes entries of several sorted sets
record_queued  moves a job of a queue to the dropped jobs

What never runs again, for it is deleted or buried, releases the lock that it may hold (deduplication) in the same step,
and ends in its batch as `error`.  Who waits for it is told if the caller says what (`told`: by the bytes of the job).
Nothing here retries: after a lost reply, the caller has to look which entries were moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kiqcluster.errors import MalformedPayload, RedisRefused
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import IDEMPOTENCY_KEY, TASK_ID, Payload, batch_of, lock_of, read
from kiqcluster.store.scripts import (
    BULK_ENTRIES,
    BULK_JOBS,
    DUE,
    MOVE_ENTRIES,
    MOVE_JOBS,
    READ_QUEUE,
    RECORD_JOB,
    TRIM_DEAD,
    Call,
    Word,
    read_refusals,
    run_script,
    run_scripts,
)
from kiqcluster.store.store import Store

__all__ = [
    "CANCELLED_WITH_BATCH",
    "MAX_DROPPED",
    "RECORD",
    "STAGE",
    "BulkMoved",
    "BulkPart",
    "DeadSetLimits",
    "Dropped",
    "Due",
    "Move",
    "Moved",
    "Part",
    "Told",
    "drop_entries",
    "move_bulk",
    "move_bulk_jobs",
    "move_entries",
    "move_jobs",
    "read_due",
    "read_queue",
    "record_queued",
    "trim_dead",
]

SHIFTED = 2  # a reply of bulk_jobs
MOVE_ARGUMENTS = 5  # of move_entries.lua before its rows
MAX_DROPPED = 1_000  # entries that one script drops from the dead set (dead_set.lua)
RECORD = "record"  # to the dropped jobs, with other bytes; all of a call, whose limits are theirs
CANCELLED_WITH_BATCH = "cancelled with its batch"  # the message of such a job in its batch
FINAL_VERBS = ("drop", "bury", RECORD)
STAGE = "stage"  # for a move to the shard that `queue` names then (shard_moves.py); all or none of a call


@dataclass(frozen=True, slots=True)
class DeadSetLimits:
    """largest: entries kept, less one, as Sidekiq does.  timeout: seconds that an entry is kept."""

    largest: int
    timeout: float


class Told(NamedTuple):
    """What those who wait for a job are told (results.lua).  seconds: for which it is kept."""

    jid: str
    seconds: int
    value: bytes


NOBODY: Mapping[bytes, Sequence[Told]] = {}


@dataclass(frozen=True, slots=True)
class Move:
    """An entry and what to do with it.

    verb: push, bury, drop, defer or rename (move_entries.lua), STAGE, or RECORD.  unmarks: jid of a job that is to run
    although it had been cancelled, "" for none.  told: with a verb that ends the job.  with_batch: RECORD ends it, as
    its batch was cancelled.
    """

    old: bytes
    verb: str
    queue: str = ""
    new: bytes = b""
    unmarks: str = ""
    told: Sequence[Told] = ()
    with_batch: bool = False


class Dropped(NamedTuple):
    """How many entries a trim dropped from the dead set, by reason."""

    too_old: int
    too_many: int

    @property
    def has_more(self) -> bool:
        """Whether the trim stopped at its limit, so that there may be more to drop."""
        return sum(self) >= MAX_DROPPED


class Moved(NamedTuple):
    """The result of move_entries.

    indexes: of the moved entries.  refusals: Redis' error and the key, for each entry that could not be moved.
    dropped: entries that the dead set dropped because of new ones.
    """

    indexes: list[int]
    refusals: list[str]
    dropped: Dropped


@dataclass(frozen=True, slots=True)
class BulkPart:
    """How far a bulk action is after a slice (bulk_entries.lua).

    key: of its state.  runner, lease: who works on it, and for how many seconds nobody else does.  state: in which it
    has to be.  final: its state then, "" for the same.  last: score and payload of the last entry that was looked at,
    both empty for none; of a queue its anchors and nothing.  looked, found: entries of this slice, and those of them
    that are meant.  reasons: why some of these stay → how many.
    """

    key: str
    runner: str
    lease: float
    state: str
    final: str = ""
    last: tuple[bytes, bytes] = (b"", b"")
    looked: int = 0
    found: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)


class BulkMoved(NamedTuple):
    """indexes: of the moved entries.  dropped: entries that the dead set dropped because of them."""

    indexes: list[int]
    dropped: int


class Due(NamedTuple):
    """Entries that are due.

    now: the time that was compared; Redis' own when the caller's clock is far ahead of it.
    next_at: score of the next entry, inf if there is none; None when more entries may be due.
    """

    now: float
    entries: list[bytes]
    next_at: float | None


class Part(NamedTuple):
    """A part of a queue.  length: of the whole queue.  first: index of the first payload here; 0 is the newest job."""

    length: int
    first: int
    payloads: list[bytes]


def read_due(store: Store, source: str, now: float, most: int, most_bytes: int) -> Due:
    """Return due entries of a set, the oldest first: at most `most` and `most_bytes`, but at least one.

    One round trip.  Raises StoreError.
    """
    reply = run_script(store, Call(DUE, [source], [repr(now), most, most_bytes]))
    return Due(float(reply[0]), reply[2:], float(reply[1]) if reply[1] else None)


def move_entries(
    store: Store,
    source: str,
    moves: Sequence[Move],
    now: float,
    limits: DeadSetLimits,
    *,
    highest: float | None = None,
    refused_until: float | None = None,
) -> Moved:
    """Move entries that are still there.

    highest: the score above which an entry stays.  refused_until: the score of an entry that cannot be moved, None to
    leave it.  One round trip.  Raises StoreError.
    """
    call, rows = _move_call(store, source, moves, now, limits, highest, refused_until)
    moved, refusals, dropped = run_script(store, call)
    return Moved([rows[row - 1] for row in moved], read_refusals(store, MOVE_ENTRIES, refusals), Dropped(*dropped))


def drop_entries(
    store: Store, entries: Sequence[tuple[str, bytes]], told: Mapping[bytes, Sequence[Told]] = NOBODY
) -> int:
    """Delete entries, each with the key of its set; return how many were still there.

    One round trip, in which each set is a step of its own.  Raises StoreError.
    """
    moves_by_source: dict[str, list[Move]] = {}
    for source, entry in entries:
        moves_by_source.setdefault(source, []).append(Move(entry, "drop", told=told.get(entry, ())))
    unused = DeadSetLimits(0, 0)
    calls = [_move_call(store, source, moves, 0, unused)[0] for source, moves in moves_by_source.items()]
    with store.borrowed() as connection:
        replies = run_scripts(connection, calls)
    for _, refusals, _ in replies:
        for words in read_refusals(store, MOVE_ENTRIES, refusals):
            raise RedisRefused(words)
    return sum(len(moved) for moved, *_ in replies)


def move_bulk(
    store: Store, source: str, moves: Sequence[Move], now: float, limits: DeadSetLimits, part: BulkPart
) -> BulkMoved | None:
    """Move entries, and write in the same step how far their bulk action is; None if it is not the caller's any more.

    One round trip.  Raises StoreError.
    """
    call, indexes = _move_call(store, source, moves, now, limits, beside=[part.key])
    head, rows = call.arguments[:MOVE_ARGUMENTS], call.arguments[MOVE_ARGUMENTS:]
    is_ours, *result = run_script(store, Call(BULK_ENTRIES, call.keys, [*head, *_about(part), *rows]))
    return BulkMoved([indexes[row - 1] for row in result[0]], result[1]) if is_ours else None


def _move_call(
    store: Store,
    source: str,
    moves: Sequence[Move],
    now: float,
    limits: DeadSetLimits,
    highest: float | None = None,
    refused_until: float | None = None,
    beside: Sequence[str] = (),
) -> tuple[Call, list[int]]:
    """Return the call that moves entries, and for each row of it the index of its move.  beside: more keys."""
    keys = [source, store.keys.queues, *beside]
    place_by_key: dict[str, int] = {}
    arguments: list[Word] = [
        repr(now),
        "" if highest is None else repr(highest),
        "" if refused_until is None else repr(refused_until),
        limits.timeout,
        limits.largest,
    ]
    rows: list[int] = []
    for index, move in enumerate(moves):
        keys_by_verb = {"push": store.keys.queue(move.queue), "bury": store.keys.dead, RECORD: store.keys.dropped}
        key = keys_by_verb.get(move.verb, source)
        several = [("bury" if move.verb == RECORD else move.verb, key, move.queue, move.new)]
        if move.verb == STAGE:
            keys[1] = store.keys.moving
            several = [("push", store.keys.moving_to(move.queue), move.queue, move.new)]
        if move.verb in FINAL_VERBS:
            several += _ends_of(store, move)
        if move.unmarks:
            several.append(("unmark", store.keys.cancelled, move.unmarks, b""))
        for verb, key, name, new in several:
            if key != source and key not in place_by_key:
                keys.append(key)
                place_by_key[key] = len(keys)
            arguments += [move.old, verb, place_by_key.get(key, 1), name, new]
            rows.append(index)
    return Call(MOVE_ENTRIES, keys, arguments), rows


def _ends_of(store: Store, move: Move) -> list[tuple[str, str, str, bytes]]:
    """Return the rows about a job that a move ends: its lock is released, its batch and who waits are told."""
    claim, batch = _claim_of(store, move.old), _batch_of(store, move.old)
    rows = [] if claim is None else [("clear", *claim, b"")]
    if batch is not None:
        words = {"bury": "moved to the dead set by hand", RECORD: "cancelled"}
        said = words.get(move.verb, "deleted by hand, or stopped by middleware")
        if move.with_batch:
            rows.append(("cancel", *batch, ruby_json.encode(CANCELLED_WITH_BATCH)))
        else:
            rows.append(("event", *batch, ruby_json.encode(said)))
    rows += [("tell", store.keys.result(each.jid), f"{each.seconds}", each.value) for each in move.told]
    return rows


def _claim_of(store: Store, raw: bytes) -> tuple[str, str] | None:
    """Return the lock that a job may hold, and its jid; None for a job without a lock, or bytes that are not a job."""
    lock = lock_of(_payload(raw)) if IDEMPOTENCY_KEY.encode() in raw else None
    return None if lock is None else (store.keys.lock(lock[0]), lock[1])


def _batch_of(store: Store, raw: bytes) -> tuple[str, str] | None:
    """Return the key of the batch that counts a job, and its jid; None for another job."""
    batch = batch_of(_payload(raw)) if TASK_ID.encode() in raw else None
    return None if batch is None else (store.keys.batch(batch[0]), batch[1])


def _payload(raw: bytes) -> Payload:
    """Return the payload of an entry, {} for bytes that are not a job.

    raw: a payload, or the entry of a parked job, whose payload is behind the NUL (parked.lua).
    """
    try:
        return read(raw.rpartition(b"\0")[2])
    except MalformedPayload:
        return {}


def trim_dead(store: Store, now: float, limits: DeadSetLimits) -> Dropped:
    """Drop entries of the dead set that are too old or too many, MAX_DROPPED at most.

    One round trip.  Raises StoreError.
    """
    return Dropped(*run_script(store, Call(TRIM_DEAD, [store.keys.dead], [repr(now), limits.timeout, limits.largest])))


def move_jobs(
    store: Store,
    queue: str,
    to: str,
    jobs: Sequence[tuple[bytes, bytes]],
    between: tuple[int, int],
    mark: bytes,
    to_keys: tuple[str, str] | None = None,
    told: Mapping[bytes, Sequence[Told]] = NOBODY,
) -> list[int]:
    """Move jobs of a queue to another queue, or delete them; return the indexes of the jobs that were found.

    to: "" deletes them.  to_keys: of the set that gets this name and of the list that gets the jobs, if that is no
    queue.  jobs: old and new bytes of each.  between: the farthest and the nearest position to search; 0
    is the job that is fetched next.  mark: bytes that are no job's payload.
    One round trip.  Raises StoreError.
    """
    keys, rows = _rows_of_jobs(store, queue, to, jobs, told, to_keys=to_keys)
    return [index - 1 for index in run_script(store, Call(MOVE_JOBS, keys, [to, mark, *between, *rows]))]


def move_bulk_jobs(
    store: Store,
    queue: str,
    to: str,
    jobs: Sequence[tuple[bytes, bytes]],
    places: Sequence[int],
    reach: int,
    mark: bytes,
    part: BulkPart,
    told: Mapping[bytes, Sequence[Told]] = NOBODY,
) -> BulkMoved | None:
    """Move jobs as `move_jobs`, and write in the same step how far their bulk action is; None as `move_bulk`.

    places: at which the jobs were read.  reach: how many places nearer to its turn one search looks.
    One round trip, one more per `reach` places that others have fetched meanwhile.  Raises StoreError.
    """
    keys, rows = _rows_of_jobs(store, queue, to, jobs, told, beside=[part.key])
    expected = "".join(f"{place}," for place in places)
    farthest, nearest, shift = max(places, default=0), min(places, default=0), 0
    while True:
        between = [farthest - shift + reach, max(0, nearest - shift - reach)] if places else [-1, 0]
        reply = run_script(store, Call(BULK_JOBS, keys, [to, mark, *between, expected, *_about(part), *rows]))
        if reply[0] != SHIFTED:
            return BulkMoved([index - 1 for index in reply[1]], 0) if reply[0] else None
        shift = reply[1] if reply[1] > shift else shift + reach


def _rows_of_jobs(
    store: Store,
    queue: str,
    to: str,
    jobs: Sequence[tuple[bytes, bytes]],
    told: Mapping[bytes, Sequence[Told]],
    to_keys: tuple[str, str] | None = None,
    beside: Sequence[str] = (),
) -> tuple[list[str], list[Word]]:
    """Return keys and rows of the scripts that take jobs out of a queue."""
    names, target = to_keys or (store.keys.queues, store.keys.queue(to))
    keys = [store.keys.queue(queue), store.keys.wake(queue), names, *beside]
    if to:
        return [*keys, target], [word for pair in jobs for word in pair]
    rows: list[Word] = []
    for old, _ in jobs:
        words = []
        for found in (claim := _claim_of(store, old), batch := _batch_of(store, old)):
            keys += [] if found is None else [found[0]]
            words.append("0" if found is None else str(len(keys)))
        jid = (claim or batch or ("", ""))[1]
        heard = b""
        for each in told.get(old, ()):
            keys.append(store.keys.result(each.jid))
            heard += b"tell %d %d %s\0" % (len(keys), each.seconds, each.value)
        rows += [old, heard + (" ".join((*words, jid)).encode() if jid else b"")]
    return keys, rows


def _about(part: BulkPart) -> list[Word]:
    """Return the words of a script that say how far a bulk action is."""
    about: list[Word] = [part.runner, round(part.lease * 1_000), part.state, part.final, *part.last]
    about += [part.looked, part.found, len(part.reasons), *(word for pair in part.reasons.items() for word in pair)]
    return about


def record_queued(
    store: Store, queue: str, job: bytes, entry: bytes, now: float, limits: DeadSetLimits, told: Sequence[Told] = ()
) -> bool:
    """Move a job of a queue to the dropped jobs, as of now; return False where it was not there any more.

    job: its bytes.  entry: its bytes there.  limits: of the dropped jobs.  told: to those who wait for it.
    One round trip; Redis walks through the queue.  Raises StoreError.
    """
    keys = [store.keys.queue(queue), store.keys.wake(queue), store.keys.dropped]
    arguments: list[Word] = [job, entry, repr(now), limits.timeout, limits.largest]
    for verb, key, name, said in _ends_of(store, Move(job, RECORD, told=told)):
        keys.append(key)
        arguments += [verb, name, said]
    return bool(run_script(store, Call(RECORD_JOB, keys, arguments)))


def read_queue(store: Store, queue: str, first: int, last: int) -> Part:
    """Return a part of a queue, newest first; indexes as for LRANGE.  One round trip.  Raises StoreError."""
    reply = run_script(store, Call(READ_QUEUE, [store.keys.queue(queue), store.keys.wake(queue)], [first, last]))
    return Part(*reply)
