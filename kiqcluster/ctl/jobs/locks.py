"""locks: which jobs hold the locks of deduplication; release those of jobs that will never end here."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import click

from kiqcluster.api import JobLock, LockSet
from kiqcluster.ctl.jobs.locate import NotFound
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    Output,
    confirm,
    json_option,
    stores_options,
    yes_option,
)
from kiqcluster.ctl.text.pager import DefaultListGroup, Page, page_options
from kiqcluster.ctl.text.rows import SHORT_JID_WIDTH
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import clean, format_duration, number_column, pluralize, text_column
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.store import Store

__all__ = ["locks"]

COLUMNS = (
    text_column("CLASS", 12),
    text_column("HELD BY", SHORT_JID_WIDTH),
    number_column("TTL"),
    text_column("LOCK", 12, shrinks_first=True),
)


@click.group(cls=DefaultListGroup, context_settings=CONTEXT_SETTINGS)
def locks() -> None:
    """Show and release the locks of deduplicated jobs.  Without a command, it is `list`.

    \b
      kiqctl locks
      kiqctl locks --class SendInvoice --json
    """


@locks.command("list", context_settings=CONTEXT_SETTINGS)
@click.option("--class", "job_class", metavar="NAME", help="of jobs of this class")
@page_options
@stores_options
@json_option
@click.pass_context
def list_locks(ctx: click.Context, stores: list[Store], output: Output, page: Page, job_class: str | None) -> None:
    """Show which job holds which lock, and for how long at most.

    Equal pushes are dropped while it does.  Each shard looks through all its keys: one round trip per 1 000.

    \b
      kiqctl locks list
      kiqctl locks list --class SendInvoice --limit 100 --json
    """

    def look(store: Store) -> list[tuple[str, JobLock]]:
        locks = ((store.name, each) for each in LockSet(store=store) if job_class in (None, each.job_class))
        return list(islice(locks, page.start + page.size))  # more are never shown

    looks, missing = read_shards(stores, output, look)
    found = page.of(each for several in looks for each in several)
    if found:
        sharded_table(output, stores, COLUMNS, [(shard, _row(each)) for shard, each in found])
    else:
        output.info("no job holds a lock" if job_class is None else f"no job of {clean(job_class)} holds a lock")
    documents = [sharded_document(stores, _as_json(each), shard=shard) for shard, each in found]
    output.document(sharded_document(stores, {"locks": documents}, missing=missing))
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@locks.command(context_settings=CONTEXT_SETTINGS)
@click.argument("jids", metavar="[JID]...", nargs=-1)
@click.option("--class", "job_class", metavar="NAME", help="all locks of jobs of this class")
@yes_option
@stores_options
@json_option
@click.pass_context
def release(
    ctx: click.Context, stores: list[Store], output: Output, jids: tuple[str, ...], job_class: str | None, yes: bool
) -> None:
    """Release the locks that jobs hold, so that equal jobs can be pushed again.

    The jobs stay where they are, and run.  For a job that will never end here: Ruby has run it, or its queue was
    cleared.

    \b
      kiqctl locks release b4a577edbccf1d805744efa9 --yes
      kiqctl locks release --class SendInvoice --yes --json
    """
    if not jids and job_class is None:
        raise UsageError("release which?  Name the jobs that hold them, or a --class")

    def look(store: Store) -> list[JobLock]:
        return [each for each in LockSet(store=store) if each.jid in jids or each.job_class == job_class]

    looks, away = read_shards(stores, output, look)
    found = [each for several in looks for each in several]
    if missing := [jid for jid in jids if jid not in {each.jid for each in found}]:
        raise NotFound(f"no lock is held by {', '.join(map(clean, missing))}; nothing was done")
    confirm(output, f"release {pluralize(len(found), 'lock')}", yes=yes)
    released = [each for each in found if each.release()]
    output.info(f"released {pluralize(len(released), 'lock')}")
    rows = [_as_json(each) for each in released]
    output.document({"action": "release", "done": len(released), "ok": not away, "locks": rows})
    ctx.exit(ExitCode.UNEXPECTED if away else ExitCode.STOPPED)


def _row(lock: JobLock) -> Sequence[str]:
    left = "no end" if lock.ttl is None else format_duration(lock.ttl)
    return lock.job_class, lock.jid, left, lock.name.rpartition(":")[2]


def _as_json(lock: JobLock) -> dict[str, str | float | None]:
    return {"name": lock.name, "class": lock.job_class, "jid": lock.jid, "ttl": lock.ttl}
