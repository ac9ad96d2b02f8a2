"""Schedules: an entry of beat_schedule → an entry of kiqcluster's cron.  Pure.

read      an expression of the source → its value, without running it: literals, crontab(…), timedelta(…)
convert   an entry → CronTable, or the reason why it has no counterpart
toml      entries → text for kiqcluster.toml
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kiqcluster.contrib.celery.checker.source import Source
from kiqcluster.contrib.celery.errors import Unsupported
from kiqcluster.errors import UsageError
from kiqcluster.sidekiq.schedules import Schedule

__all__ = ["CronTable", "Crontab", "Unreadable", "convert", "read", "toml"]

FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")  # in the order of a cron expression
POSITIONS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")  # in the order of crontab(…)
KEYS = frozenset({"task", "schedule", "args", "kwargs", "options", "relative"})
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
MINUTE, HOUR, DAY = 60, 3_600, 86_400
PERIODS = ((1, MINUTE, "*/{} * * * * *"), (MINUTE, HOUR, "*/{} * * * *"), (HOUR, DAY, "0 */{} * * *"))
WHOLE = {MINUTE: "* * * * *", HOUR: "0 * * * *", DAY: "0 0 * * *"}


class Unreadable(Exception):
    """An expression has a value that only a run of the program would tell."""


@dataclass(frozen=True, slots=True)
class Crontab:
    """crontab(…): field → its text."""

    fields: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CronTable:
    """The table [cron.NAME] of an entry."""

    name: str
    schedule: str
    job: str
    args: Sequence[Any] = field(default_factory=tuple)
    tz: str = ""
    queue: str = ""


def read(node: ast.expr, source: Source) -> Any:
    """Return the value of an expression of a file.  Raises Unreadable."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name() if node.id in source.constants and node.id not in source.rebound:
            return read(source.constants[node.id], source)
        case ast.List() | ast.Tuple() | ast.Set():
            return [read(each, source) for each in node.elts]
        case ast.Dict():
            return {
                read(key, source): read(value, source)
                for key, value in zip(node.keys, node.values, strict=True)
                if key is not None
            }
        case ast.UnaryOp(op=ast.USub()):
            return -_number(read(node.operand, source))
        case ast.BinOp(op=ast.Mult()):
            return _number(read(node.left, source)) * _number(read(node.right, source))
        case ast.Call():
            return _read_call(node, source)
    raise Unreadable(ast.unparse(node))


def _number(value: Any) -> float:
    if isinstance(value, int | float):
        return value
    raise Unreadable(repr(value))


def _read_call(node: ast.Call, source: Source) -> Any:
    called = source.full_name(node.func)
    if any(each.arg is None for each in node.keywords):
        raise Unreadable(ast.unparse(node))
    positions = [read(each, source) for each in node.args]
    keywords = {str(each.arg): read(each.value, source) for each in node.keywords}
    if called == "datetime.timedelta":
        return timedelta(*positions, **keywords)
    if called in ("celery.schedules.schedule", "celery.task.schedules.schedule"):  # schedule(run_every=…)
        return positions[0] if positions else keywords.get("run_every")
    if called in ("celery.schedules.crontab", "celery.task.schedules.crontab"):
        given = {**dict(zip(POSITIONS, positions, strict=False)), **keywords}
        if unknown := sorted(given.keys() - set(FIELDS)):
            raise Unreadable(f"crontab({unknown[0]}=…)")
        return Crontab({name: _field(value) for name, value in given.items()})
    raise Unreadable(ast.unparse(node))


def _field(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value).replace(" ", "")


def convert(name: str, entry: Any, tz: str = "") -> CronTable:
    """Return the cron entry of an entry of beat_schedule.  Raises Unsupported, which says what to do."""
    if not isinstance(entry, Mapping) or "task" not in entry or "schedule" not in entry:
        raise Unsupported(f"{name}: it is not a table with task and schedule; write the [cron] entry by hand")
    for key in sorted(entry.keys() - KEYS):
        raise Unsupported(f"{name}: the key {key} has no counterpart; remove it")
    if entry.get("kwargs"):
        raise Unsupported(f"{name}: a cron entry has positions; write kwargs as args, in the order of the parameters")
    if entry.get("relative"):
        raise Unsupported(f"{name}: ticks are times of the clock, not relative to a start; remove relative")
    options = dict(entry.get("options") or {})
    queue = options.pop("queue", "")
    for key in options:
        raise Unsupported(f"{name}: options may have queue; declare {key} with the task")
    text = _text(name, entry["schedule"])
    try:
        Schedule.parse(text, tz or None)
    except UsageError as error:
        raise Unsupported(f"{name}: {error}") from error
    return CronTable(str(name), text, str(entry["task"]), tuple(entry.get("args") or ()), tz, str(queue))


def _text(name: str, schedule: Any) -> str:
    if isinstance(schedule, Crontab):
        days = [schedule.fields.get(each, "*") for each in ("day_of_month", "day_of_week")]
        if "*" not in days:
            raise Unsupported(
                f"{name}: Celery asks for the day of the month and that of the week, cron for either; give one in the "
                "entry, and let the job return on other days"
            )
        return " ".join(schedule.fields.get(each, "*") for each in FIELDS)
    seconds = schedule.total_seconds() if isinstance(schedule, timedelta) else schedule
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        return _every(name, seconds)
    raise Unsupported(f"{name}: this schedule has no counterpart in cron; let a job call apply_async(eta=…)")


def _every(name: str, seconds: float) -> str:
    """Return the expression for a period that divides a minute, an hour or a day."""
    if seconds in WHOLE:
        return WHOLE[int(seconds)]
    for unit, whole, form in PERIODS:
        if unit <= seconds < whole and seconds % unit == 0 and whole % seconds == 0:
            return form.format(int(seconds / unit))
    raise Unsupported(
        f"{name}: every {seconds:g} s is no cron expression; take a period that divides a minute, an hour or a day"
    )


def toml(entries: Iterable[CronTable]) -> str:
    """Return the tables of entries."""
    return "\n".join(_table(each) for each in entries)


def _table(entry: CronTable) -> str:
    key = entry.name if BARE_KEY.fullmatch(entry.name) else json.dumps(entry.name)
    lines = [f"[cron.{key}]", f"schedule = {json.dumps(entry.schedule)}", f"job = {json.dumps(entry.job)}"]
    if entry.args:
        lines.append(f"args = {_value(list(entry.args))}")
    lines += [f"{name} = {json.dumps(value)}" for name, value in (("tz", entry.tz), ("queue", entry.queue)) if value]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    """Return a value as TOML; None, which it does not have, raises Unsupported."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{json.dumps(str(key))} = {_value(each)}' for key, each in value.items())}}}"
    if value is None:
        raise Unsupported("TOML has no null; leave the argument out, or give the parameter a default")
    return json.dumps(value, ensure_ascii=False)
