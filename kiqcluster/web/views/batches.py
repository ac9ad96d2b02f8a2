"""Batches: many jobs with one status; how far each is, which rows failed and why; cancel, close.

/batches         a row for each batch, the youngest first
/batches/<id>    one batch: counts, child batches, callbacks, and its failed jobs with their arguments and messages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from werkzeug.exceptions import NotFound

from kiqcluster.api import JobRecord
from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT
from kiqcluster.batches import Batch, BatchJob, BatchStatus
from kiqcluster.errors import BatchEnded
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question

__all__ = ["ACTIONS", "PAGES", "progress"]

BATCHES_PER_PAGE = 25
FAILURES_PER_PAGE = 25
MAX_SHOWN_CHILDREN = 100
MAX_MESSAGES = 10  # of one job
MAX_REASON_CHARACTERS = 200
NO_ARGUMENTS = "–"  # they are not kept: large, or encrypted
PARTS = (("finish", "good"), ("failed", "warn"), ("error", "bad"), ("working", "a"))  # of a bar, from the left


def show_batches(context: Context) -> Mapping[str, Any]:
    """Show the batches.  Three round trips."""
    count, page = Batch.count(store=context.store), context.number("page")
    pages = max(1, -(-count // BATCHES_PER_PAGE))
    page = min(page, pages)
    found = Batch.all((page - 1) * BATCHES_PER_PAGE, BATCHES_PER_PAGE, store=context.store)
    return {"rows": [_row(each) for each in found], "count": count, "number": page, "pages": pages}


def _row(status: BatchStatus) -> Mapping[str, Any]:
    return {"batch": status, "bar": list(progress(status)), "percent": min(100.0, status.percent)}


def progress(status: BatchStatus) -> Iterator[tuple[str, float, float]]:
    """Yield the parts of a batch's bar: kind, where it begins, how long it is, both in per cent of all jobs."""
    whole = max(status.total, status.expected if status.is_open else 0)
    start = 0.0
    for name, kind in PARTS:
        length = min(100.0 - start, 100 * getattr(status, name) / whole) if whole else 0.0
        if length > 0:
            yield kind, round(start, 2), round(length, 2)
            start += length


def show_batch(context: Context) -> Mapping[str, Any]:
    """Show one batch.  Four round trips.  Raises NotFound."""
    batch, page = Batch.get(context.route["batch"], store=context.store), context.number("page")
    status = _status(context, batch)
    parts = batch.parts((page - 1) * FAILURES_PER_PAGE, FAILURES_PER_PAGE, MAX_SHOWN_CHILDREN)
    children = sorted(parts.children, key=lambda each: (-each.created_at, each.id))
    ended = status.completed_at or (None if status.is_complete else context.clock.now())
    return {
        **_row(status),
        "title": status.name or status.id,
        "callbacks": [
            {"event": event, "queue": queue, "job": JobRecord(payload, queue)}
            for event, (queue, payload) in parts.callbacks.items()
        ],
        "children": [_row(each) for each in children],
        "child_count": parts.child_count,
        "failed": parts.failed,
        "failures": [
            {
                "job": each,
                "arguments": _arguments(context, status, each),
                "messages": _timed_messages(each)[-MAX_MESSAGES:],
                "more": max(0, len(each.messages) - MAX_MESSAGES),
            }
            for each in parts.failures
        ],
        "number": page,
        "pages": max(1, -(-parts.failed // FAILURES_PER_PAGE)),
        "took": max(0.0, ended - status.created_at) if ended is not None and status.created_at else None,
        "max_reason": MAX_REASON_CHARACTERS,
    }


def _status(context: Context, batch: Batch) -> BatchStatus:
    """Return the status of a batch.  Raises NotFound."""
    try:
        return batch.status(most_failures=0)
    except BatchEnded as error:
        raise NotFound(context.gettext("There is no such batch; it may have expired.")) from error


def _timed_messages(job: BatchJob) -> list[tuple[float | None, str]]:
    """Return the messages of a job, each with the time at which it was written, None where that was not kept."""
    timed: list[tuple[float | None, str]] = [(each.at, text) for each in job.changes for text in each.messages]
    return [(None, text) for text in job.messages[: len(job.messages) - len(timed)]] + timed


def _arguments(context: Context, status: BatchStatus, job: BatchJob) -> str:
    """Return the arguments of a job of a batch, as those of a job are shown.

    Of a job whose class nobody has kept, numbers only; nothing where the hook of the application decides by the class.
    """
    if not isinstance(job.params, list):
        return NO_ARGUMENTS
    name = status.class_of(job)
    if not name and context.formatter is not None:
        return HIDDEN_ARGUMENT
    payload: dict[str, JSON] = {"class": name or "-", "args": job.params, "jid": job.jid}
    try:
        return context.arguments(JobRecord(ruby_json.encode(payload)))
    except ValueError:  # what no payload can hold
        return NO_ARGUMENTS


# actions


def ask_to_cancel(context: Context) -> Question:
    """Ask, with the count of jobs that have not begun."""
    status = _status(context, Batch.get(context.route["batch"], store=context.store))
    text = context.ngettext(
        "Cancel the batch %(name)s with its child batches? %(count)s job has not begun, and will be dropped.",
        "Cancel the batch %(name)s with its child batches? %(count)s jobs have not begun, and will be dropped.",
        status.enqueue,
        name=status.name or status.id,
    )
    return Question(text, context.gettext("Cancel the batch"), _back(context))


def cancel(context: Context) -> Done:
    """Cancel a batch and its child batches."""
    reason = context.request.form.get("reason", "").strip().replace("\0", "")[:MAX_REASON_CHARACTERS]
    is_cancelled = Batch.get(context.route["batch"], store=context.store).cancel(reason)
    text = message("The batch is cancelled.") if is_cancelled else message("The batch was complete already.")
    return Done(context.gettext(text), _back(context), target=context.route["batch"], has_failed=not is_cancelled)


def ask_to_close(context: Context) -> Question:
    """Ask about a batch to which somebody may still add jobs."""
    status = _status(context, Batch.get(context.route["batch"], store=context.store))
    text = context.gettext(
        "Close the batch %(name)s? It is complete once the jobs that it has now have ended; nobody can add more.",
        name=status.name or status.id,
    )
    return Question(text, context.gettext("Close the batch"), _back(context))


def close(context: Context) -> Done:
    """Close a batch whose creator died."""
    Batch.get(context.route["batch"], store=context.store).close()
    return Done(context.gettext("The batch is closed."), _back(context), target=context.route["batch"])


def _back(context: Context) -> str:
    return context.url("batch", batch=context.route["batch"])


PAGES = (
    Page("batches", "/batches", show_batches, "batches.html", message("Batches"), place=78, key="t"),
    Page("batch", "/batches/<name:batch>", show_batch, "batch.html", message("Batches")),
)
ACTIONS = (
    Action("batch_cancel", "/batches/<name:batch>/cancel", cancel, question=ask_to_cancel),
    Action("batch_close", "/batches/<name:batch>/close", close, question=ask_to_close),
)
