"""stats: the counters and sizes of a Redis, the queues with their latencies, and what was done day by day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click

from kiqcluster.api import History, QueueSummary, Stats, parked_count, summaries
from kiqcluster.ctl.text.options import (
    CONTEXT_SETTINGS,
    Output,
    confirm,
    json_option,
    stores_options,
    yes_option,
)
from kiqcluster.ctl.text.rows import WRONG_TYPE, size_and_latency
from kiqcluster.ctl.text.shards import read_shards, sharded_document, sharded_table
from kiqcluster.ctl.text.tables import format_number, number_column, text_column
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.store import Store
from kiqcluster.store.replies import broken_keys

__all__ = ["stats"]

MAX_HISTORY_DAYS = 1_825  # days that counters are kept
STATS_ATTRIBUTES = {
    "processed": "processed",
    "failed": "failed",
    "busy": "workers_size",
    "enqueued": "enqueued",
    "retries": "retry_size",
    "scheduled": "scheduled_size",
    "dead": "dead_size",
    "processes": "processes_size",
}  # as they are called → attribute of Stats
RARE = ("parked", "dropped", "suspects")  # shown only where there are some
QUEUE_COLUMNS = (text_column("QUEUE", 12), number_column("SIZE"), number_column("LATENCY"), text_column("STATE"))
DAY_COLUMNS = (text_column("DAY"), number_column("PROCESSED"), number_column("FAILED"))


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option(
    "--history", type=click.IntRange(1, MAX_HISTORY_DAYS), metavar="DAYS", help="and the last days, by UTC date"
)
@click.option(
    "--reset",
    type=click.Choice(["processed", "failed", "both"]),
    is_flag=False,
    flag_value="both",
    help="set counters of all time back to 0, instead of showing anything; those by day stay  [both]",
)
@yes_option
@stores_options
@json_option
@click.pass_context
def stats(
    ctx: click.Context, stores: list[Store], output: Output, history: int | None, reset: str | None, yes: bool
) -> None:
    """Show counters, queues and how late they are, and the sets.

    With shards, the counters are sums, and each queue has its shard.
    Six round trips for each shard, one more per 500 queues and processes, and one for the history.  --reset is for
    the default shard, or the one of --shard.

    \b
      kiqctl stats
      kiqctl stats --history 7
      kiqctl stats --json
      kiqctl stats --reset failed --yes
      kiqctl stats --reset --yes
    """
    if reset is not None and history is not None:
        raise UsageError("--reset shows nothing; leave --history out")
    if reset is not None:
        _reset(stores[0], output, reset, yes=yes)
    else:
        ctx.exit(_show(stores, output, history))
    ctx.exit(ExitCode.STOPPED)


def _show(stores: list[Store], output: Output, history: int | None) -> int:
    looks, missing = read_shards(stores, output, lambda store: _look(store, history))
    figures = {name: sum(look.figures[name] for look in looks) for name in looks[0].figures}
    days = [
        {"day": rows[0]["day"], **{name: sum(row[name] for row in rows) for name in ("processed", "failed")}}
        for rows in zip(*(look.days for look in looks), strict=True)
    ]
    shown = {name: value for name, value in figures.items() if value or name not in RARE}
    output.print(f"{name:<10} {format_number(value):>12}" for name, value in shown.items())
    queues = [(look.shard, each) for look in looks for each in look.queues]
    if queues:
        rows = [(shard, (q.name, *size_and_latency(q), _state(q))) for shard, q in queues]
        output.print([""])
        sharded_table(output, stores, QUEUE_COLUMNS, rows)
    if days:
        output.print([""])
        output.table(
            DAY_COLUMNS,
            [(day["day"], format_number(day["processed"]), format_number(day["failed"])) for day in days],
            indent=0,
        )
    rows_as_json = [sharded_document(stores, asdict(each), shard=shard) for shard, each in queues]
    unreadable = [key for look in looks for key in look.unreadable]
    document = {**figures, "queues": rows_as_json, "history": days, "unreadable": unreadable}
    figures_by_shard = {look.shard: look.figures for look in looks}
    output.document(sharded_document(stores, document, shards=figures_by_shard, missing=missing))
    return ExitCode.UNEXPECTED if missing else ExitCode.STOPPED


@dataclass(frozen=True, slots=True)
class Look:
    """What one shard has."""

    shard: str
    figures: dict[str, int]
    queues: list[QueueSummary]
    days: list[dict[str, Any]]
    unreadable: Sequence[str]


def _look(store: Store, history: int | None) -> Look:
    with broken_keys() as broken:
        totals, queues = Stats(store=store), summaries(store=store)
        figures = {name: getattr(totals, attribute) for name, attribute in STATS_ATTRIBUTES.items()}
        figures["parked"] = parked_count(store=store)
        figures.update(_rare(store))
        days = _days(store, history) if history is not None else []
    return Look(store.name, figures, list(queues), days, list(broken))


def _rare(store: Store) -> dict[str, int]:
    """Return how many jobs were dropped before they ran, and how many have ended processes.  One round trip."""
    replies = store.read_each([("ZCARD", store.keys.dropped), ("HLEN", store.keys.suspects)])
    return {name: size if isinstance(size, int) else 0 for name, size in zip(RARE[1:], replies, strict=True)}


def _state(queue: QueueSummary) -> str:
    words = (
        (WRONG_TYPE, queue.error is not None),
        ("paused", queue.is_paused),
        ("nobody listens", not queue.processes),
    )
    return ", ".join(word for word, is_so in words if is_so)


def _days(store: Store, count: int) -> list[dict[str, Any]]:
    history = History(count, store=store)
    return [
        {"day": day.isoformat(), "processed": processed, "failed": history.failed[day]}
        for day, processed in history.processed.items()
    ]


def _reset(store: Store, output: Output, which: str, *, yes: bool) -> None:
    names = ("processed", "failed") if which == "both" else (which,)
    totals = Stats(store=store)
    before = {name: getattr(totals, name) for name in names}
    words = " and ".join(f"{name} ({format_number(value)})" for name, value in before.items())
    confirm(output, f"set {words} back to 0", yes=yes)
    Stats.reset(*names, store=store)
    output.info(f"set {words} back to 0")
    output.document({"action": "reset", "before": before, "ok": True})
