"""Rows: a job as an outbox keeps it, and back.

The payload is the bytes that Redis will get: they are made when the application enqueues, and never again.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from kiqcluster.errors import MalformedPayload, UsageError
from kiqcluster.process.delivery import Ready
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.sidekiq.payload import Jid, peek, read
from kiqcluster.store import Store

__all__ = ["DATABASES", "Row", "columns", "ready"]

DATABASES = frozenset({"postgresql", "sqlite"})  # that may hold them, as Django and SQLAlchemy name them
BYTES = "base64"  # key of a JSON object that stands for bytes


@dataclass(frozen=True, slots=True)
class Row:
    """A job that waits in a database.

    run_at: epoch seconds of a scheduled job, None for one that is due.  guards: rows of features (push.lua), as JSON.
    shard: by its name.  problem: why it could not be pushed, "" if nothing is known.
    """

    id: int
    jid: str
    queue: str
    run_at: float | None
    payload: bytes
    guards: str
    shard: str
    wait_replicas: int
    created_at: float
    problem: str = ""

    @property
    def job_class(self) -> str:
        return peek(self.payload)[0]


def columns(job: Ready, store: Store, wait_replicas: int, now: float) -> dict[str, Any]:
    """Return the columns of a new row.  Raises UsageError for a shard that the configuration does not name."""
    if store is not current_setup().shard(store.name):
        raise UsageError(
            "an outbox keeps the name of the shard, and this one is not in the configuration; declare it there, and "
            "write Client.via(name)"
        )
    guards = [[row.operation, row.key, list(map(_to_json, row.arguments))] for row in job.rows]
    return {
        "jid": job.jid,
        "queue": job.queue,
        "run_at": job.at,
        "payload": job.encoded,
        "guards": json.dumps(guards),
        "shard": store.name,
        "wait_replicas": wait_replicas,
        "created_at": now,
        "retry_at": 0.0,
        "problem": "",
    }


def ready(row: Row) -> Ready:
    """Return a row as `client/writes` takes it.  Raises MalformedPayload for what is no job."""
    read(row.payload)
    try:
        guards = [
            Effect(operation, key, list(map(_from_json, words))) for operation, key, words in json.loads(row.guards)
        ]
    except (ValueError, TypeError, LookupError) as error:
        raise MalformedPayload(f"the column guards cannot be read ({error})") from error
    return Ready(Jid(row.jid), row.queue, row.run_at, row.payload, tuple(guards))


def _to_json(word: str | bytes | float) -> Any:
    return {BYTES: b64encode(word).decode()} if isinstance(word, bytes) else word


def _from_json(word: Any) -> str | bytes | float:
    if isinstance(word, dict):
        return b64decode(word[BYTES])
    if not isinstance(word, str | int | float):
        raise TypeError(f"{word!r} is no argument of a row")
    return word
