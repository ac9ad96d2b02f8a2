"""Feature rows: what features say of a unit before it begins and when it has ended.

1. verdict        begin rows of the features that the unit uses → whether it may begin
2. with_effects   rows that features, and server middleware, add to the outcome

features/stacks.py says which features a job uses; begin.lua and settle.lua have the operations of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from kiqcluster.errors import StoreError
from kiqcluster.ipc.forks import exit_forked_children
from kiqcluster.process.runtime import JobEnd, Run
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT
from kiqcluster.store import is_outage
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.worker.run.decision import DEFERRAL_SECONDS
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["BeginRun", "FeatureRows"]

BeginRun = Callable[[Unit, Sequence[Effect]], BeginVerdict]


class FeatureRows:
    """begin_run: puts a unit's begin rows into force; None where units are run without Redis, and rows not asked for.

    report_error: tells the error handlers, with a context.
    """

    def __init__(
        self, keys: Keys, begin_run: BeginRun | None, report_error: Callable[[BaseException, str], None]
    ) -> None:
        self._keys = keys
        self._begin_run = begin_run
        self._report_error = report_error

    def verdict(self, run: JobRun, seen: Run) -> BeginVerdict | None:
        """Return whether a unit may begin, by its features; None where Redis could not be asked."""
        rows: list[Effect] = []
        names: list[str] = []  # of the feature of each row
        with exit_forked_children():
            for feature in run.features:
                answer = feature.on_begin(seen)
                if isinstance(answer, BeginVerdict):
                    return replace(answer, reason=answer.reason or feature.name)
                rows += answer
                names += [feature.name] * (len(rows) - len(names))
        if self._begin_run is None:
            return GO
        try:
            verdict = self._begin_run(run.unit, rows)
        except StoreError as error:
            if is_outage(error):
                return None
            self._report_error(error, "begin rows")
            return BeginVerdict("defer", DEFERRAL_SECONDS)  # the next try would be refused as well: not at once
        if verdict.row is not None:
            place = next(index for index, row in enumerate(rows) if row is verdict.row)
            limit = verdict.row.key.removeprefix(self._keys.rate("")) if names[place] == DEFERRED_BY_RATE_LIMIT else ""
            return replace(verdict, reason=names[place], limit=limit)
        return verdict

    def with_effects(self, run: JobRun, outcome: Outcome) -> Outcome:
        """Return the outcome with the rows of server middleware and of features."""
        effects = [*outcome.effects, *(run.effects or ())]
        unit, context = run.unit, run.context
        if context is None:
            return replace(outcome, effects=tuple(effects))
        keys = self._keys
        has_asked = unit.holds or self._begin_run is None
        place = (unit.queue, context.name, unit.identity, unit.token, keys, unit.payload)
        end = JobEnd(outcome, context.payload, *place, has_asked)
        for feature in run.features:
            try:
                with exit_forked_children():
                    added: tuple[Effect, ...] = tuple(feature.on_end(end))
            except BaseException as raised:  # noqa: BLE001  # the outcome is decided, and written without its rows
                with suppress(BaseException):  # an error that escapes would put a job back that has run
                    self._report_error(raised, "end of a feature")
            else:
                effects += added
        return replace(outcome, effects=tuple(effects))
