"""Guarded pushes: each job is written by one script (push.lua), only if the guards in its rows are true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store.connection import Connection
from kiqcluster.store.scripts import PUSH, Call, Word, row_words, run_scripts_each
from kiqcluster.store.wire import ErrorReply

__all__ = ["GuardedJob", "Refusal", "push_guarded"]


@dataclass(frozen=True, slots=True)
class GuardedJob:
    """A job to push.  at: epoch seconds, None for a job that is due.  rows: of the table of push.lua."""

    queue: str
    at: float | None
    payload: bytes
    rows: Sequence[Effect]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The guard that was not true.  value: of its key, if that is a string."""

    row: Effect
    value: str


def push_guarded(connection: Connection, keys: Keys, jobs: Sequence[GuardedJob]) -> list[Refusal | ErrorReply | None]:
    """Write jobs, each by itself; return None for a written job, else the reason why it was not written.

    One round trip.  Raises RedisUnavailable, ReplyLost.
    """
    results: list[Refusal | ErrorReply | None] = []
    for job, reply in zip(jobs, run_scripts_each(connection, [_call(keys, job) for job in jobs]), strict=True):
        if isinstance(reply, ErrorReply):
            results.append(reply)
        elif reply[0] == b"REFUSED":
            results.append(Refusal(job.rows[reply[1] - 1], reply[2].decode(errors="replace")))
        else:
            results.append(None)
    return results


def _call(keys: Keys, job: GuardedJob) -> Call:
    names = [keys.queues, keys.queue(job.queue) if job.at is None else keys.schedule]
    arguments: list[Word] = [job.payload, job.queue, "" if job.at is None else repr(job.at)]
    arguments += row_words(job.rows, names, {})
    return Call(PUSH, names, arguments)
