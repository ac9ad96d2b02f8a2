"""retries, scheduled, dead: a group of commands for each set, all made from the tables in kinds.py and verbs.py."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click

from kiqcluster.api import JobSet, SortedEntry
from kiqcluster.clock import SystemClock
from kiqcluster.ctl.bulk import Task, count
from kiqcluster.ctl.kinds import DEAD, EXAMPLE, RETRIES, SCHEDULED, Kind, elsewhere, walk
from kiqcluster.ctl.listing import Listing, Page, page_options
from kiqcluster.ctl.naming import entries_named
from kiqcluster.ctl.options import SETTINGS, Output, json_option, redis_options
from kiqcluster.ctl.picture import job_as_json
from kiqcluster.ctl.places import NotThere
from kiqcluster.ctl.selection import Selection, entry_filters
from kiqcluster.ctl.tables import NOTHING, Column, clean, counted, number, stamp
from kiqcluster.ctl.verbs import ADD_TO_QUEUE, DELETE, KILL, RESCHEDULE, RETRY, Verb, command_of
from kiqcluster.ctl.views import ENTRIES, details, entry_words
from kiqcluster.errors import ExitCode
from kiqcluster.store import Store

__all__ = ["dead", "retries", "scheduled"]

FAILURES = frozenset({"TRIES", "ERROR"})  # titles of columns


def _list(kind: Kind) -> click.Command:
    order = "the latest first" if kind.is_newest_first else "what is due next first"

    @click.option("--count", "is_count", is_flag=True, help="say how many there are, and no more")
    @page_options
    @entry_filters
    @redis_options
    @json_option
    @click.pass_context
    def run(ctx: click.Context, store: Store, output: Output, selection: Selection, page: Page, is_count: bool) -> None:
        job_set, now = kind.job_set(store=store), SystemClock.now()
        if is_count:
            total = _count(kind, job_set, selection, output, now) if selection.is_narrow else len(job_set)
            output.say(number(total))
            output.document({"set": kind.name, "count": total})
            ctx.exit(ExitCode.STOPPED)
        size, shown = len(job_set), _page(kind, job_set, selection, page, now)
        if shown:
            output.table(*_told([entry_words(each, now) for each in shown]), indent=0)
        output.say(page.in_words(len(shown), *kind.entries, size, is_narrow=selection.is_narrow))
        output.document(
            {"set": kind.name, "size": size, "page": page.number, "entries": [_as_json(each) for each in shown]}
        )
        ctx.exit(ExitCode.STOPPED)

    text = f"""Show {kind.words}, {order}.

    With --text they come in no order. --older and --newer count {kind.age}.  One round trip a page, or per 500 entries
    where a filter has to look at them.

    \b
      kiqctl {kind.name} list
      kiqctl {kind.name} list --class SendInvoice --queue default --newer 1h
      kiqctl {kind.name} list --text '*Inv?ice*' --limit 100 --json
      kiqctl {kind.name} list --error Timeout --count
    """
    return click.command("list", help=text, context_settings=SETTINGS)(run)


def _told(rows: list[tuple[str, ...]]) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows, without those about failures where nothing has failed."""
    kept = [
        at
        for at, column in enumerate(ENTRIES)
        if column.title not in FAILURES or any(row[at] not in ("", NOTHING) for row in rows)
    ]
    return [ENTRIES[at] for at in kept], [[row[at] for at in kept] for row in rows]


def _count(kind: Kind, job_set: JobSet, selection: Selection, output: Output, now: float) -> int:
    def is_meant(entry: SortedEntry) -> bool:
        return selection.matches(entry, now, kind.since(entry))

    records = walk(kind, job_set, selection, now, kind.order)
    return count(output, Task("", lambda: records, len(job_set), is_meant))


def _page(kind: Kind, job_set: JobSet, selection: Selection, page: Page, now: float) -> list[SortedEntry]:
    if selection.is_narrow:
        records = walk(kind, job_set, selection, now, kind.order)
        return page.of(each for each in records if selection.matches(each, now, kind.since(each)))
    if kind.is_newest_first:
        return job_set.page(page.start, page.size)
    return page.of_reversed(len(job_set), job_set.page)


def _as_json(entry: SortedEntry) -> dict[str, Any]:
    """Return what a document says of an entry."""
    return {
        **job_as_json(entry),
        "score": entry.score if isfinite(entry.score) else None,
        "at": stamp(entry.score),
        "retry_count": entry.retry_count,
        "error_class": entry.error_class,
        "error_message": entry.error_message,
        "created_at": entry.created_at,
        "failed_at": entry.failed_at,
        "tags": entry.tags,
        "deferred_by": entry["deferred_by"],
        "deferred_count": entry["deferred_count"],
    }


def _show(kind: Kind) -> click.Command:
    @click.argument("jid")
    @redis_options
    @json_option
    @click.pass_context
    def run(ctx: click.Context, store: Store, output: Output, jid: str) -> None:
        entries = entries_named(kind.job_set(store=store), [jid]).get(jid, [])
        if not entries:
            raise NotThere(elsewhere(store, kind, [jid])[jid])
        for entry in entries:
            output.print(map(clean, details(entry) or ()))
        if len(entries) > 1:
            output.say(f"{counted(len(entries), *kind.entries)} have this id")
        first = entries[0]
        document = {**_as_json(first), "backtrace": first.error_backtrace, "payload": first.payload}
        output.document({**document, "others": [_as_json(each) for each in entries[1:]]})
        ctx.exit(ExitCode.STOPPED)

    text = f"""Show all that is known of one job of {kind.words}.

    \b
      kiqctl {kind.name} show {EXAMPLE}
      kiqctl {kind.name} show {EXAMPLE} --json
    """
    return click.command("show", help=text, context_settings=SETTINGS)(run)


def _group(kind: Kind, *verbs: Verb) -> click.Group:
    text = f"""{kind.help}

    Without a command, it is `list`.

    \b
      kiqctl {kind.name}
      kiqctl {kind.name} --class SendInvoice --limit 100
    """
    group = Listing(kind.name, help=text, context_settings=SETTINGS)
    for each in (_list(kind), _show(kind), *(command_of(kind, verb) for verb in verbs)):
        group.add_command(each)
    return group


retries = _group(RETRIES, RETRY, KILL, DELETE, RESCHEDULE)
scheduled = _group(SCHEDULED, ADD_TO_QUEUE, KILL, DELETE, RESCHEDULE)
dead = _group(DEAD, RETRY, DELETE)
