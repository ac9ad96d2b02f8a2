"""Execution: a unit goes in, an outcome comes out.  Others write it.

Errors of jobs, payloads and hooks become outcomes.  `execute` and `finish` raise only if there is no memory for
seconds, or if others raise something in their thread; then `run.outcome` says whether the outcome was decided before.

Runs in: processor threads; the event loop's thread (`finish`); the main thread (`interrupt`, `put_back`, `time_out`).
1. read      bytes → job (job_run.py)
2. admit     a unit that was reserved long ago is put back, one that keeps killing its process is buried, and one of an
             unknown class waits, for a rolling deploy may bring it
3. perform   begin rows of features (feature_rows.py), then server middleware around perform, within the job's context;
             an async job goes on on the event loop (async_processor.py), which calls `finish` at its end
4. end       how it ended is a value (endings.py), and says what becomes of the unit; then handlers are told, and it is
             logged and counted (run_report.py); features see the outcome and add rows to it

Counterpart: sidekiq processor.rb dispatch and job_retry.rb.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from math import inf
from typing import Any

from kiqcluster.application.registry import Definition, Registry
from kiqcluster.errors import (
    GaveWay,
    JobCancelled,
    MalformedPayload,
    MisfitArguments,
    NormalFailure,
    OverLimit,
    PayloadDecryptionError,
    UnknownJob,
    UsageError,
    as_exception,
)
from kiqcluster.features.hooks.job_start import JobStart
from kiqcluster.ipc import forks
from kiqcluster.ipc.forks import Forks, exit_if_forked
from kiqcluster.process.boundary.calls import MEMORY_PAUSE_SECONDS, handled_error, is_a, with_memory
from kiqcluster.process.config import NO_LIMIT
from kiqcluster.process.job_context import CURRENT_JOB, JobContext
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Run, Runtime
from kiqcluster.process.service import run_coroutine
from kiqcluster.process.tallies import DROPPED
from kiqcluster.sidekiq.outcome import Deferred, Dropped, Interrupted, Outcome, Retry
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT
from kiqcluster.store.engine.units import BeginVerdict
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from kiqcluster.worker.run import endings, retry
from kiqcluster.worker.run.endings import (
    DONE,
    NOT_STARTED,
    RETURNED,
    Cancelled,
    CutOff,
    Ending,
    OutcomeFailed,
    Raised,
    RaisedInterrupted,
    RanOverLimit,
    Refused,
    Returned,
    Unreadable,
    ending_of_forced_stop,
    hard_timeout,
    killed_processes,
    unresolved,
)
from kiqcluster.worker.run.feature_rows import BeginRun, FeatureRows
from kiqcluster.worker.run.job_hooks import JobHooks
from kiqcluster.worker.run.job_run import AsyncJobs, JobRun, Reader
from kiqcluster.worker.run.read_job import ReadJob, unreadable_job
from kiqcluster.worker.run.run_report import LogDone, OnDue, RunReport

__all__ = ["MOST_HOOK_DEATHS", "Execution"]

MOST_HOOK_DEATHS = 3  # processes that may die while hooks are told of a job that has killed its own; then it is buried


class Execution:
    """Runs units for one processor; one per thread, so its tallies have one writer."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        metrics: JobMetrics,
        stopping: threading.Event,
        log_done: LogDone | None = None,
        is_fenced: Callable[[str], bool] = lambda _identity: False,
        begin_run: BeginRun | None = None,
        on_due: OnDue = lambda _outcome: None,
        on_limit: Callable[[str, float], None] = lambda _token, _seconds: None,
        end_run: Callable[[JobRun], None] = lambda _run: None,
        async_jobs: AsyncJobs | None = None,
    ) -> None:
        """log_done: logs job_done, instead of an event; called within the job's context.

        is_fenced: returns whether others may run what is held under an identity; jobs ask it.
        begin_run: see FeatureRows.  on_due: called with an outcome whose job becomes due again.
        on_limit: told for how many seconds the unit of a token may run (`timeout_hard`).
        end_run: told of runs that have ended, and whose units may hold keys of features.
        async_jobs: runs async jobs; None where the calling thread does that.
        """
        self._runtime = runtime
        self._monotonic = runtime.clock.monotonic  # cached: read several times for each job
        self._setup = runtime.setup
        self._store = runtime.store
        self._registry = registry
        self._stopping = stopping
        # Far below the time after which others may run what this process holds.
        self._stale_seconds = min(STALE_UNIT_SECONDS, runtime.config.health_recover_after / 2)
        self._on_limit = on_limit
        self._end_run = end_run
        self._async_jobs = async_jobs
        self._hooks = JobHooks(runtime.setup, runtime.rng, runtime.config.max_retries)
        self._reader = Reader(registry, stopping, is_fenced, runtime.store)
        self._rows = FeatureRows(runtime.store.keys, begin_run, self._hooks.report_error, stopping.wait)
        self._report = RunReport(runtime, registry, metrics, log_done, on_due)
        self._lines = self._report.lines
        forks.install()

    def execute(self, run: JobRun) -> Outcome | None:
        """Run a unit and return what became of it; None if it goes on on the event loop."""
        try:
            outcome = copy_context().run(self._execute, run)
        except BaseException as error:  # noqa: BLE001  # a hook may raise anything, a payload may hold anything
            outcome = self._without_report(run, error)
        if outcome is not None and run.record is not None and self._async_jobs is not None:  # it did not begin
            self._async_jobs.places.leave(run.record)
        return outcome

    def finish(self, run: JobRun, returned: Any, raised: BaseException | None) -> Outcome:
        """Return what became of an async job that has ended on the event loop; called within its context.

        returned: by the job, or by the middleware around it.
        """
        try:
            return self._finish(run, returned, raised)
        except BaseException as error:  # noqa: BLE001  # as above
            return self._without_report(run, error)

    def interrupt(self, run: JobRun) -> Outcome:
        """Return the outcome of a unit that still runs when the process must go, with its run's effects.

        Called by the main thread; the run itself goes on, and its result is ignored.  A run that has an outcome
        already keeps it, here and in the next two.
        """
        return copy_context().run(self._unless_ended, self._interrupt, run)

    def put_back(self, run: JobRun) -> Outcome:
        """Return the outcome of such a unit where another job is the reason: this stop does not count.

        Raises MalformedPayload.
        """
        return copy_context().run(self._unless_ended, self._put_back, run)

    def time_out(self, run: JobRun) -> Outcome:
        """Return the outcome of a unit that has run for longer than its `timeout_hard`: it has failed.

        Called by the main thread of a process that must go, or for a unit of a process that was killed.
        """
        return copy_context().run(self._unless_ended, self._time_out, run)

    # 1. read

    def _execute(self, run: JobRun) -> Outcome | None:
        unit = run.unit
        try:
            job = self._reader.begin(run)
        except MalformedPayload as error:
            return self._end_unrun(run, unreadable_job(unit), Unreadable(error))
        # 2. admit
        definition = job.definition
        started = run.started = self._monotonic()
        if started > unit.reserved_at + self._stale_seconds:  # this process was frozen: others may run it by now
            return self._end_unrun(run, job, NOT_STARTED)
        if unit.deaths and unit.deaths >= (allowed := self._deaths_allowed(definition)):
            # In hooks and handlers, too many processes may have died as well.
            is_told = unit.deaths < allowed + MOST_HOOK_DEATHS
            killed = killed_processes(job, is_told=is_told)
            # First: a hook or a handler may kill this process as well.
            self._report.log_failed("killed its processes, will not run again", killed.error)
            return self._end_unrun(run, job, killed)
        if started >= self._report.cpu_due:
            self._report.begin(started)
        CURRENT_JOB.set(run.context)
        if definition is None:
            unknown = UnknownJob(job.name, "" if job.payload["class"] == job.name else "active_job=True")
            run.ending = unresolved(job, "unknown_class", unknown) or Raised(unknown)
        elif not self._perform(run, job, definition):
            return None
        return self._end(run, job)

    def _deaths_allowed(self, definition: Definition | None) -> float:
        limit = None if definition is None else definition.local.get("max_retries_after_interruption")
        limit = self._runtime.config.max_retries_after_interruption if limit is None else int(limit)
        return inf if limit == NO_LIMIT else limit

    # 3. perform

    def _perform(self, run: JobRun, job: ReadJob, definition: Definition) -> bool:
        """Run a job, and note how it ended; return False if it goes on on the event loop, which calls `finish`.

        No local of this frame has the ending: see handled_error.
        """
        payload, features, generation, lines = job.payload, job.features, Forks.generation, self._lines
        run.has_begun = True
        try:
            if lines is not None and run.context is not None:
                lines.take(run.context, definition)
            arguments = payload["args"]
            is_misfit = not definition.fewest <= len(arguments) <= definition.most
            if is_misfit and (misfit := definition.misfit(payload)):
                raise MisfitArguments(misfit)  # noqa: TRY301  # concluded like any error of the job
            if definition.is_async and not self._has_place(run):
                run.ending = NOT_STARTED
                return True
            if features.has_rows and not self._is_admitted(run, job):
                return True
            if features.starts:
                self._tell_start(run, job, definition)
            if lines is not None:
                lines.start()
            instance, perform = definition.prepare()
            if definition.is_async:
                if run.record is not None:
                    self._start_async(run, job, definition, instance, perform)
                    return False
                perform = partial(self._complete, run, partial(_awaited, definition, perform))
            if self._setup.server_middleware.stack:
                self._perform_within(run, job, definition, instance, perform)
                return True
            value = perform(*(self._opened(job) if features.opens else arguments))
            if Forks.generation != generation or not Forks.page[0]:
                exit_if_forked(generation)
            if value is None:
                run.ending = RETURNED
            else:
                definition.check_returned(value)
                try:
                    run.ending = Returned(value)
                except MemoryError:  # it has run, and must not run again
                    run.ending = with_memory(self._stopping.wait, partial(Returned, value))
        except BaseException:  # noqa: BLE001  # a job may raise anything, sys.exit included; no thread dies of it
            exit_if_forked(generation, handled_error())
            self._note_raised(run, job, handled_error())
        return True

    def _note_raised(self, run: JobRun, job: ReadJob, error: BaseException) -> None:
        """Note how a job has ended that has raised an error, also where there is no memory for it at first."""
        run.ending = with_memory(self._stopping.wait, partial(self._raised, run, job, error))

    def _raised(self, run: JobRun, job: ReadJob, error: BaseException) -> Ending:
        """Return the ending of a job that has raised an error, and did not refuse to run."""
        context = run.context
        if is_a(error, (JobCancelled, asyncio.CancelledError)) and context is not None and context.cancelled:
            return Cancelled(context.cancelled_by)
        if is_a(error, GaveWay):
            return endings.GaveWay(is_stopping=self._stopping.is_set())
        if retry.was_interrupted(error):
            return RaisedInterrupted(is_stopping=self._stopping.is_set())
        if is_a(error, PayloadDecryptionError):  # a rolling restart may bring its key
            later = unresolved(job, "unknown_key", error) if error.is_key_unknown else None
            return later or Unreadable(error)
        if is_a(error, NormalFailure):
            return Returned(failure=error)
        if is_a(error, OverLimit):
            reason = DEFERRED_BY_RATE_LIMIT
            return RanOverLimit(BeginVerdict("defer", error.seconds, reason=reason, limit=str(error.name)))
        return Raised(error)

    def _has_place(self, run: JobRun) -> bool:
        """Return whether an async job may begin: the event loop has a place, or its thread will wait for it."""
        if self._async_jobs is None or not self._setup.server_middleware.is_async():
            return True
        run.record = self._async_jobs.places.take()
        return run.record is not None

    def _is_admitted(self, run: JobRun, job: ReadJob) -> bool:
        """Return whether a unit may begin, by the begin rows of its features; if not, note how it ended."""
        verdict = self._rows.verdict(run, job)
        if verdict is None or verdict.action != "go":
            run.ending = Refused(verdict)
            return False
        # It may have stood still since the answer: others may run it by now.
        if self._monotonic() > run.unit.reserved_at + self._stale_seconds:
            run.ending = NOT_STARTED
            return False
        return True

    def _tell_start(self, run: JobRun, job: ReadJob, definition: Definition) -> None:
        """Tell the features of a job that it starts."""
        assert run.context is not None, "it has begun"
        on_limit = self._on_limit
        if run.record is not None and self._async_jobs is not None:
            on_limit = partial(self._async_jobs.limit, run.record)
        start = JobStart(run.context, definition, run.unit.token, self._monotonic, on_limit)
        for on_start in job.features.starts:
            on_start(start)

    def _opened(self, job: ReadJob) -> list[Any]:
        """Return the arguments for `perform`, which nothing else sees.  Raises PayloadDecryptionError."""
        arguments: list[Any] = job.payload["args"]
        for on_open in job.features.opens:
            arguments = on_open(self._setup, job.payload, arguments)
        return arguments

    def _start_async(
        self, run: JobRun, job: ReadJob, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> None:
        """Leave a job to the event loop, which calls `finish`."""
        assert self._async_jobs is not None, "it gave the place"
        assert run.record is not None, "it has a place"
        if self._setup.server_middleware.stack:
            coroutine = self._aperform_within(run, job, definition, instance, perform)
        else:
            coroutine = perform(*self._opened(job))
        self._async_jobs.run_on_loop(run, run.record, coroutine)

    def _complete(self, run: JobRun, perform: Callable[..., Any], *arguments: Any) -> Any:
        """Run an async job, and wait for its end: a worker's on the event loop, a test's in a loop of its own."""
        if self._async_jobs is not None:
            return self._async_jobs.complete(run, perform(*arguments))
        return run_coroutine(perform(*arguments))

    def _perform_within(
        self, run: JobRun, job: ReadJob, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> None:
        """Run a job inside the server middleware, and note how it ended."""
        unit, generation, value, has_run = run.unit, Forks.generation, None, False
        ending = Returned()  # now: after the run there may be no memory for it

        def last() -> Outcome | None:
            nonlocal has_run, value
            exit_if_forked(generation)  # a child that middleware forked off has come to the job
            has_run = True
            try:
                value = perform(*self._opened(job))
            except BaseException as error:
                exit_if_forked(generation, error)
                raise
            exit_if_forked(generation)
            if value is not None:
                definition.check_returned(value)
            return None

        run.effects = []
        seen = Run(job.payload, unit.queue, definition, instance, run.effects, unit.identity, unit.token)
        returned = self._setup.server_middleware.invoke(seen, last)
        exit_if_forked(generation)
        ending.value, ending.by_middleware, ending.was_skipped = value, returned, not has_run
        run.ending = ending

    async def _aperform_within(
        self, run: JobRun, job: ReadJob, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> Returned:
        """Run an async job inside the server middleware; return how it ended."""
        unit, value, has_run = run.unit, None, False
        ending = Returned()  # now: after the run there may be no memory for it

        async def last() -> Outcome | None:
            nonlocal has_run, value
            has_run = True
            value = await _awaited(definition, perform, *self._opened(job))
            return None

        run.effects = []
        seen = Run(job.payload, unit.queue, definition, instance, run.effects, unit.identity, unit.token)
        returned = await self._setup.server_middleware.ainvoke(seen, last)
        ending.value, ending.by_middleware, ending.was_skipped = value, returned, not has_run
        return ending

    def _finish(self, run: JobRun, returned: Any, raised: BaseException | None) -> Outcome:
        job, context = run.job, run.context
        assert job is not None, "it has begun"
        assert job.definition is not None, "it has begun"
        assert context is not None, "it has begun"
        if raised is None and run.effects is None and returned is not None:
            raised = _unawaited(job.definition, returned)
        if raised is not None:
            self._note_raised(run, job, raised)
        elif is_a(returned, Returned):  # by `_aperform_within`
            run.ending = returned
        else:
            run.ending = RETURNED
            if returned is not None:
                run.ending = with_memory(self._stopping.wait, partial(Returned, returned))
        if self._lines is not None:  # after the ending is noted: there may be no memory for them
            self._lines.take(context, job.definition)
            self._lines.go_on()
        return self._end(run, job)

    # 4. end

    def _end(self, run: JobRun, job: ReadJob) -> Outcome:
        """Return the outcome of a run by its ending, told, logged and counted, and with its effects."""
        ending, context = run.ending, run.context
        assert ending is not None, "it has ended"
        assert context is not None, "it has begun"
        outcome: Outcome = DONE
        if ending is not RETURNED or context.cancelled_by:
            ending, outcome = self._decided(run, job, ending, context)
        run.outcome = outcome
        self._report.conclude(run, job, ending, outcome, self._monotonic() - run.started)
        if job.definition is not None and job.definition.has_timeout:
            self._report.count_timed_out(run, job.name)
        if run.effects or job.features.ends or context.uses_more:
            return self._with_effects(run, ending, outcome)
        return outcome

    def _decided(self, run: JobRun, job: ReadJob, ending: Ending, context: JobContext) -> tuple[Ending, Outcome]:
        """Return how a run ended and its outcome, unless it was cancelled meanwhile: then it does not run again."""
        outcome = with_memory(self._stopping.wait, partial(self._outcome, job, ending))
        if (cancelled := _cancelled(context, ending, outcome)) is not None:
            failed, would_be = ending, outcome
            ending = run.ending = cancelled
            outcome = run.outcome = with_memory(self._stopping.wait, partial(self._outcome, job, ending))
            self._report.tell(job, failed, would_be, self._report.tally)  # then: the main thread may look meanwhile
        run.outcome = outcome
        if context.cancelled_by and isinstance(outcome, Dropped):
            self._report.tally(job.name, run.unit.queue).skip(DROPPED, context.cancelled_by)
        return ending, outcome

    def _end_unrun(self, run: JobRun, job: ReadJob, ending: Ending) -> Outcome:
        """Return the outcome of a unit whose job is not performed, and whose time says nothing."""
        run.ending = ending
        outcome = run.outcome = self._outcome(job, ending)
        self._report.tell(job, ending, outcome, self._report.tally)
        return self._with_effects(run, ending, outcome)

    def _outcome(self, job: ReadJob, ending: Ending) -> Outcome:
        outcome = ending.outcome(job, self._runtime.clock.now(), self._hooks)
        return self._rows.of_unreadable(job.unit, ending.error, outcome) if is_a(ending, Unreadable) else outcome

    def _with_effects(self, run: JobRun, ending: Ending, outcome: Outcome) -> Outcome:
        outcome = self._rows.with_effects(run, ending, outcome)
        if run.unit.holds:
            self._end_run(run)
        return outcome

    def _without_report(self, run: JobRun, error: BaseException) -> Outcome:
        """Return the outcome of a run in which our own code has failed: while it searched for one, or after it."""
        outcome, ending = run.outcome, run.ending
        if outcome is not None:
            with suppress(Exception):  # there may be no memory: this is one more line that cannot be written
                self._setup.notify_error_handlers(as_exception(error), {"context": "report of a job"})
            return outcome if ending is None else self._with_effects(run, ending, outcome)
        if ending is None and not run.has_begun and is_a(error, MemoryError):
            self._stopping.wait(MEMORY_PAUSE_SECONDS)
            ending = NOT_STARTED
        return self._decided_at_last(run, ending, error)

    def _decided_at_last(self, run: JobRun, ending: Ending | None, error: BaseException) -> Outcome:
        """Return the outcome of a run whose ending had none: that again where there was no memory, else Dead."""
        job = run.job or unreadable_job(run.unit)
        if ending is None or not is_a(error, MemoryError):
            ending = OutcomeFailed(error)
        outcome = run.outcome = with_memory(self._stopping.wait, partial(self._outcome, job, ending))
        run.ending = ending
        with suppress(Exception):  # as above
            self._report.tell(job, ending, outcome, self._report.tally)
        return self._with_effects(run, ending, outcome)

    # the main thread's ends

    def _unless_ended(self, end: Callable[[JobRun], Outcome], run: JobRun) -> Outcome:
        """Return the outcome of a run that has ended and is not handed in, else the one that it gets now."""
        outcome, ending = run.outcome, run.ending
        if outcome is None:
            return end(run)
        # Without its ending it is released: its thread has the outcome with all rows, and `interrupt` looks there.
        return outcome if ending is None else self._rows.with_effects(run, ending, outcome)

    def _interrupt(self, run: JobRun) -> Outcome:
        try:
            job = self._reader.identify(run)
        except MalformedPayload as error:
            return self._cut_off(run, unreadable_job(run.unit), Unreadable(error))[1]
        self._report.tally_of_stop(job.name, run.unit.queue).count("interrupted")
        return self._cut_off(run, job, ending_of_forced_stop(job, self._runtime.config.max_forced_stops))[1]

    def _put_back(self, run: JobRun) -> Outcome:
        job = self._reader.identify(run)
        self._report.tally_of_stop(job.name, run.unit.queue).count("interrupted")
        return self._cut_off(run, job, CutOff(None))[1]

    def _time_out(self, run: JobRun) -> Outcome:
        try:
            job = self._reader.identify(run)
        except MalformedPayload as error:
            return self._cut_off(run, unreadable_job(run.unit), Unreadable(error))[1]
        reason = hard_timeout(job)
        ending, outcome = self._cut_off(run, job, Raised(reason))
        elapsed = max(reason.limit, self._runtime.clock.now() - run.since)  # of a dead process the start is not known
        self._report.conclude_timed_out(job, ending, outcome, elapsed)
        return outcome

    def _cut_off(self, run: JobRun, job: ReadJob, ending: Ending) -> tuple[Ending, Outcome]:
        """Return the ending and the outcome of a unit that still runs; the run goes on, and does not hear of it."""
        outcome, context = self._outcome(job, ending), run.context
        self._report.tell(job, ending, outcome, self._report.tally_of_stop)
        if context is not None and (cancelled := _cancelled(context, ending, outcome)) is not None:
            ending, outcome = cancelled, self._outcome(job, cancelled)
            self._report.tell(job, ending, outcome, self._report.tally_of_stop)
        return ending, self._rows.with_effects(run, ending, outcome)


def _cancelled(context: JobContext, ending: Ending, outcome: Outcome) -> Cancelled | None:
    """Return the ending of a job that was cancelled while it ran, None for one that does not run again anyway."""
    if not context.cancelled_by or not isinstance(outcome, Retry | Deferred | Interrupted):
        return None
    return Cancelled(context.cancelled_by, ending.failure)


async def _awaited(definition: Definition, perform: Callable[..., Any], *arguments: Any) -> Any:
    """Run an async job, and check at its end what it has returned: a task may end a moment later."""
    returned = await perform(*arguments)
    definition.check_returned(returned)
    return returned


def _unawaited(definition: Definition, returned: object) -> UsageError | None:
    """Return the error of an async job that has returned work which nobody awaits, None for others."""
    try:
        definition.check_returned(returned)
    except UsageError as error:
        return error
    return None
