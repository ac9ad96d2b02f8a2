"""queues: what waits where, who listens, and for how long the next job has waited; pause, resume, clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import click

from kiqcluster.api import Queue, QueueSummary, summaries
from kiqcluster.ctl.jobs.locate import all_queues, check_queues, listeners
from kiqcluster.ctl.text.completion import complete_queues
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
from kiqcluster.ctl.text.pager import DefaultListGroup
from kiqcluster.ctl.text.rows import WRONG_TYPE, size_and_latency
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import clean, format_duration, format_number, number_column, pluralize, text_column
from kiqcluster.errors import ExitCode
from kiqcluster.store import Store
from kiqcluster.store.shard_moves import staged_counts

__all__ = ["queues"]

NOTHING_DONE = "; nothing was done"
MAX_LISTENERS = 10  # in a row of the table; --json has all
COLUMNS = (
    text_column("QUEUE", 12),
    number_column("SIZE"),
    number_column("LATENCY"),
    text_column("STATE"),
    text_column("LISTENED TO BY", 14),
)


@click.group(cls=DefaultListGroup, context_settings=CONTEXT_SETTINGS)
def queues() -> None:
    """Show and steer queues.  Without a command, it is `list`.

    \b
      kiqctl queues
      kiqctl queues --json
    """


@queues.command("list", context_settings=CONTEXT_SETTINGS)
@stores_options
@json_option
@click.pass_context
def list_queues(ctx: click.Context, stores: list[Store], output: Output) -> None:
    """Show all queues: what waits there, how long, who listens.

    They are those of all shards, unless --shard names one: queues that were ever pushed to, are paused, or have a
    listener.  LATENCY is that of the job that is fetched next.  Six round trips for each shard, one more per 500
    processes.

    \b
      kiqctl queues list
      kiqctl queues list --json
    """
    looks, missing = read_shards(stores, output, _look)
    listeners_by_shard = {look.shard: look.listeners for look in looks}
    found = [(look.shard, each) for look in looks for each in look.queues]
    if found:
        rows = [(shard, _row(each, listeners_by_shard[shard].get(each.name, []))) for shard, each in found]
        sharded_table(output, stores, COLUMNS, rows)
    else:
        output.info("there are no queues yet")
    documents = [
        sharded_document(
            stores, {**asdict(each), "listeners": listeners_by_shard[shard].get(each.name, [])}, shard=shard
        )
        for shard, each in found
    ]
    moving = {look.shard: look.moving for look in looks if look.moving}
    for shard, to, count in ((shard, *each) for shard, counts in moving.items() for each in counts.items()):
        output.error(
            f"{pluralize(count, 'job')} of {clean(shard)} on the way to the shard {clean(to)}: a migration ended "
            "early; run `kiqctl migrate --routing` again"
        )
    document = sharded_document(stores, {"queues": documents}, missing=missing)
    output.document({**document, "moving": moving} if moving else document)
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a shard has.  moving: shard → jobs that a migration has left on the way to it."""

    shard: str
    listeners: Mapping[str, Sequence[str]]
    queues: Sequence[QueueSummary]
    moving: Mapping[str, int]


def _look(store: Store) -> _Look:
    by_queue = listeners(store)
    return _Look(store.name, by_queue, all_queues(store, by_queue), staged_counts(store))


def _row(queue: QueueSummary, identities: Sequence[str]) -> tuple[str, ...]:
    names = [
        identity.rpartition(":")[0] or identity for identity in identities
    ]  # without the nonce, which says nothing
    state = WRONG_TYPE if queue.error is not None else "paused" if queue.is_paused else ""
    more = f" and {format_number(len(names) - MAX_LISTENERS)} more" if len(names) > MAX_LISTENERS else ""
    return queue.name, *size_and_latency(queue), state, (", ".join(names[:MAX_LISTENERS]) or "nobody") + more


@queues.command(context_settings=CONTEXT_SETTINGS)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_queues)
@click.option(
    "--warn", type=DURATION, metavar="SECONDS", help="exit code 1 if the next job of one has waited for longer"
)
@redis_options
@json_option
@click.pass_context
def latency(ctx: click.Context, store: Store, output: Output, names: tuple[str, ...], warn: float | None) -> None:
    """Say for how long the next job of each queue has waited.

    It is 0 where none waits.  It says so of all queues, or of those named.

    \b
      kiqctl queues latency
      kiqctl queues latency default mailers --warn 60
      kiqctl queues latency --warn 5m --json
    """
    check_queues(store, names)
    wanted = dict.fromkeys(names)
    known = {each.name: each for each in summaries(store=store)}
    missing = [QueueSummary(name, 0, 0.0, is_paused=False, processes=0) for name in wanted if name not in known]
    found = [*(known[name] for name in wanted or known if name in known), *missing]
    late = [each for each in found if warn is not None and each.latency > warn]
    if found:
        output.table(COLUMNS[:3], [(each.name, *size_and_latency(each)) for each in found], indent=0)
    for each in (each for each in found if each.error is not None):
        output.error(f"nobody knows the latency of {clean(each.name)}: {each.error}")
    for each in late:
        output.error(f"the next job of {clean(each.name)} has waited for {format_duration(each.latency)}")
    rows = [{"name": each.name, "latency": each.latency, "is_late": each in late} for each in found]
    output.document({"ok": not late, "warn": warn, "queues": rows})
    ctx.exit(ExitCode.UNEXPECTED if late else ExitCode.STOPPED)


@queues.command(context_settings=CONTEXT_SETTINGS)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_queues)
@redis_options
@json_option
@click.pass_context
def pause(ctx: click.Context, store: Store, output: Output, names: tuple[str, ...]) -> None:
    """Have workers fetch nothing from queues until a `resume`.

    What they hold already is run.  Sidekiq Pro heeds it too; Ruby's Sidekiq without Pro goes on fetching.

    \b
      kiqctl queues pause mailers
      kiqctl queues pause mailers reports --json
    """
    check_queues(store, names, NOTHING_DONE)
    ctx.exit(_change(store, output, "pause", names, Queue.pause, ("paused", "was already paused")))


@queues.command(context_settings=CONTEXT_SETTINGS)
@click.argument("names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete_queues)
@redis_options
@json_option
@click.pass_context
def resume(ctx: click.Context, store: Store, output: Output, names: tuple[str, ...]) -> None:
    """Have workers fetch from queues again.

    \b
      kiqctl queues resume mailers
      kiqctl queues resume mailers reports --json
    """
    paused = {each.name for each in summaries(store=store) if each.is_paused}
    check_queues(store, [name for name in names if name not in paused], NOTHING_DONE)
    ctx.exit(_change(store, output, "resume", names, Queue.resume, ("resumed", "was not paused")))


def _change(
    store: Store,
    output: Output,
    action: str,
    names: Sequence[str],
    change: Callable[[Queue], bool],
    words: tuple[str, str],
) -> int:
    """Do it to each queue, and say so.  words: if that is new, and if it is not."""
    rows = []
    for name in dict.fromkeys(names):
        is_new = change(Queue(name, store=store))
        output.info(f"{clean(name)} {words[0] if is_new else words[1]}")
        rows.append({"name": name, "changed": is_new})
    output.document({"action": action, "queues": rows})
    return ExitCode.STOPPED


@queues.command(context_settings=CONTEXT_SETTINGS)
@click.argument("name", shell_complete=complete_queues)
@yes_option
@redis_options
@json_option
@click.pass_context
def clear(ctx: click.Context, store: Store, output: Output, name: str, yes: bool) -> None:
    """Delete all jobs of a queue for good.

    Its name goes, too, until somebody pushes to it; a pause stays.  Jobs that workers hold are not touched.  Locks of
    `deduplicate` stay, and batches wait for the jobs: `kiqctl locks release`, `kiqctl batches mark`.  For some of its
    jobs only, see `kiqctl jobs`.

    \b
      kiqctl queues clear low --yes
      kiqctl queues clear low --yes --json
    """
    check_queues(store, [name])
    queue = Queue(name, store=store)
    if not yes:
        confirm(output, f"delete {pluralize(len(queue), 'job')} of the queue {clean(name)}", yes=False)
    deleted = queue.clear()
    output.info(f"deleted {pluralize(deleted, 'job')} of the queue {clean(name)}")
    output.document({"action": "clear", "queue": name, "done": deleted, "ok": True})
    ctx.exit(ExitCode.STOPPED)
