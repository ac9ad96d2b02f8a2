"""Feature rows: what features say of a unit before it begins and when it has ended.

1. verdict        begin rows of the features that the unit uses → whether it may begin
2. with_effects   rows that features, and server middleware, add to the outcome

features/hooks says which features a job uses; begin.lua and settle.lua have the operations of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import replace
from functools import partial

from kiqcluster.application.registry import Registry
from kiqcluster.errors import MalformedPayload, StoreError
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.hooks.run_hooks import BeginFeature, EndFeature
from kiqcluster.features.stacks import current_stacks
from kiqcluster.ipc.forks import Forks, exit_if_forked
from kiqcluster.process.boundary.calls import MEMORY_PAUSE_SECONDS, guarded, with_memory
from kiqcluster.process.job_context import CURRENT_JOB
from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.keys import Keys
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT, read_object
from kiqcluster.store import is_outage
from kiqcluster.store.engine.begin_calls import Begin
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.worker.run.endings import DEFERRAL_SECONDS, Ending
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.read_job import ReadJob, payload_of

__all__ = ["BeginRun", "FeatureRows", "RowsAhead"]

BeginRun = Callable[[Unit, Sequence[Effect]], BeginVerdict]


def begin_rows(features: Sequence[BeginFeature], seen: Run) -> tuple[Sequence[Effect], Sequence[str]] | BeginVerdict:
    """Return the rows by which a unit may begin, with the name of the feature of each; or a verdict that decides."""
    rows: list[Effect] = []
    names: list[str] = []
    generation = Forks.generation
    for feature in features:
        try:
            answer = feature.on_begin(seen)
        except BaseException as error:
            exit_if_forked(generation, error)
            raise
        exit_if_forked(generation)
        if isinstance(answer, BeginVerdict):
            return replace(answer, reason=answer.reason or feature.name)
        rows += answer
        names += [feature.name] * (len(rows) - len(names))
    return rows, names


class RowsAhead:
    """The begins of units that wait here for a thread, if their features may be asked before their turn."""

    def __init__(self, registry: Registry, keys: Keys) -> None:
        self._registry = registry
        self._keys = keys
        self._features_of = current_stacks().run.of

    def __call__(self, unit: Unit) -> Begin | None:
        """Return the begin of a unit; None if it has no rows, or has to wait for its turn."""
        generation = Forks.generation
        try:
            return Context().run(self._begin, unit)  # functions of the application must not see another job
        except BaseException as error:  # noqa: BLE001  # of the payload, or of the application: it comes at the unit's turn again
            exit_if_forked(generation, error)
            return None

    def _begin(self, unit: Unit) -> Begin | None:
        payload = payload_of(unit)
        _, definition = self._registry.find(payload)
        if definition is None or unit.deaths or not definition.fewest <= len(payload["args"]) <= definition.most:
            return None
        features = self._features_of(definition, payload)
        if not features.may_begin_ahead:
            return None
        seen = Run(payload, unit.queue, definition, None, [], unit.identity, unit.token, self._keys)
        answer = begin_rows(features.begins, seen)
        if isinstance(answer, BeginVerdict) or not answer[0]:
            return None
        return Begin(unit, *answer)


class FeatureRows:
    """begin_run: puts a unit's begin rows into force; None where units are run without Redis, and rows not asked for.

    report_error: tells the error handlers, with a context and further facts.  pause: waits for seconds.
    """

    def __init__(
        self,
        keys: Keys,
        begin_run: BeginRun | None,
        report_error: Callable[..., None],
        pause: Callable[[float], object],
    ) -> None:
        self._keys = keys
        self._begin_run = begin_run
        self._report_error = report_error
        self._pause = pause
        self._hooks = current_stacks().run

    def verdict(self, run: JobRun, job: ReadJob) -> BeginVerdict | None:
        """Return whether a unit may begin, by its features; None where Redis could not be asked."""
        unit = run.unit
        run.original_payload = dict(job.payload)  # the other one is the application's
        asked: Begin | None = unit.asked
        if asked is not None:
            rows, names = asked.rows, asked.names
        else:
            seen = Run(job.payload, unit.queue, job.definition, None, [], unit.identity, unit.token, self._keys)
            answer = begin_rows(job.features.begins, seen)
            if isinstance(answer, BeginVerdict):
                return answer
            rows, names = answer
        if self._begin_run is None or not rows:
            return GO
        run.has_asked = True
        try:
            verdict = self._begin_run(unit, rows)
        except StoreError as error:
            if is_outage(error):
                return None
            self._report_error(error, "begin rows")
            return BeginVerdict("defer", DEFERRAL_SECONDS)  # the next try would be refused as well: not at once
        if verdict.row is not None:
            same = [index for index, row in enumerate(rows) if row is verdict.row]
            # Rows that another thread has asked by are equal.
            place = same[0] if same else rows.index(verdict.row) if verdict.row in rows else -1
            limit = verdict.row.key.removeprefix(self._keys.rate("")) if names[place] == DEFERRED_BY_RATE_LIMIT else ""
            return replace(verdict, reason=names[place], limit=limit)
        return verdict

    def with_effects(self, run: JobRun, ending: Ending, outcome: Outcome) -> Outcome:
        """Return the outcome with the rows of server middleware and of features."""
        unit, job, context = run.unit, run.job, run.context
        added_before = run.effects or ()
        if job is None or context is None:
            return replace(outcome, effects=(*outcome.effects, *added_before)) if added_before else outcome
        ends = self._hooks.ends_of(job.features, context)
        if not ends and not added_before:
            return outcome
        effects = [*outcome.effects, *added_before]
        keys = self._keys
        has_asked = run.has_asked or self._begin_run is None
        place = (unit.queue, job.name, unit.identity, unit.token, keys, unit.payload)
        said = (ending.failure, context.messages or (), ending.value, context.iteration, ending.was_skipped)
        payload = job.pristine() if run.original_payload is None else run.original_payload
        end = JobEnd(outcome, payload, *place, has_asked, *said)
        for feature in ends:
            effects += guarded(partial(self._rows_instead, run, end, feature), self._rows_of, feature, end)
        return replace(outcome, effects=tuple(effects)) if effects else outcome

    def of_unreadable(self, unit: Unit, error: MalformedPayload, outcome: Outcome) -> Outcome:
        """Return the outcome of a unit that is no job, with the rows of features."""
        payload = None
        with suppress(MalformedPayload):
            payload = read_object(unit.payload)[1]
        if payload is None:
            return outcome
        rows = list(outcome.effects)
        for on_unreadable in self._hooks.on_unreadable:
            rows += on_unreadable(payload, self._keys, error)
        return replace(outcome, effects=tuple(rows)) if rows else outcome

    def _rows_of(self, feature: EndFeature, end: JobEnd) -> tuple[Effect, ...]:
        try:
            return tuple(feature.on_end(end))
        except MemoryError:  # a moment later there may be some
            self._pause(MEMORY_PAUSE_SECONDS)
        return tuple(feature.on_end(end))

    def _rows_instead(self, run: JobRun, end: JobEnd, feature: EndFeature, raised: BaseException) -> tuple[Effect, ...]:
        """Return the rows of a feature that could not make its own, and report why: the outcome is decided already."""

        def rows() -> tuple[Effect, ...]:
            plain = replace(end, payload=payload_of(run.unit), messages=(), returned=None, iteration=None)
            return tuple(feature.on_end_failed(plain, raised))

        def report(error: BaseException) -> None:
            copy_context().run(self._report_end, run, feature, error)

        made = guarded(report, with_memory, self._pause, rows)
        guarded(_ignored, report, raised)
        return made or ()

    def _report_end(self, run: JobRun, feature: EndFeature, raised: BaseException) -> None:
        """Report an error within the context of the job, so that the line of the log names it."""
        CURRENT_JOB.set(run.context)
        queue, job = run.unit.queue, None if run.context is None else run.context.payload
        self._report_error(raised, f"end of {feature.name}", job=job, queue=queue)


def _ignored(_error: BaseException) -> None:
    """Do nothing about an error of a report: to raise it would put a job back that has run."""
