"""Entries: a unit's bytes → payload, and the keys that it gets which may not run now.  Pure.

Settle writes a unit's bytes back with some keys replaced (sidekiq/ruby_entries): compressed arguments stay so, and a
job's changes to its own copy are not written.
"""

from __future__ import annotations

from typing import Any

from kiqcluster.errors import MalformedPayload
from kiqcluster.sidekiq.compression import COMPRESSED, decompressed, is_compressed
from kiqcluster.sidekiq.payload import PROMISED_BY, Payload, deferral_count, read
from kiqcluster.store.engine.units import BeginVerdict, Unit

__all__ = ["DEFERRAL_KEYS", "deferral", "read_job", "refusal"]

MAX_PROMISES = 9  # of earlier limits that a payload names
DEFERRAL_KEYS = ("deferred", "deferred_by", PROMISED_BY)  # that a job which has begun does not have any more


def read_job(unit: Unit) -> Payload:
    """Return the job of a unit, its arguments decompressed.  Raises MalformedPayload."""
    payload = read(unit.payload)
    if COMPRESSED in payload and is_compressed(payload):
        payload = decompressed(payload)
    arguments = payload.get("args")
    if arguments is None:
        payload["args"] = []  # Ruby calls perform without arguments
    elif type(arguments) is not list:
        raise MalformedPayload(f"args is of type {type(arguments).__name__}, not a list")
    return payload


def refusal(payload: Payload, verdict: BeginVerdict) -> dict[str, Any]:
    """Return the keys that a job gets which may not begin."""
    if verdict.action == "drop":
        return {"dropped": True, "dropped_by": verdict.reason}
    changes = deferral(payload, verdict.reason)
    if verdict.limit:
        before = payload.get(PROMISED_BY)
        names = [name for name in before if name != verdict.limit] if type(before) is list else []
        changes[PROMISED_BY] = [*names[-MAX_PROMISES:], verdict.limit]
    return changes


def deferral(payload: Payload, reason: str) -> dict[str, Any]:
    """Return the keys that a deferred job gets.  reason: the name of the feature, unknown_class or unknown_key.

    Each reason is counted by itself, so that one does not use up the deferrals that another one may have.
    """
    return {"deferred": True, "deferred_by": reason, "deferred_count": deferral_count(payload, reason, None) + 1}
