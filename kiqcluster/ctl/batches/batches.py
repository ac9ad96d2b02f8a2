"""batches: many jobs with one status; cancel a batch, close one whose creator died, mark jobs that ended elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import click

from kiqcluster.batches import Batch, BatchJob, BatchStatus
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    Output,
    confirm,
    json_option,
    stores_options,
    yes_option,
)
from kiqcluster.ctl.text.pager import DefaultListGroup, Page, page_options
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import (
    ago,
    clean,
    format_duration,
    format_number,
    format_time,
    iso_time,
    json_line,
    number_column,
    pluralize,
    text_column,
)
from kiqcluster.errors import BatchEnded, ExitCode, KiqError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from kiqcluster.store.batches import ENDED_STATUSES, STATUSES

__all__ = ["batches"]

COLUMNS = (
    text_column("ID", 24),
    text_column("NAME", 10, shrinks_first=True),
    text_column("STATE"),
    number_column("PERCENT"),
    number_column("TOTAL"),
    number_column("ENQUEUE"),
    number_column("WORKING"),
    number_column("FINISH"),
    number_column("FAILED"),
    number_column("ERROR"),
    text_column("CREATED"),
)
JOB_COLUMNS = (text_column("JID", 24), text_column("STATUS"), text_column("PARAMS", 10), text_column("MESSAGES", 20))


@click.group(cls=DefaultListGroup, context_settings=CONTEXT_SETTINGS)
def batches() -> None:
    """Show and end batches: many jobs with one status.  Without a command, it is `list`.

    \b
      kiqctl batches
      kiqctl batches show 5f0c1d6b7a8e9f0a1b2c3d4e
    """


@batches.command("list", context_settings=CONTEXT_SETTINGS)
@page_options
@stores_options
@json_option
@click.pass_context
def list_batches(ctx: click.Context, stores: list[Store], output: Output, page: Page) -> None:
    """Show the batches, the youngest first: how many of their jobs have ended, and how.

    The youngest 10 000 are known.  One round trip for each batch that is shown.

    \b
      kiqctl batches list
      kiqctl batches list --limit 100 --json
    """

    def look(store: Store) -> list[tuple[str, BatchStatus]]:
        return [(store.name, status) for status in Batch.all(0, page.start + page.size, store=store)]

    looks, missing = read_shards(stores, output, look)
    every = sorted((each for several in looks for each in several), key=lambda pair: -pair[1].created_at)
    found, now = page.of(iter(every)), SystemClock.now()
    if found:
        sharded_table(output, stores, COLUMNS, [(shard, _row(status, now)) for shard, status in found])
    else:
        output.info("there are no batches")
    documents = [sharded_document(stores, _as_json(status), shard=shard) for shard, status in found]
    output.document(sharded_document(stores, {"batches": documents}, missing=missing))
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@batches.command(context_settings=CONTEXT_SETTINGS)
@click.argument("identifier", metavar="ID")
@click.option("--status", type=click.Choice(STATUSES), help="show the jobs in this status  [the latest failures]")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="show so many jobs at most")
@stores_options
@json_option
def show(stores: list[Store], output: Output, identifier: str, status: str | None, limit: int) -> None:
    """Show the whole course of a batch: its counts, its times, and its failures with their messages.

    \b
      kiqctl batches show 5f0c1d6b7a8e9f0a1b2c3d4e
      kiqctl batches show 5f0c1d6b7a8e9f0a1b2c3d4e --status enqueue --json
    """
    batch, found = _find(stores, output, identifier)
    jobs = list(islice(found.failures if status is None else batch.jobs(status), limit))
    output.print(_described(found, SystemClock.now()))
    if jobs:
        output.table(JOB_COLUMNS, [_job_row(each) for each in jobs])
    output.document({**found.as_json(), "jobs": [each.as_json() for each in jobs]})


@batches.command(context_settings=CONTEXT_SETTINGS)
@click.argument("identifier", metavar="ID")
@click.option("--reason", default="", help="kept with the batch")
@yes_option
@stores_options
@json_option
def cancel(stores: list[Store], output: Output, identifier: str, reason: str, yes: bool) -> None:
    """Cancel a batch and its child batches: jobs that have not begun are dropped.

    Those that are scheduled, wait for a retry or are parked end at once, others when they would begin.
    Running jobs are told: those that ask end, as do async ones.

    \b
      kiqctl batches cancel 5f0c1d6b7a8e9f0a1b2c3d4e --yes
      kiqctl batches cancel 5f0c1d6b7a8e9f0a1b2c3d4e --reason "wrong file" --yes --json
    """
    batch, found = _find(stores, output, identifier)
    confirm(
        output, f"cancel the batch {clean(found.name)}, of which {pluralize(found.enqueue, 'job')} may begin", yes=yes
    )
    if not batch.cancel(reason):
        raise KiqError(f"the batch {identifier} is complete; nothing was done")
    output.info(f"cancelled {clean(found.name)}")
    output.document({"action": "cancel", "id": identifier, "ok": True})


@batches.command(context_settings=CONTEXT_SETTINGS)
@click.argument("identifier", metavar="ID")
@stores_options
@json_option
def close(stores: list[Store], output: Output, identifier: str) -> None:
    """Have a batch be complete once its jobs have ended: one that is `open` because its creator died.

    It also pushes callbacks that could not be pushed, once their queue takes them.

    \b
      kiqctl batches close 5f0c1d6b7a8e9f0a1b2c3d4e
      kiqctl batches close 5f0c1d6b7a8e9f0a1b2c3d4e --json
    """
    batch, found = _find(stores, output, identifier)
    batch.close()
    output.info(f"closed {clean(found.name)}: {format_number(found.total)} of {format_number(found.expected)} rows")
    output.document({"action": "close", "id": identifier, "ok": True})


@batches.command(context_settings=CONTEXT_SETTINGS)
@click.argument("identifier", metavar="ID")
@click.argument("jids", metavar="[JID]...", nargs=-1)
@click.option("--as", "status", type=click.Choice(ENDED_STATUSES), required=True, help="their status")
@click.option(
    "--waiting", is_flag=True, help="all jobs that are in `enqueue`: their queue was cleared, or Ruby ran them"
)
@click.option("--message", default="", help="kept with each of them")
@yes_option
@stores_options
@json_option
def mark(
    stores: list[Store],
    output: Output,
    identifier: str,
    jids: tuple[str, ...],
    status: str,
    waiting: bool,
    message: str,
    yes: bool,
) -> None:
    """Give jobs of a batch the status with which they have ended elsewhere.

    For jobs that Ruby ran, and for those that were deleted with their whole queue: the batch would wait for them.

    \b
      kiqctl batches mark 5f0c1d6b7a8e9f0a1b2c3d4e b4a577edbccf1d805744efa9 --as finish --yes
      kiqctl batches mark 5f0c1d6b7a8e9f0a1b2c3d4e --waiting --as error --message "queue cleared" --yes --json
    """
    batch, found = _find(stores, output, identifier)
    wanted = list(dict.fromkeys((*jids, *(job.jid for job in batch.jobs("enqueue"))) if waiting else jids))
    if not wanted:
        raise KiqError("mark which jobs?  Name them, or pass --waiting; kiqctl batches show lists them")
    confirm(output, f"mark {pluralize(len(wanted), 'job')} of {clean(found.name)} as {status}", yes=yes)
    batch.mark(wanted, status, message)
    output.info(f"marked {pluralize(len(wanted), 'job')}")
    output.document({"action": "mark", "id": identifier, "status": status, "jids": wanted})


def _find(stores: Sequence[Store], output: Output, identifier: str) -> tuple[Batch, BatchStatus]:
    """Return a batch of any shard.  Raises BatchEnded."""
    looks, _ = read_shards(stores, output, partial(_look, identifier))
    for found in looks:
        if found is not None:
            return found
    raise BatchEnded(identifier, "UNKNOWN")


def _look(identifier: str, store: Store) -> tuple[Batch, BatchStatus] | None:
    batch = Batch.get(identifier, store=store)
    try:
        return batch, batch.status()
    except BatchEnded:
        return None


def _row(status: BatchStatus, now: float) -> tuple[str, ...]:
    counts = (status.total, status.enqueue, status.working, status.finish, status.failed, status.error)
    words = (status.id, status.name, status.state, f"{status.percent:.1f}", *map(format_number, counts))
    return tuple(map(clean, (*words, ago(status.created_at, now))))


def _described(status: BatchStatus, now: float) -> list[str]:
    """Return the lines about a batch."""
    number: Callable[[int], str] = format_number
    lines = [
        f"{status.name}  {status.id}  {status.state}, {status.percent:.1f} % of {pluralize(status.total, 'job')}",
        f"  class      {status.worker or 'several'}",
        f"  jobs       {', '.join(f'{number(getattr(status, name))} {name}' for name in STATUSES)}",
        f"  created    {format_time(status.created_at)} ({ago(status.created_at, now)})",
    ]
    if status.is_open:
        lines.append(
            f"  open       {number(status.total)} of {number(status.expected)} rows are enqueued, and more are added"
        )
    if status.cancelled_at is not None:
        dropped = f", {number(status.cancelled)} dropped" if status.cancelled else ""
        lines.append(f"  cancelled  {format_time(status.cancelled_at)}{dropped}  {status.reason}".rstrip())
    if status.completed_at is not None:
        took = format_duration(max(0.0, status.completed_at - status.created_at))
        lines.append(f"  complete   {format_time(status.completed_at)} (after {took})")
    if status.parent or status.open_children:
        children = f"waits for {pluralize(status.open_children, 'child batch')}" if status.open_children else ""
        lines.append(
            "  nested     " + ", ".join(filter(None, (f"in {status.parent}" if status.parent else "", children)))
        )
    if status.problem:
        lines.append(f"  problem    {status.problem}; then: kiqctl batches close {status.id}")
    return [clean(line) for line in lines]


def _job_row(job: BatchJob) -> tuple[str, ...]:
    params = ", ".join(map(json_line, job.params)) if isinstance(job.params, list) else ""
    return tuple(map(clean, (job.jid, job.status, params, "; ".join(job.messages))))


def _as_json(status: BatchStatus) -> dict[str, Any]:
    document = status.as_json()
    return {name: value for name, value in document.items() if name != "failures"} | {
        "created_at": iso_time(status.created_at)
    }
