"""Known: what Redis keeps under the id of a job, whatever else lies there."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kiqcluster.api.records import JobRecord
from kiqcluster.client.results import Progress, Result, read_progress, read_result
from kiqcluster.control.cancellation import Cancelled, cancel_in
from kiqcluster.errors import MalformedIteration
from kiqcluster.features.iteration import STATE_FIELDS, Iteration, read_iteration
from kiqcluster.sidekiq.payload import THEN, Payload
from kiqcluster.sidekiq.ruby_json import is_unicode
from kiqcluster.store import Store

__all__ = ["Known", "cancel_everywhere", "chain_of", "read_known"]


@dataclass(frozen=True, slots=True)
class Known:
    """cancelled_at: when somebody has cancelled it, epoch seconds."""

    result: Result | None = None
    progress: Progress | None = None
    iteration: Iteration | None = None
    cancelled_at: float | None = None


def read_known(store: Store, jid: str) -> Known:
    """Return what Redis has under this id.  A key of another type says nothing.  One round trip.  Raises StoreError."""
    if not is_unicode(jid):
        return Known()
    keys = store.keys
    commands = [
        ("LRANGE", keys.result(jid), 0, 0),
        ("GET", keys.progress(jid)),
        ("HMGET", keys.iteration(jid), *STATE_FIELDS),
        ("ZSCORE", keys.cancelled, jid),
    ]
    results, progress, iteration, cancelled = store.read_each(commands)
    return Known(
        _result(results),
        read_progress(progress if isinstance(progress, bytes) else None),
        _iteration(keys.iteration(jid), iteration),
        float(cancelled) if isinstance(cancelled, bytes) else None,
    )


def _result(reply: Any) -> Result | None:
    with suppress(ValueError):
        return read_result(reply[0]) if isinstance(reply, list) and reply else None
    return None


def _iteration(key: str, reply: Any) -> Iteration | None:
    with suppress(MalformedIteration):
        return read_iteration(key, reply) if isinstance(reply, list) and any(reply) else None
    return None


def chain_of(job: JobRecord) -> list[Payload]:
    """Return the payloads of the jobs that follow in its chain, the next one first."""
    following = job[THEN]
    return [each for each in following if isinstance(each, dict)] if isinstance(following, list) else []


def cancel_everywhere(stores: Iterable[Store], jid: str) -> Cancelled:
    """Cancel a job in shards; return what became of it in all of them.

    About eleven round trips for each, one more per 2 000 jobs that wait.  Raises StoreError.
    """
    found = [cancel_in(store, jid) for store in stores]
    return Cancelled(
        sum(each.removed for each in found),
        sum(each.running for each in found),
        any(each.told for each in found),
        any(each.follows for each in found),
    )
