"""Dashboard: what goes on now, and went on lately.

The live part takes three round trips: throughput, sizes, the queues that are furthest behind.  The whole page takes
three more: runs by minute of the last hour, by day of the last month, and what Redis says of itself.  Runs are shown
for some seconds before they are read again: workers write them with their heartbeats.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from kiqcluster.api import ExecutionCount, ExecutionMetrics, History
from kiqcluster.api.dashboard import Dashboard, read_dashboard
from kiqcluster.store.wire import ErrorReply
from kiqcluster.web.context import Context
from kiqcluster.web.formats import count_bytes, duration, number
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Page

__all__ = ["ACTIONS", "PAGES"]

SHOWN_QUEUES = 10
HISTORY_MINUTES, HISTORY_DAYS = 60, 30
HISTORY_KEPT_SECONDS = 10.0  # between two heartbeats


def show_dashboard(context: Context) -> Mapping[str, Any]:
    """Show it.  Three round trips for the live part, four for the page, or six."""
    look = read_dashboard(context.store, context.clock)
    rate = context.meter.add(look.taken, look.processed, look.failed)
    behind = sorted(look.queues, key=lambda each: (-each.latency, -each.size, each.name))
    live = {
        "look": look,
        "rate": rate,
        "sizes": {view.name.lower(): size for view, size in look.sizes.items()},
        "queues": behind[:SHOWN_QUEUES],
        "queue_count": len(look.queues),
        "latency": max((each.latency for each in look.queues), default=0.0),
        "quiet": sum(each.is_quiet for each in look.processes),
        "shares": _shares(look),
    }
    if context.is_fragment:
        return {**live, "is_fragment": True, "hour": None, "days": None, "redis": ()}
    now = context.clock.monotonic()
    return {
        **live,
        "is_fragment": False,
        "hour": context.shelf.get("hour", now, HISTORY_KEPT_SECONDS, lambda: _last_hour(context)),
        "days": context.shelf.get("days", now, HISTORY_KEPT_SECONDS, lambda: _last_days(context)),
        "redis": _redis(context),
    }


def _shares(look: Dashboard) -> Mapping[str, int]:
    """Return queue → its share of the longest queue, in steps of 5 per cent, for bars."""
    largest = max((each.size for each in look.queues), default=0) or 1
    return {each.name: -(-20 * each.size // largest) * 5 for each in look.queues}


def _last_hour(context: Context) -> Mapping[str, Any]:
    """Return runs and failures by minute, but for the minute that goes on.  One round trip."""
    counts = ExecutionMetrics(store=context.store, clock=context.clock).totals(minutes=HISTORY_MINUTES + 1)
    newest = datetime.fromtimestamp(context.clock.now(), UTC).replace(second=0, microsecond=0) - timedelta(minutes=1)
    moments = [newest - timedelta(minutes=back) for back in range(HISTORY_MINUTES - 1, -1, -1)]
    shown = [counts.get(at, ExecutionCount()) for at in moments]
    times = [int(at.timestamp()) for at in moments]
    return _series(times, [each.processed for each in shown], [each.failed for each in shown])


def _last_days(context: Context) -> Mapping[str, Any]:
    """Return runs and failures by day, UTC.  One round trip."""
    history = History(HISTORY_DAYS, store=context.store, clock=context.clock)
    days = sorted(history.processed)
    times = [int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) for day in days]
    return _series(times, [history.processed[day] for day in days], [history.failed[day] for day in days])


def _series(times: list[int], processed: list[int], failed: list[int]) -> Mapping[str, Any]:
    """Return a chart.  A counter may hold anything: what is beyond the floats is not drawn."""
    rows = [row for row in zip(times, processed, failed, strict=True) if row[1] or row[2]]
    drawn = [[_drawable(value) for value in values] for values in (processed, failed)]
    return {"data": [times, *drawn], "processed": sum(processed), "failed": sum(failed), "rows": rows}


def _drawable(value: int) -> int:
    return value if 0 <= value < 2**53 else 0


def _redis(context: Context) -> list[tuple[str, str]]:
    """Return what Redis says of itself, as (message, value).  One round trip."""
    before = context.clock.monotonic()
    with context.store.borrowed() as connection:
        (reply,) = connection.exchange_each([("INFO",)])
    milliseconds = (context.clock.monotonic() - before) * 1_000
    rows = [(message("Answers in"), f"{milliseconds:.1f} ms")]
    if isinstance(reply, ErrorReply):  # some hosts forbid INFO
        return [(message("Server"), str(reply)), *rows]
    told = dict(line.split(":", 1) for line in reply.decode(errors="replace").splitlines() if ":" in line)
    is_valkey = "valkey_version" in told
    version = told.get("valkey_version") or told.get("redis_version", "")
    used, most = _integer(told, "used_memory"), _integer(told, "maxmemory")
    memory = count_bytes(used) if not most else f"{count_bytes(used)} / {count_bytes(most)}"
    return [
        (message("Server"), f"{'Valkey' if is_valkey else 'Redis'} {version}"),
        (message("Role"), told.get("role", "")),
        *rows,
        (message("Memory"), memory),
        (message("Peak memory"), count_bytes(_integer(told, "used_memory_peak"))),
        (message("Clients"), number(_integer(told, "connected_clients"))),
        (message("Commands a second"), number(_integer(told, "instantaneous_ops_per_sec"))),
        (message("Append-only file"), "on" if told.get("aof_enabled") == "1" else "off"),
        (message("Evicts keys"), "no" if told.get("maxmemory_policy", "noeviction") == "noeviction" else "yes"),
        (message("Up for"), duration(float(_integer(told, "uptime_in_seconds")))),
    ]


def _integer(told: Mapping[str, str], name: str) -> int:
    value = told.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else 0


PAGES = (
    Page(
        "dashboard",
        "/",
        show_dashboard,
        "dashboard.html",
        message("Dashboard"),
        place=0,
        key="h",
        blocks=("figures",),
    ),
)
ACTIONS = ()
