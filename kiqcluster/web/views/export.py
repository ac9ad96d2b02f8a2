"""Export: jobs of a set as JSON lines, with what the pages show of them: arguments are filtered here, too.

/<set>/export, /queues/<name>/export   GET: all that match; POST: those that were selected

Lines are written while the set is read, so that any number of them takes little memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from math import isfinite
from typing import Any

from kiqcluster.api import Queue, SortedEntry
from kiqcluster.api.bulk import walk, walk_queue
from kiqcluster.api.records import JobRecord
from kiqcluster.errors import StoreError
from kiqcluster.web.arguments import MAX_PAGE_CHARACTERS, shorten, shown_arguments
from kiqcluster.web.context import Context
from kiqcluster.web.formats import iso_time
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Download, Page
from kiqcluster.web.users import Role
from kiqcluster.web.views.entries import find_entries, find_several
from kiqcluster.web.views.filters import Filter, read_strict_filter
from kiqcluster.web.views.set_kinds import QUEUE, SETS, QueueKind, SetKind
from kiqcluster.web.views.sets import selected_keys

__all__ = ["ACTIONS", "PAGES"]

CONTENT_TYPE = "application/x-ndjson; charset=utf-8"
COST = 3.0  # tokens of the rate limit: the whole set is read
MAX_TEXT_CHARACTERS = 5_000  # of a message or a name
MARKUP = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}  # no browser takes a line for a page


def export_matching(kind: SetKind, context: Context) -> Download:
    """Return all that match, the oldest first or the newest, as the page has them."""
    chosen = read_strict_filter(context, kind, context.request.args)
    sort = context.request.args.get("sort", "")
    entries = walk(
        kind.job_set(store=context.store),
        context.store,
        chosen.selection,
        newest_first=sort == "newest" or (not sort and not kind.is_ahead),
        arguments=partial(shown_arguments, formatter=context.formatter),
        are_arguments_json=context.formatter is None,
    )
    return _download(kind, (entry_as_json(context, each) for each in entries), _words(chosen))


def export_selected(kind: SetKind, context: Context) -> Download:
    """Return those that were selected."""
    found = find_entries(context.entry_keys, kind.job_set(store=context.store), selected_keys(context))
    return _download(kind, (entry_as_json(context, each) for each in found), "selected")


def export_queue(context: Context) -> Download:
    """Return all of a queue that match, the next to be fetched first."""
    chosen = read_strict_filter(context, QUEUE, context.request.args)
    jobs = walk_queue(
        context.store,
        context.route["queue"],
        chosen.selection,
        arguments=partial(shown_arguments, formatter=context.formatter),
        are_arguments_json=context.formatter is None,
    )
    return _download(QUEUE, (job_as_json(context, each) for each in jobs), _words(chosen))


def export_queued(context: Context) -> Download:
    """Return those of a queue that were selected."""
    found = find_several(context.entry_keys, Queue(context.route["queue"], store=context.store), selected_keys(context))
    return _download(QUEUE, (job_as_json(context, each) for each in found), "selected")


def _words(chosen: Filter) -> str:
    filters = ", ".join(f"{name}={text}" for name, text in chosen.fields.items())
    return f"all that match {filters}" if filters else "all"


def _download(kind: SetKind | QueueKind, documents: Iterable[dict[str, Any]], target: str) -> Download:
    lines = (_line(each) for each in documents)
    return Download(f"{kind.name}.jsonl", CONTENT_TYPE, lines, _broken_off, target)


def _broken_off(error: StoreError) -> bytes:
    return _line({"error": f"the file is not complete: {error}"})


def entry_as_json(context: Context, entry: SortedEntry) -> dict[str, Any]:
    """Return what a line says of an entry."""
    job = job_as_json(context, entry)
    return {**job, "score": entry.score if isfinite(entry.score) else None, "at": iso_time(entry.score)}


def job_as_json(context: Context, job: JobRecord) -> dict[str, Any]:
    return {
        "jid": shorten(job.jid, MAX_TEXT_CHARACTERS),
        "class": shorten(job.display_class, MAX_TEXT_CHARACTERS),
        "queue": shorten(job.queue, MAX_TEXT_CHARACTERS),
        "arguments": shorten(context.all_arguments(job), MAX_PAGE_CHARACTERS),
        "created_at": iso_time(job.created_at),
        "enqueued_at": iso_time(job.enqueued_at),
        "failed_at": iso_time(job.failed_at),
        "retry_count": job.retry_count,
        "error_class": shorten(job.error_class or "", MAX_TEXT_CHARACTERS) or None,
        "error_message": shorten(job.error_message or "", MAX_TEXT_CHARACTERS) or None,
        "tags": [shorten(tag, MAX_TEXT_CHARACTERS) for tag in job.tags[:100]],
    }


def _line(document: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(document)
    except ValueError:  # an integer of thousands of digits
        text = json.dumps({**document, "retry_count": None})
    return f"{text.translate(MARKUP)}\n".encode()


PAGES = (
    *(
        Page(
            f"{kind.name}_export",
            f"/{kind.name}/export",
            partial(export_matching, kind),
            "",
            message("Export"),
            cost=COST,
        )
        for kind in SETS
    ),
    Page("queue_export", "/queues/<name:queue>/export", export_queue, "", message("Export"), cost=COST),
)
ACTIONS = (
    *(
        Action(
            f"{kind.name}_export_selected",
            f"/{kind.name}/export",
            partial(export_selected, kind),
            role=Role.VIEW,
            is_change=False,
        )
        for kind in SETS
    ),
    Action("queue_export_selected", "/queues/<name:queue>/export", export_queued, role=Role.VIEW, is_change=False),
)
