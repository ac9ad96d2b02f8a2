"""Callbacks: jobs that a batch pushes, each once, in the script that settles the job which makes them due.

on_complete   all jobs and child batches have ended, however they did
on_success    all jobs have finished, and all child batches have succeeded; also later, after retries by hand
on_death      the first job has ended as `error`, unless the batch was cancelled

A callback is a job, or the first job of a chain, that is called with the id of the batch.  It is prepared when the
batch is created, so that the script needs to know nothing but its queue and its bytes.
"""

from __future__ import annotations

from typing import Any

from kiqcluster.client.chains import Chain
from kiqcluster.client.draft import Draft
from kiqcluster.client.items import read_item
from kiqcluster.client.preparation import prepare
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store

__all__ = ["prepared_callbacks"]

NEVER_KEPT = ("enqueued_at", "expiry")  # keys that would count from the creation of the batch


def prepared_callbacks(setup: Setup, store: Store, batch: str, callbacks: dict[str, Any]) -> dict[str, bytes]:
    """Return the callbacks of a batch as Redis keeps them: "<queue> NUL <payload>"; None among them is left out.

    Raises UsageError for a job that cannot be one, and what a push raises.
    """
    return {event: _prepared(setup, store, batch, event, job) for event, job in callbacks.items() if job is not None}


def _prepared(setup: Setup, store: Store, batch: str, event: str, job: Any) -> bytes:
    first = job.first if isinstance(job, Chain) else job
    definition = getattr(first, "definition", None)
    if definition is None:
        raise UsageError(
            f"{event}={job!r} is not a job: pass a job class or a job function that takes the id of a batch"
        )
    name, _, options = read_item(setup, {"class": first})
    options = {**options, **getattr(first, "options", {})}  # of `Report.set(queue=…)`
    if isinstance(job, Chain):
        options |= job.prepared(store).keys
    ready = prepare(setup, Draft(name, options, definition.positional((batch,), {}), definition, store=store))
    if ready is None:
        raise UsageError(f"{event}: client middleware stopped {name}, so the batch could not push it")
    if ready.rows:
        raise UsageError(f"{event}: {name} has an option by which a push may be refused (deduplicate); leave that out")
    payload = ruby_json.patch(ready.encoded, {}, NEVER_KEPT)
    return ready.queue.encode() + b"\0" + payload
