"""Sending: a draft is prepared, and written to its destination.  A thread and a coroutine differ in the write alone.

A push that timed out is never sent again here: ReplyLost names its jids, and the caller decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiqcluster.client.destination import destination_of
from kiqcluster.client.draft import Draft, Drafts
from kiqcluster.client.preparation import prepare, prepare_all
from kiqcluster.client.writes import Refused
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.payload import Jid

__all__ = ["asend", "asend_all", "send", "send_all"]


def send(setup: Setup, draft: Draft) -> Jid | None:
    """Push one job; return its jid, or None when middleware stopped it.

    Where a lock keeps the job out, the jid is that of the job that holds the lock.  Raises PushError, StoreError.
    """
    job = prepare(setup, draft)
    if job is None:
        return None
    refused = destination_of(setup, draft).write([job], draft.wait_replicas)
    return refused.get(job.jid, job.jid)


async def asend(setup: Setup, draft: Draft) -> Jid | None:
    """Push one job in a coroutine; see send."""
    job = prepare(setup, draft)
    if job is None:
        return None
    refused = await destination_of(setup, draft).awrite([job], draft.wait_replicas)
    return refused.get(job.jid, job.jid)


def send_all(setup: Setup, drafts: Drafts) -> list[Jid | None]:
    """Push many jobs of one class; return for each what `send` returns.

    Raises PushError, which names the first invalid entry, before anything is enqueued; StoreError, whose `enqueued`
    has the jids written so far.
    """
    jobs = prepare_all(setup, drafts)
    return _jids(jobs, destination_of(setup, drafts).write(_passed(jobs), drafts.wait_replicas))


async def asend_all(setup: Setup, drafts: Drafts) -> list[Jid | None]:
    """Push many jobs of one class in a coroutine; see send_all."""
    jobs = prepare_all(setup, drafts)
    return _jids(jobs, await destination_of(setup, drafts).awrite(_passed(jobs), drafts.wait_replicas))


def _passed(jobs: Sequence[Ready | None]) -> list[Ready]:
    """Return the jobs that middleware has let pass."""
    return [job for job in jobs if job is not None]


def _jids(jobs: Sequence[Ready | None], refused: Refused) -> list[Jid | None]:
    return [None if job is None else refused.get(job.jid, job.jid) for job in jobs]
