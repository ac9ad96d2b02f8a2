"""History: the events of a job, kept for whoever asks what became of it (payload key `kiq_history`).

The backend of Django's tasks framework makes its results of them (contrib/django).

| when                                                | event                                             |
|-----------------------------------------------------|---------------------------------------------------|
| the push                                            | enqueued, with the job                            |
| a run begins                                        | began, with the worker                            |
| Retry                                               | failed, with the error                            |
| Interrupted, Requeue of a run that has begun        | put_back                                          |
| Done                                                | ended, with what the job returned                 |
| Dead, Discard, Dropped                              | ended, with the error                             |

Each is a row (`note`) of the step that pushes, begins or settles the job: a process that has lost the job writes none.
The key is a list; each event renews its time.
Price: a script instead of two commands at the push, one round trip at the begin, one effect at the end.  A job without
the key pays for one look-up.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kiqcluster.application.registry import Definition
from kiqcluster.errors import InvalidPush, JobDropped, class_name, message_of
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.results import MAX_RESULT_BYTES, kept_of
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Push, Run
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Done, Dropped, Effect, Interrupted, Requeue, Retry
from kiqcluster.sidekiq.payload import ENCRYPT, Payload, check_storable
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store import Store

__all__ = ["HISTORY", "ClientHistory", "ServerHistory", "decoded", "described_error", "read_history"]

HISTORY = "kiq_history"  # seconds for which the history is kept once the job has ended
DETAILS = "kiq_django"  # what the backend of Django's tasks keeps of a task
KEPT_KEYS = ("class", "queue", "args", DETAILS)  # of the payload, in the first event
PENDING_SECONDS = 30 * 86_400  # for which the history of a job is kept that does not end, after its latest event
MAX_TRACEBACK_CHARACTERS = 20_000
DONE = {"event": "ended", "state": "done"}
OUR_FOLDER = str(Path(__file__).parents[1])
CLOCK = SystemClock()

Event = Mapping[str, Any]


class ClientHistory:
    """The client half."""

    def is_used_by(self, definition: Definition, /) -> bool:
        return HISTORY in definition.options

    def on_push(self, push: Push, _definition: Definition) -> Iterable[Effect]:
        """Return the row that begins the history.  Raises InvalidPush for what JSON cannot hold."""
        now, seconds = CLOCK.now(), _seconds(push.payload)
        if seconds is None:
            return ()
        job = {key: push.payload[key] for key in KEPT_KEYS if key in push.payload}
        if push.payload.get(ENCRYPT):
            del job["args"]
        delay = 0.0 if push.at is None else max(0.0, push.at - now)
        event = {"event": "enqueued", "at": now, "job": job}
        try:  # without strict arguments, anything may be among them
            return (_note(push.keys, push.payload, event, PENDING_SECONDS + int(delay)),)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidPush(f"{push.payload['class']}: the payload holds what JSON cannot ({error})") from error


class ServerHistory:
    """The server half."""

    name = "history"
    keys = frozenset({HISTORY})

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is the payload

    def on_begin(self, run: Run) -> Iterable[Effect]:
        if _seconds(run.payload) is None:
            return ()
        event = {"event": "began", "at": CLOCK.now(), "worker": run.identity, "token": run.token}
        return (_note(run.keys, run.payload, event, PENDING_SECONDS),)

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that says how a run has ended; none for one that did not begin and is not over."""
        return _end_rows(end, _event_of(end))

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        """Return the same row, with the reason in place of the value of a job that is done."""
        is_done = isinstance(end.outcome, Done) and end.failure is None
        return _end_rows(end, {**DONE, "value": None, "error": described_error(error)} if is_done else _event_of(end))


def read_history(store: Store, jid: str) -> list[Event]:
    """Return the events of a job, the oldest first; [] where none are kept.  One round trip.  Raises StoreError."""
    return decoded(store.call("LRANGE", store.keys.history(jid), 0, -1))


def decoded(raw: Sequence[bytes]) -> list[Event]:
    """Return events; bytes that are none are left out, for anybody may have written them."""
    events: list[Event] = []
    for each in raw:
        try:
            event = ruby_json.decode(each)
        except ruby_json.Undecodable:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            events.append(event)
    return events


def described_error(error: BaseException) -> dict[str, JSON]:
    """Return the path of an error's class, and its traceback, from the frames of the application."""
    name, plain = class_name(error), f"{class_name(error)}: {message_of(error)}\n"
    text = guarded(lambda _: plain, _traceback_of, error)[-MAX_TRACEBACK_CHARACTERS:]
    return {"class": _path(name), "traceback": text.encode(errors="replace").decode()}


def _traceback_of(error: BaseException) -> str:
    told = traceback.TracebackException.from_exception(error)
    told.stack = traceback.StackSummary.from_list(
        [frame for frame in told.stack if not frame.filename.startswith(OUR_FOLDER)]
    )
    return "".join(told.format())


def _path(name: str) -> str:
    """Return the path of a class; Python's own are kept by their names."""
    return name if "." in name else f"builtins.{name}"


def _end_rows(end: JobEnd, event: Event | None) -> Iterable[Effect]:
    seconds = _seconds(end.payload)
    if seconds is None or event is None:
        return ()
    said = {**event, "at": CLOCK.now(), "worker": end.identity, "token": end.token}
    return (_note(end.keys, end.payload, said, seconds if event["event"] == "ended" else PENDING_SECONDS),)


def _event_of(end: JobEnd) -> dict[str, JSON] | None:
    match end.outcome:
        case Retry():
            return {"event": "failed", "error": _error_of(end)}
        case Interrupted() | Requeue():
            return {"event": "put_back"} if end.has_asked else None
        case Done() if end.failure is None:
            return _done(end.returned)
        case Done():
            return {"event": "ended", "state": "failed", "error": _error_of(end)}
    return None if kept_of(end) is None else {"event": "ended", "state": "failed", "error": _error_of(end)}


def _done(value: Any) -> dict[str, JSON]:
    """Return the event of a job that is done.  Raises whatever says that its value cannot be kept."""
    check_storable(value, "the result")
    size = len(ruby_json.encode(value))
    if size > MAX_RESULT_BYTES:
        raise ValueError(f"the result has {size} bytes of JSON, and {MAX_RESULT_BYTES} are kept at most")
    return {**DONE, "value": value}


def _error_of(end: JobEnd) -> dict[str, JSON]:
    if end.failure is not None:
        return described_error(end.failure)
    kept = kept_of(end) or {}
    if isinstance(end.outcome, Dropped):
        dropped = JobDropped(end.name, str(end.payload.get("jid")), str(kept.get("reason", "")))
        return {"class": class_name(dropped), "traceback": f"{class_name(dropped)}: {dropped}\n"}
    name, message = str(kept.get("error_class", "")), str(kept.get("error_message", ""))
    return {"class": _path(name), "traceback": f"{name}: {message}\n"}


def _seconds(payload: Payload) -> int | None:
    """Return for how long the history of a job is kept; None where nothing can be kept."""
    seconds, jid = payload.get(HISTORY), payload.get("jid")
    fits = type(seconds) is int and seconds > 0 and isinstance(jid, str) and ruby_json.is_unicode(jid)
    return seconds if fits else None


def _note(keys: Keys, payload: Payload, event: dict[str, Any], seconds: int) -> Effect:
    return Effect("note", keys.history(payload["jid"]), (ruby_json.encode(event), seconds))
