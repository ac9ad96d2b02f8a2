"""Waiting: until everything has drained, rolled or reloaded.  Progress is said as it comes.

Redis tells nobody when a field changes, so this looks several times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from threading import Event
from typing import Any

from kiqcluster.clock import Clock, SystemClock
from kiqcluster.control.cluster_document import View
from kiqcluster.control.transports import Way
from kiqcluster.errors import StoreError
from kiqcluster.process.durations import show_duration
from kiqcluster.store import is_outage

__all__ = ["AWAY", "NEVER", "POLL", "SETTLE", "Problems", "Watch"]

POLL = 0.1  # seconds between two looks
# Seconds for which something must be wrong before it counts: processes are replaced, and one may tell older news than
# another.
SETTLE = 10.0
AWAY = 60.0  # seconds for which Redis may be away
NEVER = Event()  # never set: waiting for it is how a look pauses, and Ctrl-C ends it

Say = Callable[[str], None]
Problems = dict[str, str]  # by name
Judge = Callable[[View | None], "Verdict"]  # of what a cluster does; None when it is gone


@dataclass(frozen=True, slots=True)
class Verdict:
    """has_ended: there is nothing to wait for any more.  problem: why it failed, or what is wrong at this moment."""

    has_ended: bool
    problem: str = ""


GOES_ON, ARRIVED = Verdict(False), Verdict(True)


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks until something has come true.  pause: waits so many seconds.  away: for which Redis may be away."""

    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], object] = NEVER.wait
    away: float = AWAY

    def until_drained(self, way: Way, names: Iterable[str], timeout: float | None, say: Say) -> Problems:
        """Wait until nothing runs; return by name what kept it from coming true.  A cluster that ends has drained."""
        return self._until(way, names, timeout, _judge_drained, lambda views: _say_busy(views, say))

    def until_rolled(self, way: Way, names: Iterable[str], ident: str, timeout: float | None, say: Say) -> Problems:
        """Wait until the roll of that id has ended everywhere; return by name why it failed."""
        return self._until(
            way, names, timeout, lambda view: _judge_rolled(view, ident), lambda views: _say_rolled(views, ident, say)
        )

    def until_reloaded(self, way: Way, names: Iterable[str], ident: str, timeout: float | None, say: Say) -> Problems:
        """Wait until the reload of that id has ended everywhere; return by name why it failed."""
        return self._until(
            way, names, timeout, lambda view: _judge_reloaded(view, ident), lambda views: _say_held_up(views, say)
        )

    def _until(
        self,
        way: Way,
        names: Iterable[str],
        timeout: float | None,
        judge: Judge,
        progress: Callable[[Mapping[str, View]], None],
    ) -> Problems:
        """Look until each has ended.  Raises StoreError when Redis is away for long, or refuses."""
        pending, problems, patience = set(names), Problems(), Patience()
        deadline = self.clock.monotonic() + (inf if timeout is None else timeout)
        away_since: float | None = None
        while pending:
            now = self.clock.monotonic()
            try:
                views, away_since = way.look(), None
            except StoreError as error:
                away_since = now if away_since is None else away_since
                if not is_outage(error) or now >= away_since + self.away:
                    raise
            else:
                progress({name: view for name, view in views.items() if name in pending})
                verdicts = {name: patience.weigh(name, judge(views.get(name)), now) for name in pending}
                pending = {name for name, verdict in verdicts.items() if not verdict.has_ended}
                problems |= {name: each.problem for name, each in verdicts.items() if each.has_ended and each.problem}
            if pending and now >= deadline:
                late = f"not within {show_duration(timeout or 0.0)}"
                return {**problems, **dict.fromkeys(pending, late)}
            if pending:
                self.pause(POLL)
        return problems


class Patience:
    """Makes an end of what has been wrong for long."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def weigh(self, name: str, verdict: Verdict, now: float) -> Verdict:
        if verdict.has_ended:
            return verdict
        if not verdict.problem:
            self._since.pop(name, None)
            return verdict
        return Verdict(now >= self._since.setdefault(name, now) + SETTLE, verdict.problem)


def _judge_drained(view: View | None) -> Verdict:
    if view is None or view.is_drained:
        return ARRIVED
    if view.quiet_by or view.all_quiet:
        return GOES_ON
    return Verdict(False, "is no longer quiet: somebody has resumed it, or its lease has ended")


def _say_busy(views: Mapping[str, View], say: Say) -> None:
    busy = sum(view.busy for view in views.values())
    if busy:
        say("1 job still runs" if busy == 1 else f"{busy} jobs still run")


def _judge_rolled(view: View | None, ident: str) -> Verdict:
    if view is None:
        return Verdict(False, "is gone")
    return _judge("roll", view.roll or {}, ident)


def _judge_reloaded(view: View | None, ident: str) -> Verdict:
    return Verdict(False, "is gone") if view is None else _judge("reload", view.reload or {}, ident)


def _judge(what: str, report: Mapping[str, Any], ident: str) -> Verdict:
    """Judge what is told of the latest roll, or reload."""
    if (other := report.get("id")) != ident:
        replaced = f"reports another {what}, {other}, which has replaced this one"
        return Verdict(False, replaced if other else f"does not report this {what}")
    if report.get("state") in ("failed", "superseded"):
        return Verdict(True, str(report.get("error") or f"the {what} failed"))
    return ARRIVED if report.get("state") == "done" else GOES_ON


def _say_rolled(views: Mapping[str, View], ident: str, say: Say) -> None:
    for name, view in sorted(views.items()):
        roll = view.roll or {}
        if roll.get("id") == ident and roll.get("state") == "rolling":
            say(f"{name}: {roll.get('done')} of {roll.get('of')} workers replaced")


def _say_held_up(views: Mapping[str, View], say: Say) -> None:
    for name, view in sorted(views.items()):
        if (view.roll or {}).get("state") == "rolling":
            say(f"{name}: reloads when its roll has ended")
