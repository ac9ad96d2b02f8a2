"""Results: what a job returned, or why it failed, is kept for whoever waits for it (option `result_ttl`).

on_end        the effect `tell`, in the step that ends the job: its result, JSON of at most 1 MB

| outcome                                           | state                                                       |
|---------------------------------------------------|-------------------------------------------------------------|
| Done                                              | done, with what `perform` returned                          |
| Done with NormalFailure; Dead, Discard            | failed, with the error                                      |
| Dropped                                           | dropped, with the reason                                    |
| Retry, Requeue, Interrupted, Deferred, Parked     | none yet                                                    |

The key is a list of one element, so that others can wait for it: client/handle.py, which reads it (client/results).
Price: one effect with three Redis calls, no round trip.  A class without the option pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kiqcluster.application.converters import plain
from kiqcluster.application.options import RESULT_TTL
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.errors import CannotRun, NormalFailure, class_name, message_of
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Dropped, Effect
from kiqcluster.sidekiq.payload import Payload, check_storable
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = [
    "MAX_RESULT_BYTES",
    "Results",
    "described",
    "encoded_result",
    "kept_of",
    "with_encoded",
]

MAX_RESULT_BYTES = 1_000_000
MAX_MESSAGE_CHARACTERS = 10_000
NO_ERROR = CannotRun("it was given up, and no error of it is kept")


class Results:
    """The server half."""

    name = "result"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition, /) -> bool:
        return RESULT_TTL in definition.local

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that keeps the result of a job that has ended."""
        return _rows(end, kept_of(end))

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        """Return the row that keeps the reason in place of the value: the job has ended all the same."""
        kept = kept_of(end)
        return _rows(end, {"state": "done", **described(error)} if kept is not None and "value" in kept else kept)


def _rows(end: JobEnd, kept: dict[str, JSON] | None) -> Iterable[Effect]:
    jid, definition = end.payload.get("jid"), current_registry().get(end.name)
    if kept is None or definition is None or not isinstance(jid, str):
        return ()
    return (Effect("tell", end.keys.result(jid), (encoded_result(kept, definition), definition.local[RESULT_TTL])),)


def kept_of(end: JobEnd) -> dict[str, JSON] | None:
    """Return what is kept of a job; None if it runs again."""
    match end.outcome:
        case Done() if is_a(end.failure, NormalFailure):
            return {"state": "failed", **described(end.failure)}
        case Done():
            return {"state": "done", "value": end.returned}
        case Dead() as outcome:
            return {"state": "failed", **_error(end, outcome.payload)}
        case Discard():
            return {"state": "failed", **_error(end, b"")}
        case Dropped() as outcome:
            return {"state": "dropped", "reason": str(_fields(outcome.payload).get("dropped_by", ""))}
    return None


def encoded_result(kept: dict[str, JSON], definition: Definition | None = None) -> bytes:
    """Return JSON.  Raises whatever says that the value cannot be kept.

    definition: of the job that has returned the value.
    """
    if definition is not None and "value" in kept:
        kept = {**kept, "value": definition.write_result(kept["value"])}
    check_storable(kept.get("value"), "the result")
    encoded = with_encoded(kept)[1]
    if len(encoded) > MAX_RESULT_BYTES:
        raise ValueError(f"it has {len(encoded)} bytes of JSON, and {MAX_RESULT_BYTES} are kept at most")
    return encoded


def with_encoded(value: Any) -> tuple[JSON, bytes]:
    """Return what a job has returned, and its JSON.  Raises TypeError, which says what helps; ValueError."""
    try:
        return value, ruby_json.encode(value)
    except TypeError:
        value = plain(value)
        return value, ruby_json.encode(value)


def _error(end: JobEnd, entry: bytes) -> dict[str, JSON]:
    if end.failure is not None:
        return described(end.failure)
    fields = _fields(entry)
    if not fields.get("error_class"):  # middleware has given it up, or its options keep nothing of a dead job
        return {"error_class": class_name(NO_ERROR), "error_message": str(NO_ERROR)}
    return {key: str(fields.get(key, "")) for key in ("error_class", "error_message")}


def described(error: BaseException) -> dict[str, JSON]:
    """Return class and message of an error."""
    text = message_of(error)[:MAX_MESSAGE_CHARACTERS].encode(errors="replace").decode()
    return {"error_class": class_name(error), "error_message": text}


def _fields(entry: bytes) -> Payload:
    try:
        found = ruby_json.decode(entry) if entry else {}
    except ruby_json.Undecodable:
        return {}
    return found if isinstance(found, dict) else {}
