"""Cron: jobs that are enqueued at the ticks of a schedule, once in the whole fleet, without a leader.

declared_entries   the entries that an application declares, in its configuration or by the option `cron`
plan               which of the ticks that are due get a job, and which tick is awaited next

Redis holds each entry, and its next tick in a sorted set.  The script that enqueues a job also moves the entry from
that tick to the following one (store/lua/push.lua, row `tick`): whoever comes second finds another tick there.  The
poller asks for due ticks, also in a quiet process (worker/maintenance/cron_ticks.py).
Price: no round trip for pushes and runs; a poll counts one more sorted set, in the round trip that it makes anyway.
"""

from __future__ import annotations

import difflib
from itertools import islice
from math import ceil
from pathlib import Path

from kiqcluster.application.registry import Registry
from kiqcluster.errors import UsageError
from kiqcluster.process.config import Config
from kiqcluster.process.config_sources import read_cron_file
from kiqcluster.sidekiq.cron_entries import CronEntry, Step
from kiqcluster.sidekiq.schedules import Schedule

__all__ = ["declared_entries", "plan"]

MAX_STEPS = 100  # of an entry at once; the ticks behind them are due still


def declared_entries(config: Config, registry: Registry, directory: Path) -> list[CronEntry]:
    """Return the entries that an application declares: in its configuration, in `cron_file`, and in its code.

    An entry of the code has the name of its class; the configuration may replace it.  directory: of the application.
    Raises UsageError for an entry whose job nobody could enqueue.
    """
    entries = {each.name: each for each in config.cron}
    for entry in read_cron_file(directory / config.cron_file) if config.cron_file else ():
        if entry.name in entries:
            raise UsageError(f"cron entry {entry.name} is in the configuration and in {config.cron_file}; remove one")
        entries[entry.name] = entry
    for entry in entries.values():
        _check_schedule(entry)
        _check_job(entry, registry)
    for definition in registry:
        if "cron" in definition.local and definition.name not in entries:
            schedule = Schedule.parse(definition.local["cron"], definition.local.get("tz"))
            entries[definition.name] = CronEntry(definition.name, schedule, definition.name)
    return list(entries.values())


def _check_schedule(entry: CronEntry) -> None:
    try:
        entry.schedule.check_steps()
    except UsageError as error:
        raise UsageError(f"cron entry {entry.name}: {error}") from error


def _check_job(entry: CronEntry, registry: Registry) -> None:
    definition = registry.get(entry.job)
    if definition is None and not entry.queue:
        near = difflib.get_close_matches(entry.job, [each.name for each in registry], 1)
        hint = f"did you mean {near[0]}?" if near else "add it to what -r names"
        raise UsageError(
            f"cron entry {entry.name}: the application has no job {entry.job!r}; {hint} For a job of another "
            "application, such as one in Ruby, name its queue"
        )
    if definition is not None and (misfit := definition.fits(entry.args)):
        raise UsageError(f"cron entry {entry.name}: args do not fit: {misfit}")


def plan(entry: CronEntry, awaited: float, now: float) -> list[Step]:
    """Return the steps for an entry whose awaited tick is due: MAX_STEPS at most, in order.

    Ticks within the grace period all get a job.  Of older ones the entry says what becomes of them.
    """
    if awaited >= now - entry.grace or entry.missed == "all":
        return _steps(entry.schedule, awaited, awaited, now)
    fresh = next(entry.schedule.after(ceil(now - entry.grace) - 1), None)  # the first tick within the grace period
    if fresh is not None and fresh <= now:
        return _steps(entry.schedule, awaited, fresh, now)
    missed = next(entry.schedule.before(now + 1), awaited)
    at = max(missed, awaited) if entry.missed == "once" else None
    return [Step(awaited, at, entry.schedule.next(now))]


def _steps(schedule: Schedule, awaited: float, first: float, now: float) -> list[Step]:
    """Return a step for each tick from the first one on that is due."""
    steps, at = [], first
    for following in islice(schedule.after(first), MAX_STEPS):
        steps.append(Step(awaited, at, following))
        if following > now:
            break
        awaited = at = following
    return steps
