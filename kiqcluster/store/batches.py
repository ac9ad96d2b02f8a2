"""Batches in Redis: typed calls of the scripts that write and read them (lua/batches says what a batch is).

create_batch   a batch without jobs
push_jobs     jobs are pushed, and counted in their batch, in one step
close_batch, cancel_batch, mark_jobs   what is done to a batch from outside of its jobs
read_batch     counts and a page of failures of a batch; read_batches: the counts of several
read_parts    callbacks, child batches, and a page of the failures of a batch
read_jobs, list_batches     all jobs of a batch; which batches there are
read_changes, forget_changes   what has changed since it was copied to a database
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kiqcluster.errors import BatchEnded, NotReplicated, RedisRefused
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store.connection import Connection
from kiqcluster.store.guarded_push import GuardedJob, push_guarded
from kiqcluster.store.scripts import (
    COPIED_BATCH,
    PUSH_BATCH,
    READ_BATCH,
    WRITE_BATCH,
    Call,
    Word,
    read_scripts_each,
    run_script,
    run_scripts,
    sliced,
)
from kiqcluster.store.store import Store, scan
from kiqcluster.store.wire import WrongType

__all__ = [
    "ENDED_STATUSES",
    "STATUSES",
    "BatchParts",
    "Changes",
    "NewBatchJob",
    "StoredJob",
    "cancel_batch",
    "close_batch",
    "create_batch",
    "forget_changes",
    "list_batches",
    "lose_children",
    "mark_jobs",
    "push_jobs",
    "read_batch",
    "read_batches",
    "read_changed_batches",
    "read_changes",
    "read_children",
    "read_jobs",
    "read_parts",
]

STATUSES = ("enqueue", "working", "finish", "failed", "error")
ENDED_STATUSES = ("finish", "failed", "error")
MAX_LISTED_BATCHES = 10_000
MAX_JOBS, MAX_BYTES = 1_000, 10_000_000  # of one script, which stops Redis for as long
MAX_MARKED = 500  # jobs, or child batches, that one script names
PAGE_SIZE = 1_000  # fields of a batch that one round trip reads
MAX_BATCHES = 500  # that one round trip reads
JOB_FIELDS = (b":", b"p", b"m")  # before the jid: status, arguments and messages of a job
CALLBACKS = ("on_complete", "on_success", "on_death")


class NewBatchJob(NamedTuple):
    """A job that is ready to be written.

    at: epoch seconds, None for a job that is due.  rows: of push.lua.  arguments: as JSON, "" where they are not kept.
    """

    jid: Jid
    queue: str
    at: float | None
    payload: bytes
    rows: Sequence[Effect]
    arguments: str | bytes


class StoredJob(NamedTuple):
    """A job of a batch.

    arguments: JSON, a newline, and the class where it is not that of the batch; empty or None where they are not kept.
    messages: JSON values with commas between them, or None.  changes: of its status, as lua/batches has them.
    """

    jid: str
    status: str
    arguments: bytes | None
    messages: bytes | None
    changes: bytes = b""


def create_batch(store: Store, identifier: str, parent: str, fields: Mapping[str, Word]) -> None:
    """Write a batch without jobs.  parent: its id, or "".  One round trip.  Raises BatchEnded of a parent."""
    words = [word for pair in fields.items() for word in pair]
    reply = _write(store, identifier, ["create", identifier, MAX_LISTED_BATCHES, parent, *words])
    if reply[0] != b"DONE":
        raise BatchEnded(parent, reply[0].decode())


def push_jobs(
    store: Store, identifier: str, jobs: Sequence[NewBatchJob], wait_replicas: int = 0, *, worker: str = ""
) -> set[Jid]:
    """Push jobs of a batch, and count them in it; return the jids of those that a guard has refused.

    A job that the batch knows already is left out, whatever has become of it.
    One round trip for 1 000 jobs or 10 MB, two where some have rows or a time.  May be sent again.
    Raises BatchEnded, NotReplicated, StoreError.  worker: the class of the jobs, "" for that of the batch.
    """
    refused: set[Jid] = set()
    jobs = [job._replace(arguments=_with_class(job.arguments, worker)) for job in jobs]
    plain = [job for job in jobs if job.at is None and not job.rows]
    with store.borrowed() as connection:
        for call in _push_calls(store.keys, identifier, plain):
            (reply,) = run_scripts(connection, [call])
            if reply != b"PUSHED":
                raise BatchEnded(identifier, reply.decode())
        others = jobs if not plain else [job for job in jobs if job.at is not None or job.rows]
        for some in sliced(others, MAX_JOBS):
            refused |= _push_guarded(connection, store.keys, identifier, some)
        if wait_replicas and jobs:
            (confirmed,) = connection.exchange([("WAIT", wait_replicas, int(store.timeout * 500))])
            if confirmed < wait_replicas:
                said = (
                    f"batch {identifier}: its jobs are stored, but {confirmed} of {wait_replicas} replicas confirm it"
                )
                raise NotReplicated(said, tuple(job.jid for job in jobs), wait_replicas, confirmed)
    return refused


def close_batch(store: Store, identifier: str) -> None:
    """Have a batch be complete once its jobs have ended.  One round trip; may be sent again.  Raises BatchEnded."""
    _check(identifier, _write(store, identifier, ["close"]))


def cancel_batch(store: Store, identifier: str, reason: str) -> bool:
    """Cancel a batch; return False if it is complete.

    One round trip; may be sent again.  Raises BatchEnded for an unknown batch; StoreError.
    """
    reply = _write(store, identifier, ["cancel", reason])
    if reply[0] == b"COMPLETE":
        return False
    _check(identifier, reply)
    return True


def lose_children(store: Store, identifier: str, children: Sequence[str]) -> None:
    """Have a batch wait no longer for those of these child batches that do not exist any more.

    One round trip for 500; may be sent again.  Raises BatchEnded for an unknown batch; StoreError.
    """
    for some in sliced(children, MAX_MARKED):
        _check(identifier, _write(store, identifier, ["lose", *some]))


def read_children(store: Store, identifier: str) -> Iterator[str]:
    """Yield the ids of the child batches of a batch.  One round trip for 1 000."""
    for page in scan(store, "SSCAN", store.keys.batch_children(identifier), "COUNT", PAGE_SIZE):
        yield from (child.decode(errors="replace") for child in page)


def mark_jobs(store: Store, identifier: str, jids: Sequence[str], status: str, messages: str) -> None:
    """Give jobs another status by hand.  messages: JSON values.  One round trip for 500.  Raises BatchEnded."""
    for some in sliced(jids, MAX_MARKED):
        _check(identifier, _write(store, identifier, ["mark", status, messages, *some]))


def read_batch(
    store: Store, identifier: str, fields: Sequence[str], most: int = 0, start: int = 0
) -> tuple[dict[str, str], list[StoredJob]]:
    """Return the fields of a batch that it has, {} if it is unknown, and a page of its failures, the youngest first.

    One round trip.
    """
    keys = [store.keys.batch(identifier), store.keys.batch_ended(identifier)]
    values, *failures = run_script(store, Call(READ_BATCH, keys, [most, start, *fields]))
    return _texts(fields, values) if values else {}, [_job(*row) for row in failures]


def read_batches(store: Store, identifiers: Sequence[str], fields: Sequence[str]) -> list[dict[str, str]]:
    """Return the fields of each batch, {} for an unknown one.  One round trip for 500."""
    keys = store.keys
    calls = [Call(READ_BATCH, [keys.batch(each), keys.batch_ended(each)], [0, 0, *fields]) for each in identifiers]
    found = []
    for reply in read_scripts_each(store, calls, MAX_BATCHES):
        if isinstance(reply, WrongType):  # one broken batch hides no other
            found.append({"created_at": "0", "problem": str(reply)})
        else:
            found.append(_texts(fields, reply[0]) if reply[0] else {})
    return found


class BatchParts(NamedTuple):
    """callbacks: event → "<queue> NUL <payload>".  children: ids, in no order.  failed: number of all failures."""

    callbacks: dict[str, bytes]
    children: list[str]
    child_count: int
    failed: int
    failures: list[StoredJob]


def read_parts(store: Store, identifier: str, start: int, count: int, most_children: int) -> BatchParts:
    """Return what belongs to a batch besides its counts, with so many failures, the youngest first.

    Two round trips.  What somebody else has written there is left out.  Raises StoreError.
    """
    batch, ended, children = (
        store.keys.batch(identifier),
        store.keys.batch_ended(identifier),
        store.keys.batch_children(identifier),
    )
    prepared, scanned, child_count, failed, jids = store.read_each(
        [
            ("HMGET", batch, *CALLBACKS),
            ("SSCAN", children, 0, "COUNT", most_children),
            ("SCARD", children),
            ("ZCARD", ended),
            ("ZREVRANGE", ended, start, start + count - 1),
        ]
    )
    jobs = []
    if isinstance(jids, list) and jids:
        (found,) = store.read_each([("HMGET", batch, *(prefix + jid for jid in jids for prefix in JOB_FIELDS))])
        if isinstance(found, list):
            jobs = [_job(jid, *found[3 * at : 3 * at + 3]) for at, jid in enumerate(jids)]
    pairs = zip(CALLBACKS, prepared, strict=True) if isinstance(prepared, list) else ()
    names = scanned[1] if isinstance(scanned, list) else []
    return BatchParts(
        {name: value for name, value in pairs if value is not None},
        [each.decode(errors="replace") for each in names[:most_children]],
        child_count if isinstance(child_count, int) else 0,
        failed if isinstance(failed, int) else 0,
        jobs,
    )


def read_jobs(store: Store, identifier: str, status: str | None = None) -> Iterator[StoredJob]:
    """Yield the jobs of a batch in a status, None for all.  What changes meanwhile may come twice.

    Two round trips for each 1 000 fields of the batch; of `failed` and `error`, for each 1 000 failures.
    """
    for jids in _ended_jids(store, identifier) if status in ("failed", "error") else _jids(store, identifier, status):
        fields = [field for jid in jids for field in (f":{jid}", f"p{jid}", f"m{jid}")]
        values = store.call("HMGET", store.keys.batch(identifier), *fields) if fields else []
        for at, jid in enumerate(jids):
            found, arguments, messages = values[3 * at : 3 * at + 3]
            job = _job(jid.encode(), found, arguments, messages)
            if found is not None and status in (None, job.status):
                yield job


class Changes(NamedTuple):
    """What has changed of a batch.

    read_at: microseconds of Redis' clock; of two reads, the later one has seen more.  fields: {} for an expired batch.
    """

    read_at: int
    fields: dict[str, str]
    jobs: list[StoredJob]


def read_changed_batches(store: Store, start: int, count: int) -> list[tuple[str, str]]:
    """Return id and score of batches with changes, the oldest change first.  One round trip."""
    flat = store.call("ZRANGE", store.keys.batches_changed, start, start + count - 1, "WITHSCORES")
    words = [word.decode(errors="replace") for word in flat]
    return list(zip(words[::2], words[1::2], strict=True))


def read_changes(store: Store, identifier: str, fields: Sequence[str], count: int) -> Changes:
    """Return some of the jobs that have changed, with their batch.  Two round trips.  Raises StoreError."""
    jids = [
        jid.decode(errors="replace") for jid in store.call("SRANDMEMBER", store.keys.batch_changed(identifier), count)
    ]
    names = [*fields, *(name for jid in jids for name in (f":{jid}", f"p{jid}", f"m{jid}"))]
    time, values = store.transaction([("TIME",), ("HMGET", store.keys.batch(identifier), *names)])
    thirds = (values[len(fields) + at :: 3] for at in range(3))  # statuses, arguments, messages
    jobs = [
        _job(jid.encode(), status, arguments, messages)
        for jid, status, arguments, messages in zip(jids, *thirds, strict=True)
        if status is not None
    ]
    return Changes(int(time[0]) * 1_000_000 + int(time[1]), _texts(fields, values[: len(fields)]), jobs)


def forget_changes(store: Store, identifier: str, score: str, jobs: Sequence[StoredJob]) -> bool:
    """Forget changes that were copied, unless they have changed again; return whether there are no more of this batch.

    One round trip; may be sent again.  Raises StoreError.
    """
    keys = [store.keys.batch(identifier), store.keys.batch_changed(identifier), store.keys.batches_changed]
    words: list[Word] = [identifier, score]
    for job in jobs:
        status = b"\n".join(filter(None, [job.status.encode(), job.changes]))
        words += (job.jid, status, len(job.messages or b""))
    return bool(run_script(store, Call(COPIED_BATCH, keys, words)))


def list_batches(store: Store, start: int, count: int) -> list[str]:
    """Return ids of batches, the youngest first.  One round trip."""
    ids = store.call("ZREVRANGE", store.keys.batches, start, start + count - 1)
    return [identifier.decode(errors="replace") for identifier in ids]


def _jids(store: Store, identifier: str, status: str | None) -> Iterator[list[str]]:
    for flat in scan(store, "HSCAN", store.keys.batch(identifier), "MATCH", ":*", "COUNT", PAGE_SIZE):
        pairs = zip(flat[::2], flat[1::2], strict=True)
        wanted = None if status is None else status.encode()
        yield [
            field[1:].decode(errors="replace") for field, value in pairs if wanted in (None, value.partition(b"\n")[0])
        ]


def _ended_jids(store: Store, identifier: str) -> Iterator[list[str]]:
    start = 0
    while jids := store.call("ZRANGE", store.keys.batch_ended(identifier), start, start + PAGE_SIZE - 1):
        yield [jid.decode(errors="replace") for jid in jids]
        start += PAGE_SIZE


def _with_class(arguments: str | bytes, worker: str) -> bytes:
    """Return the arguments of a job as its batch keeps them; "" where they are not kept."""
    raw = arguments.encode() if isinstance(arguments, str) else arguments
    return b"%b\n%b" % (raw, worker.encode(errors="replace")) if raw else b""


def _push_calls(keys: Keys, identifier: str, jobs: Sequence[NewBatchJob]) -> Iterator[Call]:
    """Yield the calls that push jobs which are due and have no rows, to each queue by itself."""
    by_queue: dict[str, list[NewBatchJob]] = {}
    for job in jobs:
        by_queue.setdefault(job.queue, []).append(job)
    for queue, group in by_queue.items():
        names = [keys.queues, keys.queue(queue), keys.batch(identifier)]
        words: list[Word] = [queue]
        size = 0
        for job in group:
            if len(words) > 3 * MAX_JOBS or (size and size + len(job.payload) > MAX_BYTES):
                yield Call(PUSH_BATCH, names, words)
                words, size = [queue], 0
            words += (job.jid, job.payload, job.arguments)
            size += len(job.payload)
        yield Call(PUSH_BATCH, names, words)


def _push_guarded(connection: Connection, keys: Keys, identifier: str, jobs: Sequence[NewBatchJob]) -> set[Jid]:
    refused: set[Jid] = set()
    key = keys.batch(identifier)
    rows = [
        GuardedJob(
            job.queue,
            job.at,
            job.payload,
            (Effect("event", key, (job.jid, job.arguments)), Effect("unknown", key, (job.jid,)), *job.rows),
        )
        for job in jobs
    ]
    for job, result in zip(jobs, push_guarded(connection, keys, rows), strict=True):
        if isinstance(result, RedisRefused):
            raise result
        if result is not None and result.row.operation == "event":
            raise BatchEnded(identifier, "COMPLETE")
        if result is not None and result.row.operation != "unknown":
            refused.add(job.jid)
    return refused


def _texts(names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, str]:
    pairs = zip(names, values, strict=True)
    return {name: value.decode(errors="replace") for name, value in pairs if value is not None}


def _write(store: Store, identifier: str, words: Sequence[Word]) -> list[Any]:
    reply: list[Any] = run_script(store, Call(WRITE_BATCH, [store.keys.batch(identifier), store.keys.batches], words))
    return reply


def _check(identifier: str, reply: Sequence[bytes]) -> None:
    if reply[0] != b"DONE":
        raise BatchEnded(identifier, reply[0].decode())


def _job(jid: bytes, field: bytes | None, arguments: bytes | None, messages: bytes | None) -> StoredJob:
    status, _, changes = (field or b"").partition(b"\n")
    texts = jid.decode(errors="replace"), status.decode(errors="replace")
    return StoredJob(*texts, arguments, messages, changes)
