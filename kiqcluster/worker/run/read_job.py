"""Read job: a unit's bytes → its job, and the keys that a job gets which may not run now.

Settle writes a unit's bytes back with some keys replaced (sidekiq/ruby_entries): compressed arguments stay so, and a
job's changes to its own copy are not written.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.errors import MalformedPayload
from kiqcluster.features.hooks.run_hooks import NO_FEATURES, Used
from kiqcluster.sidekiq.compression import COMPRESSED, decompressed, is_compressed
from kiqcluster.sidekiq.payload import PROMISED_BY, Payload, deferral_count, read
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.engine.units import BeginVerdict, Unit

__all__ = ["DEFERRAL_KEYS", "ReadJob", "deferral", "payload_of", "refusal", "unreadable_job"]

MAX_PROMISES = 9  # of earlier limits that a payload names
DEFERRAL_KEYS = ("deferred", "deferred_by", PROMISED_BY)  # that a job which has begun does not have any more


@dataclass(slots=True)  # nothing changes its fields; a frozen one takes a microsecond longer to make
class ReadJob:
    """A job as its unit says it; one is made for each run."""

    unit: Unit
    payload: Payload
    """The copy that the job and middleware have, and may change."""
    name: str
    definition: Definition | None
    """None for a class that is not registered here."""
    features: Used
    """The server halves that the job uses."""

    def pristine(self) -> Payload:
        """Return the payload as it came, read once more: the run may have changed its own copy.

        Raises MalformedPayload.
        """
        return payload_of(self.unit)

    def entry(self, changes: Mapping[str, JSON], without: Collection[str] = ()) -> bytes:
        """Return the unit's bytes with some keys changed or left out, as Ruby can show and enqueue them.

        Raises MalformedPayload.
        """
        return entry_for_ruby(self.unit.payload, changes, self.unit.queue, without)


def unreadable_job(unit: Unit) -> ReadJob:
    """Return a job of which nothing is known but its unit, whose bytes cannot be read."""
    return ReadJob(unit, {}, "", None, NO_FEATURES)


def payload_of(unit: Unit) -> Payload:
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
