"""Batch statuses: the status of a job within its batch (kiqcluster/batches; the changes: store/lua/batches.lua).

A payload with `task_id` and `use_task_event` is counted in that batch, under its jid.
on_begin     the begin row `working`; a job of a cancelled batch is dropped by it
on_end       the effect `event`, with the messages of the run

| outcome                                        | status                                                        |
|------------------------------------------------|---------------------------------------------------------------|
| Done                                           | finish; failed if the job has raised NormalFailure            |
| Retry                                          | enqueue, with the error as a message                          |
| Dead, Discard                                  | error, with the error as a message                            |
| Dropped                                        | error, with the reason as a message                           |
| Requeue, Interrupted, Deferred, Parked         | enqueue                                                       |

A job whose process was killed is `working` until it runs again: recovery runs no effects.  A job that is deleted or
killed by hand ends as `error` in the script that does it (store/entry_moves).
Price: one begin row, three Redis calls in its script; one effect with four, a few more with the last job of a batch.
A job without `task_id` pays for one look-up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kiqcluster.application.registry import Definition
from kiqcluster.errors import MalformedPayload, NormalFailure, class_name, message_of
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Dead, Discard, Done, Dropped, Effect, Outcome, Retry
from kiqcluster.sidekiq.payload import CANCELLED_BY_BATCH, TASK_ID, Payload, batch_of
from kiqcluster.store.entry_moves import CANCELLED_WITH_BATCH

__all__ = ["BatchStatuses", "encoded"]

MAX_TEXT_CHARACTERS = 1_000  # of an error
MAX_RUN_BYTES = 15_000  # of the messages of a run; a job keeps 20 kB (batches.lua)


class BatchStatuses:
    """The server half; a push of a batch counts its jobs itself (store/batches)."""

    name = CANCELLED_BY_BATCH
    keys = frozenset({TASK_ID})

    def is_used_by(self, _definition: Definition, /) -> bool:
        return False  # what counts is the payload

    def asks_ahead(self, _definition: Definition) -> bool:
        return True

    def on_begin(self, run: Run) -> Iterable[Effect]:
        """Return the row that drops the job if its batch is cancelled, else says that it has begun."""
        batch = batch_of(run.payload)
        return () if batch is None else (Effect("working", run.keys.batch(batch[0]), (batch[1], "drop")),)

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        """Return the row that gives the job its next status."""
        batch = batch_of(end.payload)
        if batch is None:
            return ()
        status, text, kind = _ending(end.outcome, end.failure)
        last = encoded([text]) if text else ""
        return (
            Effect("event", end.keys.batch(batch[0]), (batch[1], status, _kept_messages(end.messages), kind, last)),
        )

    def on_end_failed(self, end: JobEnd, _error: BaseException) -> Iterable[Effect]:
        """Return the same row, without messages of the run."""
        return self.on_end(end)

    def on_unreadable(self, payload: Payload, keys: Keys, error: MalformedPayload) -> Iterable[Effect]:
        """Return the row that ends a job which cannot be read."""
        batch = batch_of(payload)
        if batch is None:
            return ()
        return (Effect("event", keys.batch(batch[0]), (batch[1], "error", "", "", encoded([_described(error)]))),)


def encoded(messages: Iterable[str]) -> str:
    """Return messages as Redis holds them: JSON, with commas between them."""
    texts = [text if ruby_json.is_unicode(text) else text.encode(errors="replace").decode() for text in messages]
    return ruby_json.encode(texts).decode()[1:-1]


def _kept_messages(messages: Sequence[str]) -> str:
    """Return the messages of a run as Redis holds them, the first ones where there are too many."""
    kept = encoded(messages)
    while (size := len(kept.encode())) > MAX_RUN_BYTES:
        messages = messages[: len(messages) * MAX_RUN_BYTES // size]
        kept = encoded(messages)
    return kept


def _ending(outcome: Outcome, failure: BaseException | None) -> tuple[str, str, str]:
    """Return the status of a job after its run, a message, and whether the job was cancelled."""
    match outcome:
        case Done() if failure is not None and is_a(failure, NormalFailure):
            return "failed", message_of(failure)[:MAX_TEXT_CHARACTERS], ""
        case Done():
            return "finish", "", ""
        case Retry():
            return "enqueue", _described(failure, outcome.payload), ""
        case Dead():
            return "error", _described(failure, outcome.payload), ""
        case Discard():
            return "error", _described(failure), ""
        case Dropped():
            by = _kept(outcome.payload).get("dropped_by")
            is_cancelled = by == CANCELLED_BY_BATCH
            text = CANCELLED_WITH_BATCH if is_cancelled else f"dropped by {by}" if by else "dropped"
            return "error", text, "cancelled" if is_cancelled else ""
    return "enqueue", "", ""


def _described(failure: BaseException | None, entry: bytes = b"") -> str:
    if failure is not None:
        return f"{class_name(failure)}: {message_of(failure)}"[:MAX_TEXT_CHARACTERS]
    kept = _kept(entry)
    if "error_message" not in kept:
        return "it will not run again, and left no error"
    return f"{kept.get('error_class')}: {kept['error_message']}"[:MAX_TEXT_CHARACTERS]


def _kept(entry: bytes) -> Payload:
    try:
        found = ruby_json.decode(entry) if entry else {}
    except ruby_json.Undecodable:
        return {}
    return found if isinstance(found, dict) else {}
