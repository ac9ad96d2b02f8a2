"""retries, scheduled, dead: a group of commands for each set, all made from the table of sets and that of actions.

list, show   read
actions      on entries by their ids, on all that a filter selects, or on --all; more than named ones are counted first,
             and whoever asks is asked.  Never: loads a set as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import click

from kiqcluster.api import JobSet, Order, SortedEntry
from kiqcluster.api.dashboard import job_as_json
from kiqcluster.ctl.jobs.bulk import BulkResult, BulkTask, count_selected, report, run_task
from kiqcluster.ctl.jobs.dead_set_limits import DeadSetLimits
from kiqcluster.ctl.jobs.enqueue import TIME
from kiqcluster.ctl.jobs.job_sets import (
    DEAD,
    DROPPED,
    EXAMPLE,
    RETRIES,
    SCHEDULED,
    JobSetKind,
    describe_missing,
    iterate,
)
from kiqcluster.ctl.jobs.locate import NotFound, find_entries
from kiqcluster.ctl.jobs.selection import Selection, entry_filters
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    DURATION,
    Output,
    confirm,
    dead_set_options,
    json_option,
    redis_options,
    yes_option,
)
from kiqcluster.ctl.text.pager import DefaultListGroup, Page, page_options
from kiqcluster.ctl.text.rows import ENTRY_COLUMNS, details, entry_words
from kiqcluster.ctl.text.tables import NO_VALUE, Column, clean, format_number, iso_time, json_line, pluralize
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.features.iteration import Iteration
from kiqcluster.iterable import iteration_status
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["dead", "dropped", "retries", "scheduled"]


@dataclass(frozen=True, slots=True)
class EntryAction:
    """What is done to entries.

    what: for a question, as in `retry 5 entries`.  label, past: as in `retrying`, `retried`.  is_oldest_first: for an
    order that matters; from the newest on, what comes back meanwhile is not met again and again.  all_at_once: a
    quicker way for --all.  has_time: it takes --in or --at.
    """

    name: str
    what: str
    label: str
    past: str
    help: str
    act: Callable[[JobSet, Iterable[SortedEntry], float], int]
    is_oldest_first: bool = False
    clear_all: Callable[[JobSet], int] | None = None
    has_time: bool = False


RETRY = EntryAction(
    "retry",
    "retry",
    "retrying",
    "retried",
    "Put jobs into their queues now.  The failure that brought them here does not count as a retry.",
    lambda job_set, entries, _: job_set.retry(entries),
)
ADD_TO_QUEUE = EntryAction(
    "add-to-queue",
    "put into their queues",
    "queueing",
    "put into their queues",
    "Put jobs into their queues now, instead of in their time.",
    lambda job_set, entries, _: job_set.add_to_queue(entries),
    is_oldest_first=True,
)
KILL = EntryAction(
    "kill",
    "kill",
    "killing",
    "killed",
    "Move jobs to the dead set.  It is trimmed to its limits; they run again only if somebody retries them there.",
    lambda job_set, entries, _: job_set.kill(entries),
)
DELETE = EntryAction(
    "delete",
    "delete",
    "deleting",
    "deleted",
    "Delete jobs for good.",
    lambda job_set, entries, _: job_set.delete(entries),
    clear_all=lambda job_set: job_set.clear(),
)
RESCHEDULE = EntryAction(
    "reschedule",
    "reschedule",
    "rescheduling",
    "rescheduled",
    "Give jobs another time.",
    lambda job_set, entries, at: job_set.reschedule(entries, at),
    has_time=True,
)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What somebody wants done.  at: the new time, epoch seconds, of a verb that takes one."""

    kind: JobSetKind
    action: EntryAction
    jids: Sequence[str]
    selection: Selection
    is_all: bool
    at: float
    yes: bool

    def check(self) -> None:
        """Raise UsageError unless it says whom it is about, in one way."""
        ways = bool(self.jids) + self.selection.has_filters + self.is_all
        if ways == 0:
            raise UsageError(f"{self.action.name} which?  Name JIDs, or a filter (--class, --queue, …), or --all")
        if ways > 1:
            raise UsageError("name JIDs, or a filter, or say --all: these do not go together")

    def document(self) -> dict[str, Any]:
        return {"set": self.kind.name, "action": self.action.name}


def command_of(kind: JobSetKind, action: EntryAction) -> click.Command:
    """Return the command that does it to entries of a set."""

    @click.argument("jids", metavar="[JID]...", nargs=-1)
    @entry_filters
    @click.option("--all", "is_all", is_flag=True, help=f"all of {kind.words}")
    @yes_option
    @(dead_set_options if action is KILL else redis_options)
    @json_option
    @click.pass_context
    def run(
        ctx: click.Context,
        /,
        store: Store,
        output: Output,
        delay: float | None = None,
        at: float | None = None,
        **options: Any,
    ) -> None:
        invocation = Invocation(kind, action, at=_due(delay, at) if action.has_time else 0.0, **options)
        invocation.check()
        job_set = kind.job_set(store=store)
        ctx.exit(
            _apply_to_named(invocation, store, job_set, output)
            if invocation.jids
            else _apply_to_all(invocation, store, job_set, output)
        )

    if action.has_time:
        run = click.option("--at", type=TIME, help="when they are due: 2026-11-20T09:59Z, or epoch seconds")(run)
        run = click.option("--in", "delay", type=DURATION, help="after which they are due, from now")(run)
    return click.command(action.name, help=_help(kind, action), context_settings=CONTEXT_SETTINGS)(run)


def _help(kind: JobSetKind, action: EntryAction) -> str:
    more = "" if not action.has_time else " --in 15m"
    last = "" if not action.has_time else " --at 2036-11-20T09:59Z"
    return f"""{action.help}

    Which: those of the JIDs, or all that fit every filter given, or --all.  For more than named ones it says how many
    these are, and asks.  --older and --newer count {kind.age}.  One round trip per 500 to find them, and one to do it.

    \b
      kiqctl {kind.name} {action.name} {EXAMPLE}{more}
      kiqctl {kind.name} {action.name} --class SendInvoice --queue default{more} --yes
      kiqctl {kind.name} {action.name} --text Invoice --older 1h{more} --yes
      kiqctl {kind.name} {action.name} --all{last} --yes --json
    """


def _due(delay: float | None, at: float | None) -> float:
    if (delay is None) == (at is None):
        raise UsageError("say when: --in, or --at")
    return SystemClock.now() + delay if delay is not None else at or 0.0


def _apply_to_named(invocation: Invocation, store: Store, job_set: JobSet, output: Output) -> int:
    """Do it to the entries of these ids; say of the others where they are."""
    jids = list(dict.fromkeys(invocation.jids))
    there = find_entries(job_set, jids)
    entries = list({entry.raw: entry for several in there.values() for entry in several}.values())
    missing = (
        describe_missing(store, invocation.kind, [jid for jid in jids if jid not in there])
        if len(there) < len(jids)
        else {}
    )
    for jid, several in there.items():
        if len(several) > 1:
            output.info(f"{clean(jid)} is the id of {pluralize(len(several), *invocation.kind.entries)}")
    action = invocation.action
    task = BulkTask(
        action.label,
        lambda: entries,
        len(entries),
        lambda _: True,
        lambda entries: action.act(job_set, entries, invocation.at),
    )
    for words in missing.values():
        output.error(words)
    limits = DeadSetLimits.of(store if action is KILL else None)
    result = run_task(output, task)
    limits.end(result.done)
    problem = "; ".join(missing.values()) or ("" if result.done else "none was there any more")
    document = {**invocation.document(), "missing": missing, **limits.report(output)}
    return report(output, result, action.past, invocation.kind.entries, document, problem=problem)


def _apply_to_all(invocation: Invocation, store: Store, job_set: JobSet, output: Output) -> int:
    """Do it to all that are selected, once that is confirmed."""
    kind, action = invocation.kind, invocation.action
    task, limits = _task(invocation, job_set), DeadSetLimits.of(store if action is KILL else None)
    if not invocation.yes:
        total = count_selected(output, task) if invocation.selection.has_filters else len(job_set)
        if total:
            confirm(output, f"{action.what} {pluralize(total, *kind.entries)}{limits.in_words(total)}", yes=False)
    if invocation.is_all and action.clear_all is not None:
        deleted = action.clear_all(job_set)
        result = BulkResult(found=deleted, done=deleted)
    else:
        result = run_task(output, task)
        limits.end(result.done)
    return report(output, result, action.past, kind.entries, {**invocation.document(), **limits.report(output)})


def _task(invocation: Invocation, job_set: JobSet) -> BulkTask[SortedEntry]:
    now = SystemClock.now()
    direction = Order.OLDEST_FIRST if invocation.action.is_oldest_first else Order.NEWEST_FIRST

    def is_selected(entry: SortedEntry) -> bool:
        if (
            invocation.action.has_time and entry.score == invocation.at
        ):  # met again after it got its time, or in need of nothing
            return False
        return invocation.selection.matches(entry, now, invocation.kind.since(entry))

    return BulkTask(
        invocation.action.label,
        lambda: iterate(invocation.kind, job_set, invocation.selection, now, direction),
        len(job_set),
        is_selected,
        lambda entries: invocation.action.act(job_set, entries, invocation.at),
    )


# commands

FAILURE_COLUMNS = frozenset({"TRIES", "ERROR"})  # titles of columns


def _list(kind: JobSetKind) -> click.Command:
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
            total = _count(kind, job_set, selection, output, now) if selection.has_filters else len(job_set)
            output.info(format_number(total))
            output.document({"set": kind.name, "count": total})
            ctx.exit(ExitCode.STOPPED)
        size, shown = len(job_set), _page(kind, job_set, selection, page, now)
        if shown:
            output.table(*_visible_columns([entry_words(each, now) for each in shown]), indent=0)
        output.info(page.in_words(len(shown), *kind.entries, size, has_filters=selection.has_filters))
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
    return click.command("list", help=text, context_settings=CONTEXT_SETTINGS)(run)


def _visible_columns(rows: list[tuple[str, ...]]) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows, without those about failures where nothing has failed."""
    max_kept = [
        at
        for at, column in enumerate(ENTRY_COLUMNS)
        if column.title not in FAILURE_COLUMNS or any(row[at] not in ("", NO_VALUE) for row in rows)
    ]
    return [ENTRY_COLUMNS[at] for at in max_kept], [[row[at] for at in max_kept] for row in rows]


def _count(kind: JobSetKind, job_set: JobSet, selection: Selection, output: Output, now: float) -> int:
    def is_selected(entry: SortedEntry) -> bool:
        return selection.matches(entry, now, kind.since(entry))

    records = iterate(kind, job_set, selection, now, kind.order)
    return count_selected(output, BulkTask("", lambda: records, len(job_set), is_selected))


def _page(kind: JobSetKind, job_set: JobSet, selection: Selection, page: Page, now: float) -> list[SortedEntry]:
    if selection.has_filters:
        records = iterate(kind, job_set, selection, now, kind.order)
        return page.of(each for each in records if selection.matches(each, now, kind.since(each)))
    if kind.is_newest_first:
        return job_set.page(page.start, page.size)
    return page.of_reversed(len(job_set), job_set.page)


def _as_json(entry: SortedEntry) -> dict[str, Any]:
    """Return what a document says of an entry."""
    return {
        **job_as_json(entry),
        "score": entry.score if isfinite(entry.score) else None,
        "at": iso_time(entry.score),
        "retry_count": entry.retry_count,
        "error_class": entry.error_class,
        "error_message": entry.error_message,
        "created_at": entry.created_at,
        "failed_at": entry.failed_at,
        "tags": entry.tags,
        "deferred_by": entry["deferred_by"],
        "deferred_count": entry["deferred_count"],
        "dropped_by": entry["dropped_by"],
    }


def _iteration_words(iteration: Iteration) -> str:
    """Return where an iterable job is, as one line of `details`."""
    runs = pluralize(iteration.executions, "run", "runs")
    return f"item     {json_line(iteration.cursor)} after {runs} of {iteration.seconds:.1f} s"


def _show(kind: JobSetKind) -> click.Command:
    @click.argument("jid")
    @redis_options
    @json_option
    @click.pass_context
    def run(ctx: click.Context, store: Store, output: Output, jid: str) -> None:
        entries = find_entries(kind.job_set(store=store), [jid]).get(jid, [])
        if not entries:
            raise NotFound(describe_missing(store, kind, [jid])[jid])
        iteration = iteration_status([jid], store).get(jid)
        for entry in entries:
            output.print(map(clean, details(entry) or ()))
        if iteration is not None:
            output.print([clean(_iteration_words(iteration))])
        if len(entries) > 1:
            output.info(f"{pluralize(len(entries), *kind.entries)} have this id")
        first = entries[0]
        document = {**_as_json(first), "backtrace": first.error_backtrace, "payload": first.payload}
        document["iteration"] = None if iteration is None else asdict(iteration)
        output.document({**document, "others": [_as_json(each) for each in entries[1:]]})
        ctx.exit(ExitCode.STOPPED)

    text = f"""Show all that is known of one job of {kind.words}.

    \b
      kiqctl {kind.name} show {EXAMPLE}
      kiqctl {kind.name} show {EXAMPLE} --json
    """
    return click.command("show", help=text, context_settings=CONTEXT_SETTINGS)(run)


def _group(kind: JobSetKind, *actions: EntryAction) -> click.Group:
    text = f"""{kind.help}

    Without a command, it is `list`.

    \b
      kiqctl {kind.name}
      kiqctl {kind.name} --class SendInvoice --limit 100
    """
    group = DefaultListGroup(kind.name, help=text, context_settings=CONTEXT_SETTINGS)
    for each in (_list(kind), _show(kind), *(command_of(kind, action) for action in actions)):
        group.add_command(each)
    return group


retries = _group(RETRIES, RETRY, KILL, DELETE, RESCHEDULE)
scheduled = _group(SCHEDULED, ADD_TO_QUEUE, KILL, DELETE, RESCHEDULE)
dead = _group(DEAD, RETRY, DELETE)
dropped = _group(DROPPED, ADD_TO_QUEUE, DELETE)
