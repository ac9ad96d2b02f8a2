"""Writes: pushed jobs to Redis, in one round trip for many.

A job goes to its queue by SADD queues + LPUSH queue:<name>, a scheduled one by ZADD schedule, and one with rows of
features by push.lua.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiqcluster.errors import NotReplicated, RedisRefused
from kiqcluster.process.runtime import Ready
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.store import Store
from kiqcluster.store.guarded_push import GuardedJob, push_guarded
from kiqcluster.store.wire import Command

__all__ = ["MAX_JOBS_PER_ROUND_TRIP", "Refused", "round_trips", "write"]

MAX_JOBS_PER_ROUND_TRIP = 1_000  # jobs in one round trip (sidekiq client.rb)
MAX_BYTES_PER_ROUND_TRIP = (
    10_000_000  # … and bytes, unless one job has more: memory holds them thrice, and the transfer has a time limit
)
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
    """
    by_queue: dict[str | None, list[Ready]] = {}  # None: scheduled jobs
    guarded = [job for job in jobs if job.rows]
    for job in jobs:
        if job.rows:
            continue
        by_queue.setdefault(job.queue if job.at is None else None, []).append(job)
    batch: list[tuple[Command, list[Ready]]] = []
    for queue, group in by_queue.items():
        if queue is None:
            pairs = [word for job in group for word in (repr(job.at), job.encoded)]
            batch.append((("ZADD", store.keys.schedule, *pairs), group))
        else:
            batch.append((("SADD", store.keys.queues, queue), []))
            batch.append((("LPUSH", store.keys.queue(queue), *[job.encoded for job in group]), group))
    refused, refusals = Refused(), list[RedisRefused]()
    with store.borrowed() as connection:
        connect_count = 0
        if guarded:
            connection.connect()
            connect_count = connection.connect_count
            rows = [GuardedJob(job.queue, job.at, job.encoded, job.rows) for job in guarded]
            for job, result in zip(guarded, push_guarded(connection, store.keys, rows), strict=True):
                if result is None:
                    enqueued.append(job.jid)
                elif isinstance(result, RedisRefused):
                    refusals.append(result)
                else:
                    refused[job.jid] = Jid(result.value) if result.row.operation == "claim" and result.value else None
        written = [job.jid for job in jobs if job.jid not in refused]
        is_waiting = wait_replicas > 0 and bool(written)
        if is_waiting:
            patience = min(MAX_REPLICA_WAIT_SECONDS, store.timeout / 2)
            batch.append((("WAIT", wait_replicas, int(patience * 1_000)), []))
        replies = connection.exchange([command for command, _ in batch]) if batch else []
        if guarded and is_waiting and connection.connect_count != connect_count:
            replies[-1] = 0  # the server counts for a connection: it knows nothing of what another one has written
    for reply, (_, group) in zip(replies, batch, strict=True):
        if isinstance(reply, RedisRefused):
            refusals.append(reply)
        else:
            enqueued += [job.jid for job in group]
    if refusals:
        raise refusals[0]
    if is_waiting and replies[-1] < wait_replicas:
        said = f"stored, but {replies[-1]} of {wait_replicas} replicas have confirmed it within {patience:g} s"
        raise NotReplicated(said, tuple(written), wait_replicas, replies[-1])
    return refused
