"""Beat: the schedules in the files of a code base, as findings and as cron entries.

beat_entries        the entries that files declare, with the table [cron.NAME] of each or the reason why it has none
schedule_findings   the same as findings
zone_of             the time zone that the settings name
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from kiqcluster.contrib.celery.catalogue import BEAT, Entry
from kiqcluster.contrib.celery.checker.assigned import Setting
from kiqcluster.contrib.celery.checker.finding import Finding, finding
from kiqcluster.contrib.celery.checker.known import Known, Undecided
from kiqcluster.contrib.celery.checker.schedules import CronTable, Unreadable, convert, read
from kiqcluster.contrib.celery.checker.source import Source, call_name, dotted
from kiqcluster.contrib.celery.checker.values import value_of
from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.contrib.celery.rules import UNREAD

__all__ = ["BeatEntry", "beat_entries", "schedule_findings", "zone_of"]

BY_HAND = "write the [cron] entry by hand"
SIGNATURES = ("s", "si")
MOST_POSITIONS = 2  # of add_periodic_task: schedule and task


class BeatEntry(NamedTuple):
    """An entry of a schedule.  table: None where it has no counterpart, for this reason."""

    source: Source
    node: ast.AST
    name: str
    table: CronTable | None
    reason: str = ""


def beat_entries(
    sources: Sequence[Source], known: Known, settings: Iterable[Setting], tz: str = ""
) -> Iterator[BeatEntry]:
    """Yield the entries of beat_schedule, and those of add_periodic_task(…)."""
    for setting in settings:
        if setting.name == "beat_schedule":
            yield from _of_table(setting.source, setting.value, tz)
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.Call) and dotted(node.func).endswith(".add_periodic_task"):
                yield _of_call(source, known, node, tz)


def _of_table(source: Source, value: ast.expr, tz: str) -> Iterator[BeatEntry]:
    if isinstance(value, ast.Name):
        value = source.constants.get(value.id, value)
    if not isinstance(value, ast.Dict):
        yield BeatEntry(source, value, "beat_schedule", None, f"the schedule is not written out here; {BY_HAND}")
        return
    for key, entry in zip(value.keys, value.values, strict=True):
        name = str(key.value) if isinstance(key, ast.Constant) else ast.unparse(key or entry)
        yield _entry(source, key or entry, name, partial(read, entry, source), tz)


def _of_call(source: Source, known: Known, node: ast.Call, tz: str) -> BeatEntry:
    """Return the entry of add_periodic_task(schedule, task.s(…), name=…, queue=…)."""
    given = {str(each.arg): each.value for each in node.keywords}
    named = given.pop("name", None)
    task = given.pop("sig", node.args[1] if len(node.args) > 1 else None)
    when = given.pop("schedule", node.args[0] if node.args else None)
    name = str(named.value) if isinstance(named, ast.Constant) else dotted(_task_of(task)).rpartition(".")[2]

    def value() -> dict[str, Any]:
        called = known.name_of(source, _task_of(task))
        signed = task if isinstance(task, ast.Call) else ast.Call(task or node, [], [])
        if when is None or called is None or signed.keywords or node.args[MOST_POSITIONS:]:
            raise Unreadable(ast.unparse(task or node))
        args = [read(each, source) for each in signed.args]
        options = {key: read(each, source) for key, each in given.items()}
        return {"task": called, "schedule": read(when, source), "args": args, "options": options}

    return _entry(source, node, name or "add_periodic_task", value, tz)


def _task_of(node: ast.AST | None) -> ast.AST:
    """Return the task of `task.s(…)`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SIGNATURES:
        return node.func.value
    return node or ast.Pass()


def _entry(source: Source, node: ast.AST, name: str, value: Callable[[], Any], tz: str) -> BeatEntry:
    """Return the entry of what `value()` returns."""
    try:
        return BeatEntry(source, node, name, convert(name, value(), tz))
    except Undecided as error:
        return BeatEntry(source, node, name, None, f"{error}; {BY_HAND}")
    except Unreadable as error:
        return BeatEntry(source, node, name, None, f"{error} is known at run time only; {BY_HAND}")
    except (Unsupported, TypeError, ValueError) as error:
        return BeatEntry(source, node, name, None, str(error).removeprefix(f"{name}: "))


def schedule_findings(entries: Iterable[BeatEntry]) -> Iterator[Finding]:
    """Yield each entry of a schedule."""
    for each in entries:
        entry = Entry("none", each.reason) if each.table is None else Entry("change", BEAT)
        yield finding(each.source.path, each.node, "schedule", each.name, entry)


def zone_of(sources: Iterable[Source], settings: Iterable[Setting]) -> str:
    """Return the time zone that the settings name, "" for UTC.  Raises Undecided."""
    given = [(each.source, each.value) for each in settings if each.name == "timezone"]
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.Call) and call_name(source, node) == "Celery":
                given += [(source, each.value) for each in node.keywords if each.arg == "timezone"]
    zones: set[str] = set()
    for source, value in given:
        zone = value_of(source, value)
        if zone is UNREAD:
            raise Undecided(f"{source.path}:{value.lineno}: timezone = {ast.unparse(value)} is known at run time only")
        zones.add(str(zone or ""))
    if len(zones) > 1:
        raise Undecided(f"the files set several time zones: {', '.join(sorted(zones))}")
    return zones.pop() if zones else ""
