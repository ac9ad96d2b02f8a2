"""Writes: pushed jobs to Redis, in one round trip for many.

A job goes to its queue by SADD queues + LPUSH queue:<name>, a scheduled one by ZADD schedule, and one with rows of
features by push.lua.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from kiqcluster.errors import NotReplicated, RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.delivery import Ready
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Connection, Store, is_outage
from kiqcluster.store.guarded_push import GuardedJob, Refusal, push_guarded
from kiqcluster.store.wire import Command, ErrorReply

__all__ = ["MAX_BYTES_PER_ROUND_TRIP", "MAX_JOBS_PER_ROUND_TRIP", "Refused", "write", "write_all", "write_each"]

MAX_JOBS_PER_ROUND_TRIP = 1_000  # jobs in one round trip (sidekiq client.rb)
# Bytes in one round trip, unless one job has more: memory holds them thrice, and the transfer has a time limit.
MAX_BYTES_PER_ROUND_TRIP = 10_000_000
MAX_REPLICA_WAIT_SECONDS = 1.0  # for replicas to confirm a push; at most half of the time limit of a call

Refused = dict[Jid, Jid | None]  # jid of a refused job → jid of the job that holds the claim; None for other guards


def round_trips(jobs: Sequence[Ready]) -> Iterator[Sequence[Ready]]:
    """Yield the jobs in parts for one round trip each: limited by count and bytes, but at least one job."""
    for start in range(0, len(jobs), MAX_JOBS_PER_ROUND_TRIP):
        part = jobs[start : start + MAX_JOBS_PER_ROUND_TRIP]
        if sum([len(job.encoded) for job in part]) <= MAX_BYTES_PER_ROUND_TRIP:
            yield part
            continue
        first = size = 0
        for at, job in enumerate(part):
            size += len(job.encoded)
            if size > MAX_BYTES_PER_ROUND_TRIP and at > first:
                yield part[first:at]
                first, size = at, len(job.encoded)
        yield part[first:]


def write(store: Store, jobs: Sequence[Ready], enqueued: list[Jid], wait_replicas: int) -> Refused:
    """Write jobs of any times and queues in one round trip; add the jids that Redis took to `enqueued`.

    Jobs with rows take one more round trip.  Returns those that a guard has refused.
    Raises RedisUnavailable also when the server takes no writes for now (READONLY, MISCONF, …); NotReplicated when
    fewer than `wait_replicas` replicas confirm what was written; StoreError.
    """
    guarded = [job for job in jobs if job.rows]
    batch = _commands(store.keys, [job for job in jobs if not job.rows] if guarded else jobs)
    refused, refusals, count_before = Refused(), list[ErrorReply](), len(enqueued)
    with store.borrowed() as connection:
        connect_count = 0
        if guarded:
            connection.connect()
            connect_count = connection.connect_count
            refused, refusals = _write_guarded(connection, store.keys, guarded, enqueued)
        written = [job.jid for job in jobs if job.jid not in refused] if wait_replicas else []
        is_waiting = bool(written)
        if is_waiting:
            wait_seconds = min(MAX_REPLICA_WAIT_SECONDS, store.timeout / 2)
            batch.append((("WAIT", wait_replicas, int(wait_seconds * 1_000)), []))
        replies = connection.exchange_each([command for command, _ in batch]) if batch else []
        if guarded and is_waiting and connection.connect_count != connect_count:
            replies[-1] = 0  # the server counts for a connection: it knows nothing of what another one has written
    for reply, (_, group) in zip(replies, batch, strict=True):
        if isinstance(reply, ErrorReply):
            refusals.append(reply)
        else:
            enqueued += [job.jid for job in group]
    if refusals:
        _raise_first(refusals, enqueued, count_before)
    if is_waiting:
        confirmed = replies[-1]
        if not isinstance(confirmed, ErrorReply) and confirmed < wait_replicas:
            said = f"stored, but {confirmed} of {wait_replicas} replicas have confirmed it within {wait_seconds:g} s"
            raise NotReplicated(said, tuple(written), wait_replicas, confirmed)
    return refused


def _raise_first(refusals: Sequence[ErrorReply], enqueued: list[Jid], count_before: int) -> NoReturn:
    """Raise what Redis has refused, first an outage.  count_before: jids in `enqueued` before this round trip."""
    for refusal in filter(is_outage, refusals):  # jobs with rows: finish_scripts
        if len(enqueued) == count_before:
            raise RedisUnavailable(f"Redis turns everybody away ({refusal})") from refusal
        del enqueued[count_before:]  # the server changed its role in between: what it took may be lost
        raise ReplyLost(f"Redis turned a part of this away ({refusal})") from refusal
    raise refusals[0]


def write_all(store: Store, jobs: Sequence[Ready], wait_replicas: int) -> Refused:
    """Write jobs, a chunk per round trip; return those that a guard has refused.

    Raises StoreError, whose `enqueued` has the jids that are certainly enqueued.
    """
    enqueued: list[Jid] = []
    refused: Refused = {}
    for chunk in round_trips(jobs):
        try:
            refused |= write(store, chunk, enqueued, wait_replicas)
        except StoreError as error:
            error.enqueued = tuple(enqueued)
            said = [str(error)]
            if isinstance(error, ReplyLost):
                error.jids = tuple(job.jid for job in chunk)
                said.append(f"{len(chunk)} jobs may or may not be enqueued (error.jids)")
                said.append("push them again only if running twice is allowed")
            if enqueued or len(jobs) > 1:
                said.append(f"certainly enqueued: {len(enqueued)} of {len(jobs)} jobs (error.enqueued)")
            error.args = ("; ".join(said),)
            raise
    return refused


def write_each(store: Store, jobs: Sequence[Ready]) -> list[Refusal | ErrorReply | None]:
    """Write jobs with rows; return None for each that is written, else the guard or the error that refused it.

    As many round trips as `round_trips` yields.  Raises RedisUnavailable, ReplyLost.
    """
    results: list[Refusal | ErrorReply | None] = []
    for part in round_trips(jobs):
        rows = [GuardedJob(job.queue, job.at, job.encoded, job.rows) for job in part]
        with store.borrowed() as connection:
            results += push_guarded(connection, store.keys, rows)
    return results


def _commands(keys: Keys, jobs: Sequence[Ready]) -> list[tuple[Command, list[Ready]]]:
    """Return the commands that write jobs without rows, each with the jobs that are in Redis once it is done."""
    by_queue: dict[str | None, list[Ready]] = {}  # None: scheduled jobs
    for job in jobs:
        by_queue.setdefault(job.queue if job.at is None else None, []).append(job)
    commands: list[tuple[Command, list[Ready]]] = []
    for queue, group in by_queue.items():
        if queue is None:
            pairs = [word for job in group for word in (repr(job.at), job.encoded)]
            commands.append((("ZADD", keys.schedule, *pairs), group))
        else:
            commands.append((("SADD", keys.queues, queue), []))
            commands.append((("LPUSH", keys.queue(queue), *[job.encoded for job in group]), group))
    return commands


def _write_guarded(
    connection: Connection, keys: Keys, jobs: Sequence[Ready], enqueued: list[Jid]
) -> tuple[Refused, list[ErrorReply]]:
    """Write jobs with rows, in one round trip; return those that a guard has refused, and what Redis has refused."""
    refused, refusals = Refused(), list[ErrorReply]()
    rows = [GuardedJob(job.queue, job.at, job.encoded, job.rows) for job in jobs]
    for job, result in zip(jobs, push_guarded(connection, keys, rows), strict=True):
        if result is None:
            enqueued.append(job.jid)
        elif isinstance(result, ErrorReply):
            refusals.append(result)
        else:
            refused[job.jid] = Jid(result.value) if result.row.operation == "claim" and result.value else None
    return refused, refusals
