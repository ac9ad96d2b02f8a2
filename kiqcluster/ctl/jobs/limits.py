"""limits: concurrency limits, who holds their places, what is parked; another limit for a while; rate limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import isinf
from typing import Any

import click

from kiqcluster.api import (
    LimitStatus,
    ParkedJob,
    ParkedJobs,
    RateStatus,
    concurrency_limits,
    end_override,
    override_limit,
    rate_limits,
)
from kiqcluster.api.dashboard import job_as_json
from kiqcluster.ctl.jobs.bulk import BulkTask, count_selected, report, run_task
from kiqcluster.ctl.jobs.locate import NotFound
from kiqcluster.ctl.jobs.selection import Selection, job_filters
from kiqcluster.ctl.text.completion import complete_classes
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    DURATION,
    Output,
    confirm,
    json_option,
    redis_options,
    stores_options,
    yes_option,
)
from kiqcluster.ctl.text.pager import DefaultListGroup, Page, page_options
from kiqcluster.ctl.text.rows import SHORT_JID_WIDTH, arguments
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import (
    ago,
    clean,
    format_duration,
    format_number,
    iso_time,
    number_column,
    pluralize,
    text_column,
)
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["limits"]

NO_LIMIT, PAUSED = "none", "paused"
COLUMNS = (
    text_column("CLASS", 12),
    text_column("KEY", 6),
    number_column("HELD"),
    number_column("PARKED"),
    number_column("LIMIT"),
    text_column("OVERRIDE"),
)
RATE_COLUMNS = (
    text_column("RATE", 12),
    text_column("KIND"),
    text_column("LIMIT"),
    number_column("USED"),
    number_column("FREE IN"),
    number_column("PROMISED"),
)
HOLDER_COLUMNS = (
    text_column("CLASS", 12),
    text_column("KEY", 6),
    text_column("JID", SHORT_JID_WIDTH, shrinks_first=True),
    text_column("PROCESS", 12),
)
JOB_COLUMNS = (
    number_column("PARKED"),
    text_column("KEY", 6),
    text_column("QUEUE", 8),
    text_column("JID", SHORT_JID_WIDTH, shrinks_first=True),
    text_column("ARGS", 8),
)


@click.group(cls=DefaultListGroup, context_settings=CONTEXT_SETTINGS)
def limits() -> None:
    """Show and override limits, and look at parked jobs.  Without a command, it is `list`.

    \b
      kiqctl limits
      kiqctl limits set SyncAccount 2 --for 1h
    """


@limits.command("list", context_settings=CONTEXT_SETTINGS)
@stores_options
@json_option
@click.pass_context
def list_limits(ctx: click.Context, stores: list[Store], output: Output) -> None:
    """Show all limits: places held and by whom, jobs parked, the limit and its override.

    Of a limit for each key, those keys of which a job runs or is parked.  The limit is the one that a worker has used
    last.  Then the rate limits that were used lately: starts in this period or places held, when one more start is
    allowed, and how many were promised a time.  Each shard has limits of its own.  Six round trips for each, one more
    per 500 processes, places, lines and rates.

    \b
      kiqctl limits list
      kiqctl limits list --json
    """
    now = SystemClock.now()
    looks, missing = read_shards(
        stores, output, lambda store: (store.name, concurrency_limits(store=store), rate_limits(store=store))
    )
    tables = [
        (COLUMNS, [(shard, _row(each, now)) for shard, found, _ in looks for each in found]),
        (RATE_COLUMNS, [(shard, _rate_row(each)) for shard, _, rates in looks for each in rates]),
        (
            HOLDER_COLUMNS,
            [(shard, row) for shard, found, rates in looks for row in _holder_rows([*found, *rates])],
        ),
    ]
    shown = [(columns, rows) for columns, rows in tables if rows]
    if not shown:
        output.info("no job with a concurrency limit or a rate limit has run yet")
    for number, (columns, rows) in enumerate(shown):
        if number:
            output.print([""])
        sharded_table(output, stores, columns, rows)
    document = {
        "limits": [
            sharded_document(stores, _as_json(each), shard=shard) for shard, found, _ in looks for each in found
        ],
        "rates": [
            sharded_document(stores, _rate_as_json(each), shard=shard) for shard, _, rates in looks for each in rates
        ],
    }
    output.document(sharded_document(stores, document, missing=missing))
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


def _holder_rows(limits: Iterable[LimitStatus | RateStatus]) -> Iterator[tuple[str, ...]]:
    for each in limits:
        key = each.key if isinstance(each, LimitStatus) else ""
        yield from ((each.name, key, holder.job.jid or "", holder.identity) for holder in each.holders)


def _rate_row(rate: RateStatus) -> tuple[str, ...]:
    largest = format_number(rate.largest)
    words = {
        "concurrent": f"{largest} at once",
        "leaky_bucket": f"{largest}, then {1 / (rate.seconds or 1):.3g} a second",
    }
    limit = words.get(rate.kind, f"{largest} in {format_duration(rate.seconds)}")
    free = "" if rate.free_in is None else format_duration(rate.free_in)
    return rate.name, rate.kind, limit, format_number(rate.used), free, format_number(rate.promised)


def _rate_as_json(rate: RateStatus) -> dict[str, Any]:
    return {
        "name": rate.name,
        "kind": rate.kind,
        "limit": rate.largest,
        "seconds": rate.seconds or None,
        "used": rate.used,
        "free_in": rate.free_in,
        "promised": rate.promised,
        "holders": [{"identity": each.identity, **job_as_json(each.job)} for each in rate.holders],
    }


def _row(limit: LimitStatus, now: float) -> tuple[str, ...]:
    override = ""
    if limit.override is not None and limit.override_until is not None:
        is_endless = isinf(limit.override_until)
        rest = "" if is_endless else f" for {format_duration(max(0.0, limit.override_until - now))}"
        override = f"{_in_words(limit.override)}{rest}"
    held, parked = format_number(len(limit.holders)), format_number(limit.parked)
    return limit.name, limit.key, held, parked, _in_words(limit.limit), override


def _in_words(limit: int | None) -> str:
    if limit is None:
        return ""
    return PAUSED if limit < 0 else NO_LIMIT if limit == 0 else format_number(limit)


def _as_json(limit: LimitStatus) -> dict[str, Any]:
    until = limit.override_until
    holders = [{"identity": each.identity, **job_as_json(each.job)} for each in limit.holders]
    return {
        "class": limit.name,
        "key": limit.key or None,
        "held": len(limit.holders),
        "holders": holders,
        "parked": limit.parked,
        "limit": limit.limit,
        "override": limit.override,
        "override_until": None if until is None or isinf(until) else iso_time(until),
    }


@limits.command("set", context_settings={**CONTEXT_SETTINGS, "ignore_unknown_options": True})
@click.argument("name", metavar="CLASS", shell_complete=complete_classes)
@click.argument("limit", type=int)
@click.option("--for", "last", type=DURATION, metavar="DURATION", help="for how long, by Redis' clock  [until a reset]")
@stores_options
@json_option
@click.pass_context
def set_limit(
    ctx: click.Context, stores: list[Store], output: Output, name: str, limit: int, last: float | None
) -> None:
    """Put another limit into force: 0 for none, -1 to let nothing run.  In each shard, or in that of --shard.

    Jobs that run go on.  Parked jobs go on at once where there is room, and when the override ends.

    \b
      kiqctl limits set SyncAccount 2 --for 1h
      kiqctl limits set SyncAccount -1 --for 15m
      kiqctl limits set SyncAccount 10 --json
    """

    def change(store: Store) -> set[str]:
        override_limit(name, limit, last, store=store)
        return {each.name for each in concurrency_limits(store=store)}

    found, missing = read_shards(stores, output, change)
    known = set().union(*found)
    words = "" if last is None else f" for {format_duration(last)}"
    output.info(f"the limit of {clean(name)} is {_in_words(limit)}{words or ', until a reset'}")
    if name not in known:
        output.error(f"no job {clean(name)} with a concurrency limit has run yet; the limit is for the first one")
    document = {"action": "set", "class": name, "limit": limit, "seconds": last, "is_known": name in known}
    output.document({**document, "missing": missing} if len(stores) > 1 else document)
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@limits.command("reset", context_settings=CONTEXT_SETTINGS)
@click.argument("name", metavar="CLASS", shell_complete=complete_classes)
@stores_options
@json_option
@click.pass_context
def reset_limit(ctx: click.Context, stores: list[Store], output: Output, name: str) -> None:
    """Put the limit back into force that the class declares.  In each shard, or in that of --shard.

    \b
      kiqctl limits reset SyncAccount
      kiqctl limits reset SyncAccount --json
    """
    ended, missing = read_shards(stores, output, lambda store: end_override(name, store=store))
    was_set = any(ended)
    output.info(f"{clean(name)} has its own limit again" if was_set else f"{clean(name)} had its own limit already")
    document = {"action": "reset", "class": name, "changed": was_set}
    output.document({**document, "missing": missing} if len(stores) > 1 else document)
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@limits.command("jobs", context_settings=CONTEXT_SETTINGS)
@click.argument("limit_name", metavar="CLASS", shell_complete=complete_classes)
@job_filters
@page_options
@click.option("--count", "is_count", is_flag=True, help="say how many there are, and no more")
@click.option("--delete", "is_delete", is_flag=True, help="delete those that the filters select, or all with --all")
@click.option("--all", "is_all", is_flag=True, help="with --delete: all of them")
@yes_option
@redis_options
@json_option
@click.pass_context
def parked_jobs(
    ctx: click.Context,
    store: Store,
    output: Output,
    limit_name: str,
    selection: Selection,
    page: Page,
    is_count: bool,
    is_delete: bool,
    is_all: bool,
    yes: bool,
) -> None:
    """Show the parked jobs of a limit, count them, or delete some: in the default shard, or in that of --shard.

    They are shown in the order in which they go on, one key after the other.

    \b
      kiqctl limits jobs SyncAccount
      kiqctl limits jobs SyncAccount --args-contain 4711 --count
      kiqctl limits jobs SyncAccount --jid b4a577edbccf1d805744efa9 --delete --yes
      kiqctl limits jobs SyncAccount --delete --all --yes
    """
    if is_count and is_delete:
        raise UsageError("--delete says the count as well; leave --count out")
    if is_delete and is_all == selection.has_filters:
        raise UsageError("delete which?  Add a filter, or --all")
    parked, now = ParkedJobs(limit_name, store=store), SystemClock.now()
    task = BulkTask(
        "deleting",
        lambda: parked,
        len(parked),
        lambda job: selection.matches(job, now, job.parked_at),
        parked.delete_all,
    )
    if is_delete:
        ctx.exit(_delete(task, limit_name, output, selection.jid, yes=yes))
    elif is_count:
        total = count_selected(output, task) if selection.has_filters else task.total
        output.info(format_number(total))
        output.document({"class": limit_name, "count": total})
    else:
        _list(task, limit_name, page, output, now, has_filters=selection.has_filters)
    ctx.exit(ExitCode.STOPPED)


def _list(task: BulkTask[ParkedJob], name: str, page: Page, output: Output, now: float, *, has_filters: bool) -> None:
    jobs: Iterable[ParkedJob] = filter(task.is_selected, task.records())
    shown = page.of(jobs)
    if shown:
        rows = [
            (ago(each.parked_at, now), each.key, each.queue or "", each.jid or "", arguments(each)) for each in shown
        ]
        output.table(JOB_COLUMNS, rows, indent=0)
    one, many = f"parked job of {clean(name)}", f"parked jobs of {clean(name)}"
    output.info(page.in_words(len(shown), one, many, task.total, has_filters=has_filters))
    document = [
        {**job_as_json(each), "key": each.key or None, "queue": each.queue, "parked_at": iso_time(each.parked_at)}
        for each in shown
    ]
    output.document({"class": name, "size": task.total, "page": page.number, "jobs": document})


def _delete(task: BulkTask[ParkedJob], name: str, output: Output, jid: str | None, *, yes: bool) -> int:
    one, many = f"parked job of {clean(name)}", f"parked jobs of {clean(name)}"
    if not yes and (total := count_selected(output, task)):
        confirm(output, f"delete {pluralize(total, one, many)}", yes=False)
    result = run_task(output, task)
    if jid is not None and result.found == 0:
        raise NotFound(f"{clean(jid)} is not parked by the limit of {clean(name)}")
    return report(output, result, "deleted", (one, many), {"action": "delete", "class": name})
