"""Waiting: until clusters have drained, rolled or reloaded, with progress reports.

Redis does not notify when a field changes, so this polls several times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from threading import Event
from typing import Any

from kiqcluster.control.cluster_document import ClusterStatus
from kiqcluster.control.transports import Transport
from kiqcluster.errors import StoreError
from kiqcluster.process.clock import Clock, SystemClock
from kiqcluster.process.durations import show_duration
from kiqcluster.store import is_outage

__all__ = ["MAX_OUTAGE_SECONDS", "MIN_PROBLEM_SECONDS", "NEVER_SET", "POLL_SECONDS", "Problems", "Waiter"]

POLL_SECONDS = 0.1
# A problem has to last this long before it ends the wait: processes are replaced, and some publish older states.
MIN_PROBLEM_SECONDS = 10.0
MAX_OUTAGE_SECONDS = 60.0  # of Redis
NEVER_SET = Event()  # to pause between polls with a timeout; Ctrl-C ends the pause

Report = Callable[[str], None]
Problems = dict[str, str]  # by name
Check = Callable[[ClusterStatus | None], "Progress"]  # None: the cluster has ended


@dataclass(frozen=True, slots=True)
class Progress:
    """has_ended: the wait for this cluster is over.  problem: why it failed, or what is wrong at the moment."""

    has_ended: bool
    problem: str = ""


PENDING, DONE = Progress(False), Progress(True)


@dataclass(frozen=True, slots=True)
class Waiter:
    """Polls clusters until a condition holds.  pause: sleeps for seconds.  max_outage: seconds Redis may be away."""

    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], object] = NEVER_SET.wait
    max_outage: float = MAX_OUTAGE_SECONDS

    def until_drained(
        self, transport: Transport, names: Iterable[str], timeout: float | None, report: Report
    ) -> Problems:
        """Wait until no job runs; return problems by cluster name.  A cluster that has ended has drained."""
        return self._wait(transport, names, timeout, _check_drained, lambda statuses: _report_busy(statuses, report))

    def until_rolled(
        self, transport: Transport, names: Iterable[str], ident: str, timeout: float | None, report: Report
    ) -> Problems:
        """Wait until the roll with this id has ended everywhere; return the failures by cluster name."""
        report_new = _once(report)
        return self._wait(
            transport,
            names,
            timeout,
            lambda status: _check_rolled(status, ident),
            lambda statuses: _report_rolled(statuses, ident, report_new),
        )

    def until_reloaded(
        self, transport: Transport, names: Iterable[str], ident: str, timeout: float | None, report: Report
    ) -> Problems:
        """Wait until the reload with this id has ended everywhere; return the failures by cluster name."""
        report_new = _once(report)
        return self._wait(
            transport,
            names,
            timeout,
            lambda status: _check_reloaded(status, ident),
            lambda statuses: _report_held_up(statuses, report_new),
        )

    def _wait(
        self,
        transport: Transport,
        names: Iterable[str],
        timeout: float | None,
        check: Check,
        report_progress: Callable[[Mapping[str, ClusterStatus]], None],
    ) -> Problems:
        """Poll until each has ended.  Raises StoreError if Redis is away for too long, or refuses a command."""
        pending, problems, persistent = set(names), Problems(), PersistentProblems()
        deadline = self.clock.monotonic() + (inf if timeout is None else timeout)
        away_since: float | None = None
        while pending:
            now = self.clock.monotonic()
            try:
                statuses, away_since = transport.statuses(), None
            except StoreError as error:
                away_since = now if away_since is None else away_since
                if not is_outage(error) or now >= away_since + self.max_outage:
                    raise
            else:
                report_progress({name: status for name, status in statuses.items() if name in pending})
                progresses = {name: persistent.judge(name, check(statuses.get(name)), now) for name in pending}
                pending = {name for name, progress in progresses.items() if not progress.has_ended}
                problems |= {name: each.problem for name, each in progresses.items() if each.has_ended and each.problem}
            if pending and now >= deadline:
                late = f"not within {show_duration(timeout or 0.0)}"
                return {**problems, **dict.fromkeys(pending, late)}
            if pending:
                self.pause(POLL_SECONDS)
        return problems


def _once(report: Report) -> Report:
    """Return a report that leaves out lines which were reported before: those of several clusters take turns."""
    said = set[str]()

    def report_new(line: str) -> None:
        if line not in said:
            said.add(line)
            report(line)

    return report_new


class PersistentProblems:
    """Ends the wait for a cluster whose problem lasts for MIN_PROBLEM_SECONDS."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def judge(self, name: str, progress: Progress, now: float) -> Progress:
        if progress.has_ended:
            return progress
        if not progress.problem:
            self._since.pop(name, None)
            return progress
        return Progress(now >= self._since.setdefault(name, now) + MIN_PROBLEM_SECONDS, progress.problem)


def _check_drained(status: ClusterStatus | None) -> Progress:
    if status is None or status.is_drained:
        return DONE
    if status.quiet_by or status.all_quiet:
        return PENDING
    return Progress(False, "is no longer quiet: somebody has resumed it, or its lease has ended")


def _report_busy(statuses: Mapping[str, ClusterStatus], report: Report) -> None:
    busy = sum(status.busy for status in statuses.values())
    if busy:
        report("1 job still runs" if busy == 1 else f"{busy} jobs still run")


def _check_rolled(status: ClusterStatus | None, ident: str) -> Progress:
    if status is None:
        return Progress(False, "is gone")
    return _check_report("roll", status.roll or {}, ident)


def _check_reloaded(status: ClusterStatus | None, ident: str) -> Progress:
    return Progress(False, "is gone") if status is None else _check_report("reload", status.reload or {}, ident)


def _check_report(what: str, report: Mapping[str, Any], ident: str) -> Progress:
    """Return the progress that the report of the latest roll or reload shows."""
    if (other := report.get("id")) != ident:
        replaced = f"reports another {what}, {other}, which has replaced this one"
        return Progress(False, replaced if other else f"does not report this {what}")
    if report.get("state") in ("failed", "superseded"):
        return Progress(True, str(report.get("error") or f"the {what} failed"))
    return DONE if report.get("state") == "done" else PENDING


def _report_rolled(statuses: Mapping[str, ClusterStatus], ident: str, report: Report) -> None:
    for name, status in sorted(statuses.items()):
        roll = status.roll or {}
        if roll.get("id") == ident and roll.get("state") == "rolling":
            waits_for = roll.get("waits_for")
            shards = ", ".join(map(str, waits_for)) if isinstance(waits_for, list) else ""
            waiting = f"; the others wait until the shard {shards} is back" if shards else ""
            report(f"{name}: {roll.get('done')} of {roll.get('of')} workers replaced{waiting}")


def _report_held_up(statuses: Mapping[str, ClusterStatus], report: Report) -> None:
    for name, status in sorted(statuses.items()):
        if (status.roll or {}).get("state") == "rolling":
            report(f"{name}: reloads when its roll has ended")
