"""top: what goes on, live.  The screen itself is in screen.py and needs the extra `top`; one picture needs nothing."""

from __future__ import annotations

import sys
import threading

import click

from kiqcluster.api.dashboard import Dashboard, View, read_dashboard
from kiqcluster.api.throughput import Rate, Throughput
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, DURATION, Output, dead_set_options, json_option
from kiqcluster.ctl.text.rows import COLUMNS_BY_VIEW, rows, summary_lines
from kiqcluster.ctl.text.tables import format_time
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store

__all__ = ["top"]

DEFAULT_INTERVAL_SECONDS = 2.0  # seconds
MIN_INTERVAL_SECONDS = 0.1  # seconds between two looks
NEVER_SET = threading.Event()  # never set: how a look pauses, and Ctrl-C ends it


@click.command(context_settings=CONTEXT_SETTINGS)
@click.option("--interval", type=DURATION, default=DEFAULT_INTERVAL_SECONDS, help="between two looks  [2s]")
@click.option("--once", is_flag=True, help="print one picture, after two looks an interval apart, and end")
@dead_set_options
@json_option
@click.pass_context
def top(ctx: click.Context, store: Store, output: Output, interval: float, once: bool) -> None:
    """Show live what goes on, and take keys.

    There are throughput, queues and how late they are, processes, running jobs, and the sets.  Keys change the view,
    retry and kill entries, quiet and resume processes and clusters, and pause queues; ? says which.  While Redis is
    away it says so, and goes on.  It needs an extra: pip install 'kiqcluster[top]'.

    With --once, or --json, it prints one picture instead, and needs no extra.  A look is three round trips, one more
    for each 1 250 queues.

    \b
      kiqctl top
      kiqctl top --interval 5s
      kiqctl top --once --interval 1s
      kiqctl top --json
    """
    if interval < MIN_INTERVAL_SECONDS:
        raise UsageError(f"--interval {interval:g}: at least {MIN_INTERVAL_SECONDS:g} s lie between two looks")
    if once or output.as_json:
        _print_once(store, output, interval)
        ctx.exit(ExitCode.STOPPED)
    ctx.exit(_run_screen(store, interval))


def _print_once(store: Store, output: Output, interval: float) -> None:
    clock, throughput = SystemClock(), Throughput()
    first = read_dashboard(store, clock)
    throughput.add(first.taken, first.processed, first.failed)
    NEVER_SET.wait(interval)
    dashboard = read_dashboard(store, clock)
    rate = throughput.add(dashboard.taken, dashboard.processed, dashboard.failed)
    _print(store, output, dashboard, rate)


def _print(store: Store, output: Output, dashboard: Dashboard, rate: Rate) -> None:
    output.info(f"{store.address}  {format_time(dashboard.at)}")
    for line in summary_lines(dashboard, rate):
        output.info(line)
    for view in (View.QUEUES, View.PROCESSES):
        output.print([""])
        output.table(COLUMNS_BY_VIEW[view], [row.words for row in rows(dashboard, view)], indent=0)
    rates = {"processed_per_second": rate.processed, "failed_per_second": rate.failed}
    output.document(lambda: {**dashboard.as_json(), **rates})


def _run_screen(store: Store, interval: float) -> int:
    try:
        from kiqcluster.ctl.top.screen import Screen  # only now: it takes a while, and not everybody has it
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        raise UsageError(
            "kiqctl top needs the extra `top`, which is not installed: pip install 'kiqcluster[top]'; "
            "kiqctl top --once prints one picture without it"
        ) from error
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("kiqctl top needs a terminal; --once prints one picture anywhere")
    clock = SystemClock()
    first = read_dashboard(store, clock)  # an address that is wrong is said here, and not on a screen
    code = Screen(store, clock, interval, first).run()
    return ExitCode.UNEXPECTED if code is None else code
