"""cron: what is enqueued on a schedule; enqueue, enable and disable entries; take over those of sidekiq-cron."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import click

from kiqcluster.api import CronSet, CronStatus, RubyCronJob, enqueued_twice
from kiqcluster.api.cron import labels_of
from kiqcluster.control.fleet import Fleet
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, Output, json_option, stores_options
from kiqcluster.ctl.text.pager import DefaultListGroup
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import ago, clean, format_duration, format_time, iso_time, text_column
from kiqcluster.errors import ExitCode, KiqError, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.cron_entries import CronRun
from kiqcluster.sidekiq.schedules import Schedule
from kiqcluster.store import Store

__all__ = ["cron"]

COLUMNS = (
    text_column("NAME", 12),
    text_column("SCHEDULE"),
    text_column("CLASS", 12, shrinks_first=True),
    text_column("QUEUE", 10, shrinks_first=True),
    text_column("NEXT IN"),
    text_column("LATEST"),
    text_column("SOURCE", 8),
)
LATE_SECONDS = 10.0  # a tick that nobody has taken for so long is shown as late
BY_HAND, OF_RUBY = "by hand", "sidekiq-cron"
MAX_TICKS = 1_000
ENQUEUED_TWICE = (
    "is enabled here and in sidekiq-cron, so each tick enqueues two jobs; disable one of them: kiqctl cron disable, or "
    "Disable on Ruby's page"
)


@click.group(cls=DefaultListGroup, context_settings=CONTEXT_SETTINGS)
def cron() -> None:
    """Show and change what is enqueued on a schedule.  Without a command, it is `list`.

    \b
      kiqctl cron
      kiqctl cron show daily_report
    """


@cron.command("list", context_settings=CONTEXT_SETTINGS)
@stores_options
@json_option
@click.pass_context
def list_entries(ctx: click.Context, stores: list[Store], output: Output) -> None:
    """Show all entries: when the next job comes, and when the latest one was enqueued.

    A queue that no process fetches from, and an application of which none runs, are marked.  Entries of sidekiq-cron
    are shown as well, with a warning if both enqueue one.  Six round trips for each shard, and one more for 500
    entries, and for 500 processes.

    \b
      kiqctl cron list
      kiqctl cron list --json
    """
    now = SystemClock.now()

    def look(store: Store) -> tuple[str, list[CronStatus], Sequence[RubyCronJob], Fleet]:
        entries = CronSet(store=store)
        return store.name, entries.list(), entries.ruby_jobs(), entries.fleet()

    looks, missing = read_shards(stores, output, look)
    rows: list[tuple[str, tuple[str, ...]]] = []
    documents: list[dict[str, Any]] = []
    warnings: list[str] = []
    for shard, ours, theirs, fleet in looks:
        place = sharded_document(stores, {}, shard=shard)
        labels = labels_of(ours)
        rows += [(shard, (labels[each.id], *_row(each, fleet, now))) for each in ours]
        rows += [(shard, _ruby_row(each)) for each in theirs]
        twice = enqueued_twice(ours, theirs)
        documents += [{**_as_json(each, fleet), **place} for each in ours] + [
            {**_ruby_as_json(each), "enqueued_twice": each.name in twice, **place} for each in theirs
        ]
        warnings += [f"{clean(each)} {ENQUEUED_TWICE}" for each in sorted(twice)]
    if rows:
        sharded_table(output, stores, COLUMNS, rows)
    else:
        output.info("there are no cron entries")
    for line in warnings:
        output.error(line)
    output.document(sharded_document(stores, {"entries": documents}, missing=missing))
    ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)


@cron.command(context_settings=CONTEXT_SETTINGS)
@click.argument("name")
@stores_options
@json_option
def show(stores: list[Store], output: Output, name: str) -> None:
    """Show one entry with its latest jobs.

    \b
      kiqctl cron show daily_report
      kiqctl cron show daily_report --json
    """
    entries, status = _find(stores, output, name)
    runs, fleet, now = entries.history(status.id), entries.fleet(), SystemClock.now()
    output.print(_described(status, fleet, now))
    for run in runs:
        output.print([f"  {format_time(run.at)}  tick {format_time(run.tick)}  {_outcome(run)}"])
    output.document({**_as_json(status, fleet), "history": [_run_as_json(run) for run in runs]})


@cron.command("next", context_settings=CONTEXT_SETTINGS)
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(1, MAX_TICKS), default=5, show_default=True, help="how many ticks")
@stores_options
@json_option
def next_ticks(stores: list[Store], output: Output, name: str, count: int) -> None:
    """Show the next ticks of an entry; NAME may be a schedule as well.

    \b
      kiqctl cron next daily_report
      kiqctl cron next '30 2 * * * Europe/Berlin' -n 3 --json
    """
    schedule = Schedule.parse(name) if " " in name or name.startswith("@") else None
    if schedule is None:
        _, status = _find(stores, output, name)
        if status.entry is None:
            raise UsageError(status.error)
        schedule = status.entry.schedule
    ticks = list(islice(schedule.after(SystemClock.now()), count))
    output.print([format_time(tick) for tick in ticks])
    output.document({"schedule": schedule.text, "tz": schedule.tz, "ticks": [iso_time(tick) for tick in ticks]})


@cron.command(context_settings=CONTEXT_SETTINGS)
@click.argument("name")
@stores_options
@json_option
def enqueue(stores: list[Store], output: Output, name: str) -> None:
    """Enqueue the job of an entry now, whatever its schedule; its ticks stay what they are.

    \b
      kiqctl cron enqueue daily_report
      kiqctl cron enqueue daily_report --json
    """
    entries, status = _find(stores, output, name)
    pushed = entries.push(status.id)
    queue = status.entry.queue if status.entry is not None else ""
    if pushed.jid is not None:
        output.info(f"enqueued {pushed.jid} in {clean(queue)}")
    elif pushed.holder is not None:
        output.info(f"nothing was enqueued: the job {clean(pushed.holder)} holds the lock of {clean(name)}")
    else:
        output.info("nothing was enqueued: client middleware has stopped the job")
    document = {"action": "enqueue", "name": name, "jid": pushed.jid, "queue": queue, "lock_held_by": pushed.holder}
    output.document(document)


def _command(action: str, done: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Return a decorator for a command that changes entries, and that has only its documentation."""

    def decorate(documented: Callable[..., Any]) -> click.Command:
        @click.argument("names", metavar="NAME...", nargs=-1, required=True)
        @stores_options
        @json_option
        @click.pass_context
        def change(ctx: click.Context, stores: list[Store], output: Output, names: tuple[str, ...]) -> None:
            wanted = list(dict.fromkeys(names))

            def change_in(store: Store) -> dict[str, bool]:
                entries = CronSet(store=store)
                return {name: getattr(entries, action)(name) for name in wanted}

            looks, missing = read_shards(stores, output, change_in)
            found = {name: any(look[name] for look in looks) for name in wanted}
            for name, was_there in found.items():
                output.info(f"{clean(name)} {done if was_there else 'is not there'}")
            output.document({"action": action, "entries": found})
            if not all(found.values()):
                raise KiqError("some entries are not there; kiqctl cron list shows those that are")
            ctx.exit(ExitCode.UNEXPECTED if missing else ExitCode.STOPPED)

        return cron.command(action, context_settings=CONTEXT_SETTINGS, help=documented.__doc__)(change)

    return decorate


@_command("disable", "is disabled")
def disable() -> None:
    """Have entries enqueue nothing until they are enabled; deploys leave that alone.

    \b
      kiqctl cron disable daily_report
      kiqctl cron disable daily_report cleanup --json
    """


@_command("enable", "is enabled")
def enable() -> None:
    """Have entries enqueue jobs again, from their next tick on.

    \b
      kiqctl cron enable daily_report
      kiqctl cron enable daily_report --json
    """


@_command("remove", "is removed")
def remove() -> None:
    """Remove entries that were added at run time, or whose application runs no more.

    An application that runs would write its entries again: remove them there.

    \b
      kiqctl cron remove one_off
      kiqctl cron remove one_off --json
    """


@cron.command("import", context_settings=CONTEXT_SETTINGS)
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--namespace", "namespaces", multiple=True, metavar="NAME", help="of sidekiq-cron  [default]")
@stores_options
@json_option
@click.pass_context
def import_entries(
    ctx: click.Context, stores: list[Store], output: Output, names: tuple[str, ...], namespaces: tuple[str, ...]
) -> None:
    """Take over entries of sidekiq-cron, all or those named; its record becomes disabled in the same step.

    The jobs stay those of Ruby's classes and queues.  What only Ruby can enqueue is left alone, with the reason.

    \b
      kiqctl cron import
      kiqctl cron import purge --namespace default --json
    """
    taken: list[str] = []
    left: dict[str, str] = {}

    def take(store: Store) -> set[str]:
        entries = CronSet(store=store)
        found = entries.ruby_jobs(namespaces) if namespaces else entries.ruby_jobs()
        for each in found:
            if names and each.name not in names:
                continue
            try:
                entries.take_over(each)
            except UsageError as error:
                left[each.name] = str(error)
            else:
                taken.append(each.name)
        return {each.name for each in found}

    looks, missing = read_shards(stores, output, take)
    for name in names:
        if not any(name in look for look in looks):
            left[name] = "sidekiq-cron has no such entry"
    for name in taken:
        output.info(f"{clean(name)} is taken over; do not enable it in sidekiq-cron again, or both enqueue its jobs")
    for name, reason in left.items():
        output.error(f"{name} is left alone: {reason}")
    output.document({"action": "import", "taken": taken, "left": left})
    ctx.exit(ExitCode.UNEXPECTED if missing or left else ExitCode.STOPPED)


def _find(stores: Sequence[Store], output: Output, name: str) -> tuple[CronSet, CronStatus]:
    """Return an entry and the set of the shard that has it.  Raises UsageError."""
    looks, _ = read_shards(stores, output, lambda store: (CronSet(store=store), CronSet(store=store).get(name)))
    for entries, status in looks:
        if status is not None:
            return entries, status
    raise UsageError(f"there is no cron entry {name!r}; kiqctl cron list shows those that there are")


def _row(status: CronStatus, fleet: Fleet, now: float) -> tuple[str, ...]:
    """Return the columns of an entry behind its name."""
    entry = status.entry
    if entry is None:
        words: tuple[str, ...] = ("broken", "", "", "", "", status.error)
    else:
        schedule = (str(entry.schedule), entry.job, _queue(status, fleet))
        words = (*schedule, _next_in(status, now), _latest(status.latest, now), _source(status, fleet))
    return tuple(map(clean, words))


def _queue(status: CronStatus, fleet: Fleet) -> str:
    queue = "" if status.entry is None else status.entry.queue
    return queue if status.is_served(fleet) else f"{queue} (no worker)"


def _source(status: CronStatus, fleet: Fleet) -> str:
    source = status.application or BY_HAND
    return f"{source} (not running)" if status.is_orphaned(fleet) else source


def _next_in(status: CronStatus, now: float) -> str:
    if not status.is_enabled:
        return "disabled"
    if status.next_at is None:
        return "never"
    left = status.next_at - now
    return f"late by {format_duration(-left)}" if left < -LATE_SECONDS else format_duration(max(0.0, left))


def _latest(run: CronRun | None, now: float) -> str:
    return "never" if run is None else ago(run.at, now)


def _ruby_row(job: RubyCronJob) -> tuple[str, ...]:
    record = job.record
    words = (job.name, record.get("cron", ""), record.get("klass", ""), record.get("queue_name", ""))
    state = "Ruby's" if job.is_enabled else "disabled"
    return tuple(map(clean, (*words, state, record.get("last_enqueue_time", ""), OF_RUBY)))


def _described(status: CronStatus, fleet: Fleet, now: float) -> list[str]:
    """Return the lines about an entry."""
    entry = status.entry
    if entry is None:
        return [f"{status.name}: {status.error}"]
    args = ", ".join(ruby_json.encode(each).decode() for each in entry.args)
    lines = [
        f"{entry.name}  {entry.schedule}  {entry.job}({args}) in {_queue(status, fleet)}",
        f"  next      {format_time(status.next_at)} ({_next_in(status, now)})",
        f"  missed    {entry.missed}, after {format_duration(entry.grace)}",
        f"  options   {ruby_json.encode(dict(entry.options)).decode()}",
        f"  source    {_source(status, fleet)}",
    ]
    return [*lines, *([f"  about     {entry.description}"] if entry.description else [])]


def _outcome(run: CronRun) -> str:
    return run.jid if run.refused_for is None else f"not enqueued: {run.refused_for or 'another job'} holds the lock"


def _as_json(status: CronStatus, fleet: Fleet) -> dict[str, Any]:
    entry, run = status.entry, status.latest
    document: dict[str, Any] = {"name": status.name, "id": status.id}
    document |= {"enabled": status.is_enabled, "next_at": iso_time(status.next_at)}
    if entry is None:
        return {**document, "error": status.error}
    return {
        **document,
        "schedule": entry.schedule.text,
        "tz": entry.schedule.tz,
        "class": entry.job,
        "args": entry.args,
        "queue": entry.queue,
        "options": dict(entry.options),
        "missed": entry.missed,
        "grace": entry.grace,
        "description": entry.description,
        "served": status.is_served(fleet),
        "source": status.application or BY_HAND,
        "runs": not status.is_orphaned(fleet),
        "latest": None if run is None else _run_as_json(run),
    }


def _run_as_json(run: CronRun) -> dict[str, Any]:
    return {"jid": run.jid, "at": iso_time(run.at), "tick": iso_time(run.tick), "refused_for": run.refused_for}


def _ruby_as_json(job: RubyCronJob) -> dict[str, Any]:
    return {
        "name": job.name,
        "enabled": job.is_enabled,
        "source": OF_RUBY,
        "record": dict(job.record),
        **({"error": job.error} if job.error else {}),
    }
