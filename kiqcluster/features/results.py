"""Results: what a job returned, or why it failed, is kept for whoever waits for it (option `result_ttl`).

on_end        the effect `tell`, in the step that ends the job: its result, JSON of at most 1 MB
read_result   what Redis keeps → Result

| outcome                                           | state                                                       |
|---------------------------------------------------|-------------------------------------------------------------|
| Done                                              | done, with what `perform` returned                          |
| Done with NormalFailure; Dead, Discard            | failed, with the error                                      |
| Dropped                                           | dropped, with the reason                                    |
| Retry, Requeue, Interrupted, Deferred, Parked     | none yet                                                    |

The key is a list of one element, so that others can wait for it: client/handle.py.
Price: one effect with three Redis calls, no round trip.  A class without the option pays nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from kiqcluster.application.converters import plain
from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.errors import CannotRun, NormalFailure, class_name, message_of
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.progress import Progress
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Dropped, Effect
from kiqcluster.sidekiq.payload import Payload, check_storable
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = [
    "MAX_RESULT_BYTES",
    "RESULT_TTL",
    "Result",
    "Results",
    "described",
    "encoded_result",
    "kept_of",
    "read_result",
    "with_encoded",
]

RESULT_TTL = "result_ttl"
MAX_RESULT_BYTES = 1_000_000
MAX_MESSAGE_CHARACTERS = 10_000
TEXTS = ("error_class", "error_message", "reason", "job", "jid")  # of what is kept
NO_ERROR = CannotRun("it was given up, and no error of it is kept")

State = Literal["pending", "done", "failed", "dropped"]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a job.

    state: pending while it has not ended, or nothing is kept of it any more.  value: what it returned.
    error_class, error_message: why it failed, or why what it returned could not be kept.  reason: why it was dropped.
    progress: how far it has come, as long as it runs and has said so.
    ended_by, ended_by_jid: the job of its chain that has failed or was dropped before it, "" if it is the job itself.
    """

    state: State
    value: JSON = None
    error_class: str = ""
    error_message: str = ""
    reason: str = ""
    progress: Progress | None = None
    ended_by: str = ""
    ended_by_jid: str = ""


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


def read_result(raw: bytes) -> Result:
    """Return what Redis keeps.  Raises ValueError for other bytes."""
    fields = ruby_json.decode(raw)
    if not isinstance(fields, dict) or fields.get("state") not in ("done", "failed", "dropped"):
        raise ValueError(f"it is not the result of a job: {raw[:50]!r}")
    error_class, message, reason, job, jid = (str(fields.get(key, "")) for key in TEXTS)
    return Result(fields["state"], fields.get("value"), error_class, message, reason, ended_by=job, ended_by_jid=jid)


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
