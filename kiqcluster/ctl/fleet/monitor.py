"""monitor: what Ruby's sidekiqmon prints, in its layout, so that what reads the one can read the other.

The layout is that of 8.1: the queues of each capsule, with weights for a process that names no capsules, and versions
that differ.  7.3 shows weights always, and a comma between capsules; before 7, there were neither weights nor versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from kiqcluster.api.dashboard import Dashboard, View, read_dashboard
from kiqcluster.control.process_registry import RegisteredProcess
from kiqcluster.ctl.text.options import CONTEXT_SETTINGS, Output, json_option, redis_options
from kiqcluster.ctl.text.tables import NO_VALUE, clean, format_number, format_time
from kiqcluster.errors import ExitCode
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.version import VERSION
from kiqcluster.store import Store

__all__ = ["monitor"]

LINE_WIDTH = 80  # characters of a line, at which a long list of queues is broken
COLUMN_PADDING = 2  # cells between columns
INDENT = 11  # … so far, where it goes on


@dataclass(frozen=True, slots=True)
class Section:
    """lines: for people.  facts: the same, for a document."""

    lines: Callable[[Dashboard], list[str]]
    facts: Callable[[Dashboard], Any]


@click.command(context_settings=CONTEXT_SETTINGS)
@click.argument("sections", nargs=-1, type=click.Choice(["all", "version", "overview", "processes", "queues"]))
@redis_options
@json_option
@click.pass_context
def monitor(ctx: click.Context, store: Store, output: Output, sections: Sequence[str]) -> None:
    """Print a status, as Ruby's sidekiqmon does.  It is of everything, or of some SECTIONS.  Three round trips.

    \b
      kiqctl monitor
      kiqctl monitor overview queues
      kiqctl monitor processes --json
    """
    clock: Clock = SystemClock()
    dashboard = read_dashboard(store, clock)
    names = list(dict.fromkeys(sections)) if sections and "all" not in sections else list(SECTIONS)
    for at, name in enumerate(names):
        output.print([*([""] if at else []), *SECTIONS[name].lines(dashboard)])
    output.document({name: SECTIONS[name].facts(dashboard) for name in names})
    ctx.exit(ExitCode.STOPPED)


# version


def _version(dashboard: Dashboard) -> list[str]:
    return [f"kiqcluster {VERSION}", f"{datetime.fromtimestamp(dashboard.at, UTC):%Y-%m-%d %H:%M:%S UTC}"]


def _version_facts(dashboard: Dashboard) -> dict[str, Any]:
    return {"kiqcluster": VERSION, "at": dashboard.at}


# overview


def _overview_facts(dashboard: Dashboard) -> dict[str, int]:
    return {
        "processed": dashboard.processed,
        "failed": dashboard.failed,
        "busy": dashboard.busy,
        "enqueued": dashboard.enqueued,
        "retries": dashboard.sizes[View.RETRIES],
        "scheduled": dashboard.sizes[View.SCHEDULED],
        "dead": dashboard.sizes[View.DEAD],
    }


def _overview(dashboard: Dashboard) -> list[str]:
    facts = _overview_facts(dashboard).items()
    return ["---- Overview ----", *(f"{name.capitalize():>11}: {format_number(value)}" for name, value in facts)]


# processes


def _processes(dashboard: Dashboard) -> list[str]:
    lines = [f"---- Processes ({len(dashboard.processes)}) ----"]
    for at, process in enumerate(dashboard.processes):
        lines += [*([""] if at else []), *_process(process, dashboard.at)]
    return lines


def _process(process: RegisteredProcess, now: float) -> list[str]:
    quiet = ["quiet"] if process.is_quiet else []
    tags = [f"[{clean(each)}]" for each in (process.tag, *process.labels, *quiet)]  # [] without a tag, as Ruby's has
    return [
        " ".join([process.identity, *tags]),
        f"  Started: {_local(process.started_at)} ({_ago(now - process.started_at)})",
        f"  Threads: {process.concurrency} ({process.busy} busy)",
        *_wrap("   Queues: ", _served(process)),
        *([f"  Version: {clean(process.version) or 'Unknown'}"] if process.version != VERSION else []),
    ]


def _served(process: RegisteredProcess) -> list[str]:
    """Return the queues of each capsule; one by one those of a Sidekiq that tells no weights."""
    if not any(each.mode for each in process.capsules):
        return sorted(process.queues)
    return [
        ", ".join(
            f"{name}: {weight}" if weight > 0 and not each.is_named else name for name, weight in each.weights.items()
        )
        for each in process.capsules
    ]


def _process_facts(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [
        {
            "identity": each.identity,
            "tag": each.tag,
            "labels": list(each.labels),
            "quiet": each.is_quiet,
            "started_at": each.started_at,
            "threads": each.concurrency,
            "busy": each.busy,
            "queues": sorted(each.queues),
            "capsules": {capsule.name: dict(capsule.weights) for capsule in each.capsules},
            "version": each.version,
        }
        for each in dashboard.processes
    ]


def _local(at: float) -> str:
    """Return an epoch second as Ruby's Time is printed: in the zone of this host."""
    if format_time(at) == NO_VALUE:
        return NO_VALUE
    return f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S %z}"


def _ago(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 2:
        return "just now" if minutes < 1 else "a minute ago"
    if minutes < 120:
        return f"{minutes} minutes ago" if minutes < 60 else "an hour ago"
    return f"{minutes // 60} hours ago"


def _wrap(title: str, names: Iterable[str]) -> list[str]:
    """Return names with semicolons behind a title, in lines that are indented from the second on."""
    lines, line = [], ""
    for name in map(clean, names):
        if (
            len(line) + len(name) > LINE_WIDTH - INDENT
        ):  # a first one that is too long leaves the title alone, as in Ruby
            lines.append(line)
            line = " " * INDENT
        line += f"{name}; "
    first, *others = [*lines, line.removesuffix("; ") or "none"]
    return [title + first, *others]


# queues


def _queues(dashboard: Dashboard) -> list[str]:
    rows = [("NAME", "SIZE", "LATENCY")]
    rows += [(clean(each.name), str(each.size), f"{each.latency:.2f}") for each in dashboard.queues]
    name, size, latency = (max(map(len, column)) + COLUMN_PADDING for column in zip(*rows, strict=True))
    lines = [f"{row[0]:<{name}}{row[1]:>{size}}{row[2]:>{latency}}" for row in rows]
    return [f"---- Queues ({len(dashboard.queues)}) ----", *lines]


def _queue_facts(dashboard: Dashboard) -> list[dict[str, Any]]:
    return [{"name": each.name, "size": each.size, "latency": each.latency} for each in dashboard.queues]


SECTIONS = {
    "version": Section(_version, _version_facts),
    "overview": Section(_overview, _overview_facts),
    "processes": Section(_processes, _process_facts),
    "queues": Section(_queues, _queue_facts),
}
