"""Cron: what is enqueued on a schedule, ours and sidekiq-cron's; enqueue now, disable, enable, remove.

/cron           a row for each entry, and for each record of sidekiq-cron
/cron/<name>    one entry: its next ticks, and its latest jobs
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from werkzeug.exceptions import NotFound

from kiqcluster.api import CronSet, CronStatus, JobRecord, enqueued_twice
from kiqcluster.api.cron import labels_of
from kiqcluster.control.fleet import Fleet
from kiqcluster.sidekiq import ruby_json
from kiqcluster.web.arguments import MAX_PAGE_CHARACTERS, as_json, shorten
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question
from kiqcluster.web.users import Role

__all__ = ["ACTIONS", "PAGES", "lateness"]

ENTRIES_PER_PAGE = 100
MAX_RUBY_RECORDS = 500
SHOWN_TICKS = 8
LATE_SECONDS = 10.0  # a tick that nobody has taken for so long is shown as late
BACK_TO_LIST = "list"  # a field of forms


def show_entries(context: Context) -> Mapping[str, Any]:
    """Show all entries.  Six round trips, one more per 500 entries, and per 500 processes."""
    entries = CronSet(store=context.store, clock=context.clock)
    text = context.request.args.get("q", "").strip()
    every, rubys = entries.list(), entries.ruby_jobs()
    ours = [each for each in every if text.lower() in _words(each)]
    theirs = [each for each in rubys if text.lower() in each.name.lower()]
    pages = max(1, -(-len(ours) // ENTRIES_PER_PAGE))
    page = min(context.number("page"), pages)
    shown, fleet = ours[(page - 1) * ENTRIES_PER_PAGE : page * ENTRIES_PER_PAGE], entries.fleet()
    labels = labels_of(ours)
    return {
        "rows": [{**_row(each, fleet, context.clock.now()), "label": labels[each.id]} for each in shown],
        "count": len(ours),
        "ruby": theirs[:MAX_RUBY_RECORDS],
        "ruby_count": len(theirs),
        "twice": enqueued_twice(every, rubys),
        "text": text,
        "number": page,
        "pages": pages,
    }


def _words(status: CronStatus) -> str:
    return f"{status.name} {status.entry.job if status.entry is not None else ''}".lower()


def _row(status: CronStatus, fleet: Fleet, now: float) -> Mapping[str, Any]:
    late = now - status.next_at if status.is_enabled and status.next_at is not None else 0.0
    return {
        "status": status,
        "entry": status.entry,
        "is_served": status.is_served(fleet),
        "is_orphaned": status.is_orphaned(fleet),
        "late": late if late > LATE_SECONDS else None,
        "late_after": LATE_SECONDS,
        "latest_late": lateness(status.latest.tick, status.latest.at) if status.latest is not None else None,
    }


def lateness(tick: float, at: float) -> float | None:
    """Return by how many seconds a job came later than its tick; None for one that was enqueued by hand."""
    return None if tick == at else max(0.0, at - tick)


def show_entry(context: Context) -> Mapping[str, Any]:
    """Show one entry.  Six round trips, one more per 500 processes.  Raises NotFound."""
    name, now = context.route["entry"], context.clock.now()
    entries = CronSet(store=context.store, clock=context.clock)
    status = entries.get(name)
    if status is None:
        raise NotFound(context.gettext("There is no such cron entry: it was removed."))
    entry = status.entry
    return {
        **_row(status, entries.fleet(), now),
        "title": status.name,
        "name": status.id,
        "words": entry.schedule.in_words() if entry is not None else "",
        "ticks": list(islice(entry.schedule.after(now), SHOWN_TICKS)) if entry is not None else [],
        "arguments": _arguments(context, status),
        "options": shorten(as_json(dict(entry.options)), 1_000) if entry is not None else "",
        "runs": [{"run": each, "late": lateness(each.tick, each.at)} for each in entries.history(status.id)],
    }


def _arguments(context: Context, status: CronStatus) -> str:
    """Return the arguments of the jobs of an entry, as those of a job are shown."""
    if status.entry is None:
        return ""
    payload = {**status.entry.options, "class": status.entry.job, "args": status.entry.args}
    record = JobRecord(ruby_json.encode(payload), status.entry.queue)
    return shorten(context.all_arguments(record), MAX_PAGE_CHARACTERS)


# actions


def enqueue(context: Context) -> Done:
    """Enqueue the job of an entry now."""
    name = context.route["entry"]
    pushed = CronSet(store=context.store, clock=context.clock).push(name)
    if pushed.jid is None:
        stopped = context.gettext("Middleware has stopped the job; nothing was enqueued.")
        held = context.gettext("The job %(jid)s holds the lock; nothing was enqueued.", jid=pushed.holder)
        return Done(stopped if pushed.holder is None else held, _back(context), target=name, has_failed=True)
    text = context.gettext("The job %(jid)s was enqueued.", jid=pushed.jid)
    return Done(text, _back(context), target=f"{name} {pushed.jid}")


def disable(context: Context) -> Done:
    """Have an entry enqueue nothing until it is enabled."""
    was_there = CronSet(store=context.store).disable(context.route["entry"])
    return _done(context, message("The entry is disabled: it enqueues nothing, also after deploys."), was_there)


def enable(context: Context) -> Done:
    """Have an entry enqueue jobs again."""
    was_there = CronSet(store=context.store).enable(context.route["entry"])
    return _done(context, message("The entry is enabled, from its next tick on."), was_there)


def ask_to_remove(context: Context) -> Question:
    """Ask about an entry."""
    name = context.route["entry"]
    text = context.gettext("Remove the cron entry %(name)s? Its jobs that are enqueued already run.", name=name)
    return Question(text, context.gettext("Remove"), context.url("cron_entry", entry=name))


def remove(context: Context) -> Done:
    """Remove an entry that was added at run time, or whose application runs no more."""
    name = context.route["entry"]
    was_there = CronSet(store=context.store).remove(name)
    text = message("The cron entry was removed.") if was_there else message("There was no such cron entry.")
    return Done(context.gettext(text), context.url("cron"), target=name, has_failed=not was_there)


def _done(context: Context, text: str, was_there: bool) -> Done:
    name = context.route["entry"]
    if not was_there:
        gone = context.gettext("There was no such cron entry.")
        return Done(gone, context.url("cron"), target=name, has_failed=True)
    return Done(context.gettext(text), _back(context), target=name)


def _back(context: Context) -> str:
    if context.request.form.get("back") == BACK_TO_LIST:
        return context.url("cron")
    return context.url("cron_entry", entry=context.route["entry"])


PAGES = (
    Page("cron", "/cron", show_entries, "cron.html", message("Cron"), place=74, key="n"),
    Page("cron_entry", "/cron/<name:entry>", show_entry, "cron_entry.html", message("Cron")),
)
ACTIONS = (
    Action("cron_enqueue", "/cron/<name:entry>/enqueue", enqueue),
    Action("cron_disable", "/cron/<name:entry>/disable", disable),
    Action("cron_enable", "/cron/<name:entry>/enable", enable),
    Action("cron_remove", "/cron/<name:entry>/remove", remove, role=Role.ADMIN, question=ask_to_remove),
)
