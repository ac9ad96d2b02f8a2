"""monitor: what Ruby's sidekiqmon prints, in its layout, so that what reads the one can read the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from kiqcluster.clock import Clock, SystemClock
from kiqcluster.ctl.options import SETTINGS, Output, json_option, redis_options
from kiqcluster.ctl.picture import Picture, View, take
from kiqcluster.ctl.tables import clean, left, moment, number, right, table
from kiqcluster.errors import ExitCode
from kiqcluster.fleet import Process
from kiqcluster.store import Store
from kiqcluster.version import VERSION

__all__ = ["monitor"]

LINE = 80  # characters of a line, at which a long list of queues is broken
INDENT = 11  # … so far, where it goes on


@dataclass(frozen=True, slots=True)
class Section:
    """lines: for people.  facts: the same, for a document."""

    lines: Callable[[Picture], list[str]]
    facts: Callable[[Picture], Any]


@click.command(context_settings=SETTINGS)
@click.argument("sections", nargs=-1, type=click.Choice(["all", "version", "overview", "processes", "queues"]))
@redis_options
@json_option
@click.pass_context
def monitor(ctx: click.Context, store: Store, output: Output, sections: Sequence[str]) -> None:
    """Print a status, as Ruby's sidekiqmon does: of everything, or of some SECTIONS.  Two round trips.

    \b
      kiqctl monitor
      kiqctl monitor overview queues
      kiqctl monitor processes --json
    """
    clock: Clock = SystemClock()
    picture = take(store, clock)
    names = list(dict.fromkeys(sections)) if sections and "all" not in sections else list(SECTIONS)
    for at, name in enumerate(names):
        output.print([*([""] if at else []), *SECTIONS[name].lines(picture)])
    output.document({name: SECTIONS[name].facts(picture) for name in names})
    ctx.exit(ExitCode.STOPPED)


# version


def _version(picture: Picture) -> list[str]:
    return [f"kiqcluster {VERSION}", f"{datetime.fromtimestamp(picture.at, UTC):%Y-%m-%d %H:%M:%S UTC}"]


def _version_facts(picture: Picture) -> dict[str, Any]:
    return {"kiqcluster": VERSION, "at": picture.at}


# overview


def _overview_facts(picture: Picture) -> dict[str, int]:
    return {
        "processed": picture.processed,
        "failed": picture.failed,
        "busy": picture.busy,
        "enqueued": picture.enqueued,
        "retries": picture.sizes[View.RETRIES],
        "scheduled": picture.sizes[View.SCHEDULED],
        "dead": picture.sizes[View.DEAD],
    }


def _overview(picture: Picture) -> list[str]:
    facts = _overview_facts(picture).items()
    return ["---- Overview ----", *(f"{name.capitalize():>11}: {number(value)}" for name, value in facts)]


# processes


def _processes(picture: Picture) -> list[str]:
    lines = [f"---- Processes ({len(picture.processes)}) ----"]
    for at, process in enumerate(picture.processes):
        lines += [*([""] if at else []), *_process(process, picture.at)]
    return lines


def _process(process: Process, now: float) -> list[str]:
    tags = [f"[{clean(each)}]" for each in (process.tag, *process.labels, "quiet" if process.is_quiet else "") if each]
    return [
        " ".join([process.identity, *tags]),
        f"  Started: {moment(process.started_at)} ({_ago(now - process.started_at)})",
        f"  Threads: {process.concurrency} ({process.busy} busy)",
        f"   Queues: {_broken(sorted(process.queues))}",
    ]


def _process_facts(picture: Picture) -> list[dict[str, Any]]:
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
        }
        for each in picture.processes
    ]


def _ago(seconds: float) -> str:
    minutes = int(seconds // 60)
    if minutes < 2:
        return "just now" if minutes < 1 else "a minute ago"
    if minutes < 120:
        return f"{minutes} minutes ago" if minutes < 60 else "an hour ago"
    return f"{minutes // 60} hours ago"


def _broken(names: Iterable[str]) -> str:
    """Return names with commas, in lines that are indented from the second on."""
    lines, line = [], ""
    for name in map(clean, names):
        if line and len(line) + len(name) > LINE - INDENT:
            lines.append(line)
            line = " " * INDENT
        line += f"{name}, "
    return "\n".join([*lines, line.removesuffix(", ")]) or "none"


# queues


def _queues(picture: Picture) -> list[str]:
    rows = [(each.name, str(each.size), f"{each.latency:.2f}") for each in picture.queues]
    columns = (left("NAME"), right("SIZE"), right("LATENCY"))
    return [f"---- Queues ({len(rows)}) ----", *table(columns, rows, indent=0)]


def _queue_facts(picture: Picture) -> list[dict[str, Any]]:
    return [{"name": each.name, "size": each.size, "latency": each.latency} for each in picture.queues]


SECTIONS = {
    "version": Section(_version, _version_facts),
    "overview": Section(_overview, _overview_facts),
    "processes": Section(_processes, _process_facts),
    "queues": Section(_queues, _queue_facts),
}
