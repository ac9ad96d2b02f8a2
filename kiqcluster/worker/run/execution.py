"""Execution: a unit goes in, an outcome comes out.  It never raises, and writes nothing.

Runs in: processor threads; the main thread (`interrupt`).
1. read        bytes → job (job_run.py); bytes that are not a job are buried; a unit that was reserved long ago is put
               back
2. resolve     a job of an unknown class is deferred, for a rolling deploy may bring it
3. run         begin rows of features (feature_rows.py), then server middleware around perform, within the job's
               context; an async job goes on on the event loop (async_processor.py), which calls `finish` at its end
4. conclude    gather the facts, ask the job's hooks (job_hooks.py), decide (decision.py); tell handlers, log and count
               (run_report.py)
5. end         features see the outcome and add rows to it

Counterpart: sidekiq processor.rb dispatch and job_retry.rb.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

from kiqcluster.application.registry import Definition, Registry
from kiqcluster.errors import (
    CannotRun,
    GaveWay,
    JobCancelled,
    MalformedPayload,
    MisfitArguments,
    NormalFailure,
    OverLimit,
    PayloadDecompressionError,
    PayloadDecryptionError,
    RetryError,
    UnknownJob,
    UsageError,
    as_exception,
)
from kiqcluster.features import tasks, timeouts
from kiqcluster.features.cancellation import CANCELLATIONS
from kiqcluster.features.payload import encryption
from kiqcluster.features.versions import is_newer
from kiqcluster.ipc import forks
from kiqcluster.ipc.forks import Forks, exit_if_forked
from kiqcluster.process.boundary.calls import MEMORY_PAUSE_SECONDS, handled_error, is_a, with_memory
from kiqcluster.process.config import NO_LIMIT
from kiqcluster.process.job_context import CURRENT_JOB
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Run, Runtime
from kiqcluster.process.service import run_coroutine
from kiqcluster.process.tallies import DEFERRED, DROPPED
from kiqcluster.sidekiq.backtraces import BACKTRACE
from kiqcluster.sidekiq.encryption import KEY_VERSION
from kiqcluster.sidekiq.outcome import Dead, Deferred, Dropped, Effect, Interrupted, Outcome, Parked, Retry
from kiqcluster.sidekiq.payload import DEFERRED_BY_RATE_LIMIT, TRANSIENT_KEYS, Payload, lock_of, read, read_object
from kiqcluster.sidekiq.ruby_entries import entry_for_ruby, misfits
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.engine.units import BeginVerdict, Unit
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from kiqcluster.worker.run import retry
from kiqcluster.worker.run.decision import (
    DEFERRAL_SECONDS,
    DONE,
    REQUEUE,
    Ending,
    Facts,
    decide,
)
from kiqcluster.worker.run.feature_rows import BeginRun, FeatureRows
from kiqcluster.worker.run.job_hooks import JobHooks
from kiqcluster.worker.run.job_run import AsyncJobs, JobRun, Reader
from kiqcluster.worker.run.read_job import DEFERRAL_KEYS, ReadJob, deferral, refusal
from kiqcluster.worker.run.run_report import LogDone, OnDue, RunReport

__all__ = ["MAX_DEFERRALS", "MOST_HOOK_DEATHS", "Execution"]

MAX_DEFERRALS = 10  # of a job of an unknown class, which then fails the normal way, or with an unknown key
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
        self._stale_seconds = min(STALE_UNIT_SECONDS, runtime.config.recover_after / 2)
        self._on_limit = on_limit
        self._end_run = end_run
        self._async_jobs = async_jobs
        self._hooks = JobHooks(runtime.setup, runtime.rng)
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
        if outcome is None:
            return None
        if run.record is not None and self._async_jobs is not None:  # it did not begin
            self._async_jobs.places.leave(run.record)
        job, context = run.job, run.context
        if job is None or context is None:  # it could not be read
            return outcome
        if run.effects or job.features or context.cancelled_by or context.progressed is not None:
            return self._with_effects(run, outcome)
        return outcome

    def finish(self, run: JobRun, returned: Any, raised: BaseException | None) -> Outcome:
        """Return what became of an async job that has ended on the event loop; called within its context.

        returned: by the job, or by the middleware around it.
        """
        try:
            outcome = self._finish(run, returned, raised)
        except BaseException as error:  # noqa: BLE001  # as above
            outcome = self._without_report(run, error)
        return self._with_effects(run, outcome)

    def _with_effects(self, run: JobRun, outcome: Outcome) -> Outcome:
        outcome = self._rows.with_effects(run, outcome)
        if run.unit.holds:
            self._end_run(run)
        return outcome

    def interrupt(self, run: JobRun) -> Outcome:
        """Return the outcome of a unit that still runs when the process must go, with its run's effects.

        Called by the main thread; the run itself goes on, and its result is ignored.
        """
        return self._rows.with_effects(run, copy_context().run(self._cut_off, run, self._interrupted))

    def put_back(self, run: JobRun) -> Outcome:
        """Return the same where another job is the reason why the process must go: this does not count."""
        copy_context().run(self._reader.identify, run)
        self._count_interrupted(run)
        now = self._runtime.clock.now()
        outcome = decide(Facts(ending=Ending.FORCED_STOP, now=now, entry=run.unit.payload))
        return self._rows.with_effects(run, self._cut_off(run, lambda _: outcome))

    def time_out(self, run: JobRun) -> Outcome:
        """Return the outcome of a unit that has run for longer than its `timeout_hard`: it has failed.

        Called by the main thread of a process that must go, or for a unit of a process that was killed.
        """
        return self._rows.with_effects(run, copy_context().run(self._timed_out, run))

    def _timed_out(self, run: JobRun) -> Outcome:
        try:
            job = self._reader.identify(run)
        except MalformedPayload as error:
            return self._bury_unreadable(run.unit, error)
        reason = timeouts.hard_timeout(job.name, job.definition)
        outcome = self._failed(run, job, reason)
        if run.context is not None and run.context.cancelled:
            outcome = self._of_cancelled(run, job, outcome)
        since_start = self._runtime.clock.now() - run.since
        run.seconds = max(reason.limit, since_start)  # of a dead process the start is not known
        self._report.conclude_timed_out(run, job, outcome, reason)
        return outcome

    def _execute(self, run: JobRun) -> Outcome | None:
        unit = run.unit
        try:
            job = self._reader.begin(run)
        except MalformedPayload as error:
            return self._bury_unreadable(unit, error)
        definition = job.definition
        started = run.started = self._monotonic()
        if started > unit.reserved_at + self._stale_seconds:  # this process was frozen: others may run it by now
            return REQUEUE
        if unit.deaths and unit.deaths >= self._deaths_allowed(definition):
            is_told = unit.deaths < self._deaths_allowed(definition) + MOST_HOOK_DEATHS
            return self._bury_killer(job, is_told=is_told)
        if started >= self._report.cpu_due:
            self._report.begin(started)
        CURRENT_JOB.set(run.context)
        if definition is None:
            outcome = run.outcome = self._unknown(run, job)
        else:
            ended = run.outcome = self._run(run, job, definition)
            if ended is None:
                return None
            outcome = ended
        return self._conclude(run, job, outcome)

    def _conclude(self, run: JobRun, job: ReadJob, outcome: Outcome) -> Outcome:
        if run.context is not None and run.context.cancelled_by:
            outcome = run.outcome = self._of_cancelled(run, job, outcome)
            if isinstance(outcome, Dropped):
                self._report.tally(job.name, run.unit.queue).skip(DROPPED, run.context.cancelled_by)
        run.seconds = self._monotonic() - run.started
        self._report.conclude(run, job, outcome)
        if job.definition is not None and job.definition.has_timeout:
            self._report.count_timed_out(run, job.name)
        return outcome

    def _finish(self, run: JobRun, returned: Any, raised: BaseException | None) -> Outcome:
        job, context = run.job, run.context
        assert job is not None, "it has begun"
        assert job.definition is not None, "it has begun"
        assert context is not None, "it has begun"
        if self._lines is not None:
            self._lines.take(context, job.definition)
            self._lines.go_on()
        outcome: Outcome = DONE
        if raised is None and run.effects is None and returned is not None:
            raised = _unawaited(job.definition, returned)
        if raised is not None:
            outcome = self._raised_at_last(run, job, raised)
        elif run.effects is None:
            run.returned = returned
        else:
            outcome = DONE if returned is None else decide(Facts(ending=Ending.RETURNED, returned=returned))
        run.outcome = outcome
        return self._conclude(run, job, outcome)

    def _deaths_allowed(self, definition: Definition | None) -> float:
        limit = None if definition is None else definition.local.get("max_retries_after_interruption")
        limit = self._runtime.config.max_retries_after_interruption if limit is None else int(limit)
        return inf if limit == NO_LIMIT else limit

    # 1. read

    def _bury_unreadable(self, unit: Unit, error: MalformedPayload) -> Outcome:
        """Return Dead for bytes that are not a job, or whose arguments cannot be read."""
        now = self._runtime.clock.now()
        self._setup.notify_error_handlers(
            error, {"context": "malformed payload", "queue": unit.queue, "payload": unit.payload}
        )
        self._report.log_failed("cannot run, buried", error)
        entry = payload = None
        with suppress(MalformedPayload):
            payload = read_object(unit.payload)[1]
        if payload is not None and not {"class", "args"}.intersection(misfits(payload)):
            changes = {**retry.describe_error(error), "failed_at": now, "retry_count": 0}
            entry = entry_for_ruby(unit.payload, changes, unit.queue, DEFERRAL_KEYS)
        if is_a(error, PayloadDecompressionError):
            self._report.tally(self._registry.find(read(unit.payload))[0], unit.queue).count("dead")
        outcome = decide(
            Facts(ending=Ending.NOT_A_JOB, now=now, raw=unit.payload, queue=unit.queue, entry=entry, error=error)
        )
        if payload is None:
            return outcome
        rows = [*outcome.effects, *tasks.error_rows(payload, self._store.keys, error)]  # no feature is asked about it
        if (lock := lock_of(payload)) is not None:
            rows.append(Effect("clear", self._store.keys.lock(lock[0]), (lock[1],)))
        return replace(outcome, effects=tuple(rows)) if rows else outcome

    def _bury_killer(self, job: ReadJob, *, is_told: bool) -> Outcome:
        """Return the outcome of a job that has killed as many processes as it may, without running it.

        is_told: whether hooks and handlers are called; in them, too many processes may have died as well.
        """
        unit, now = job.unit, self._runtime.clock.now()
        error = CannotRun(
            f"{unit.deaths} processes died while they ran this job; it is not run again. Look at their death reports, "
            "mend the job, and retry it"
        )
        changes = {
            **retry.describe_error(error),
            "failed_at": now,
            "retry_count": 0,
            "interrupted_count": unit.deaths,
        }
        self._report.log_failed("killed its processes, buried", error)
        self._report.tally(job.name, unit.queue).add(Dead(b"", now), 0.0, None, was_retried=False)
        if is_told:
            self._setup.notify_error_handlers(error, {"context": "job", "job": job.payload, "queue": unit.queue})
        return self._give_up(job, Ending.KILLED_PROCESSES, error, changes, now, is_told=is_told)

    # 2. resolve

    def _unknown(self, run: JobRun, job: ReadJob) -> Outcome:
        error = UnknownJob(job.name, "" if job.payload["class"] == job.name else "active_job=True")
        outcome = self._until_deployed(job, "unknown_class", Ending.UNKNOWN_CLASS, error)
        return self._failed(run, job, error) if outcome is None else outcome

    def _until_deployed(self, job: ReadJob, reason: str, ending: Ending, error: CannotRun) -> Outcome | None:
        """Return Deferred for a job that another release or configuration can run, None if it has waited enough."""
        changes = deferral(job.payload, reason)
        count, now = changes["deferred_count"], self._runtime.clock.now()
        if count > MAX_DEFERRALS:
            return None
        entry = job.entry(changes, TRANSIENT_KEYS)
        detail = f" for {DEFERRAL_SECONDS:.0f} s ({count} of {MAX_DEFERRALS})"
        self._report.log_failed("deferred", error, detail=detail)
        return decide(Facts(ending=ending, now=now, entry=entry))

    # 3. run

    def _run(self, run: JobRun, job: ReadJob, definition: Definition) -> Outcome | None:
        payload, generation, lines = job.payload, Forks.generation, self._lines
        run.has_begun = True
        try:
            if lines is not None and run.context is not None:
                lines.take(run.context, definition)
            arguments = payload["args"]
            is_misfit = not definition.fewest <= len(arguments) <= definition.most
            if is_misfit and not is_newer(payload, definition) and (misfit := definition.fits(arguments)):
                raise MisfitArguments(misfit)  # noqa: TRY301  # concluded like any error of the job
            if definition.is_async and not self._has_place(run):
                return REQUEUE
            if job.features and (refused := self._not_admitted(run, job)) is not None:
                return refused
            if definition.has_timeout and run.context is not None:
                timeouts.begin(run.context, definition, self._monotonic, self._limit_of(run), run.unit.token)
            if lines is not None:
                lines.start()
            instance, perform = definition.prepare()
            if definition.is_async:
                if run.record is not None:
                    self._start_async(run, job, definition, instance, perform)
                    return None
                perform = partial(self._complete, run, partial(_awaited, definition, perform))
            if not self._setup.server_middleware.stack:
                run.returned = perform(*(self._opened(payload) if KEY_VERSION in payload else arguments))
                if Forks.generation != generation or not Forks.page[0]:
                    exit_if_forked(generation)
                if run.returned is not None:
                    definition.check_returned(run.returned)
                return DONE
            return self._run_within(run, job, definition, instance, perform)
        except BaseException:  # noqa: BLE001  # a job may raise anything, sys.exit included; no thread dies of it
            exit_if_forked(generation, handled_error())
            return self._raised_at_last(run, job, handled_error())

    def _raised_at_last(self, run: JobRun, job: ReadJob, error: BaseException) -> Outcome:
        """Return what `_raised` does, also where there is no memory for it at first."""
        return with_memory(self._stopping.wait, partial(self._raised, run, job, error))

    def _start_async(
        self, run: JobRun, job: ReadJob, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> None:
        """Leave a job to the event loop, which calls `finish`."""
        assert self._async_jobs is not None, "it gave the place"
        assert run.record is not None, "it has a place"
        if self._setup.server_middleware.stack:
            coroutine = self._perform_within(run, job, definition, instance, perform)
        else:
            coroutine = perform(*self._opened(job.payload))
        self._async_jobs.run_on_loop(run, run.record, coroutine)

    def _complete(self, run: JobRun, perform: Callable[..., Any], *arguments: Any) -> Any:
        """Run an async job, and wait for its end: a worker's on the event loop, a test's in a loop of its own."""
        if self._async_jobs is not None:
            return self._async_jobs.complete(run, perform(*arguments))
        return run_coroutine(perform(*arguments))

    def _raised(self, run: JobRun, job: ReadJob, error: BaseException) -> Outcome:
        """Return the outcome of a job that has raised an error, and did not refuse to run."""
        if is_a(error, (JobCancelled, asyncio.CancelledError)) and run.context is not None and run.context.cancelled:
            return self._dropped(run, job)
        if is_a(error, GaveWay):
            stops = self._stopping.is_set()
            return decide(Facts(ending=Ending.GAVE_WAY, raw=run.unit.payload, is_stopping=stops))
        if retry.was_interrupted(error):
            return self._yielded(job)
        if is_a(error, PayloadDecryptionError):
            return self._undecrypted(job, error)
        if is_a(error, NormalFailure):  # its task is told (features/tasks)
            run.failure = error
            return DONE
        if is_a(error, OverLimit):
            verdict = BeginVerdict("defer", error.seconds, reason=DEFERRED_BY_RATE_LIMIT, limit=str(error.name))
            return self._deferred(job, verdict)
        return self._failed(run, job, error)

    def _undecrypted(self, job: ReadJob, error: PayloadDecryptionError) -> Outcome:
        """Return Deferred for a job whose key a rolling restart may bring, else Dead."""
        outcome = None
        if error.is_key_unknown:
            outcome = self._until_deployed(job, "unknown_key", Ending.UNKNOWN_KEY, error)
        return self._bury_unreadable(job.unit, error) if outcome is None else outcome

    def _opened(self, payload: Payload) -> list[Any]:
        """Return the arguments for `perform`: nothing else sees the encrypted one.  Raises PayloadDecryptionError."""
        return encryption.arguments(self._setup, payload)

    def _has_place(self, run: JobRun) -> bool:
        """Return whether an async job may begin: the event loop has a place, or its thread will wait for it."""
        if self._async_jobs is None or not self._setup.server_middleware.is_async():
            return True
        run.record = self._async_jobs.places.take()
        return run.record is not None

    def _limit_of(self, run: JobRun) -> Callable[[str, float], None]:
        """Return what is told for how long the unit may run."""
        if run.record is None or self._async_jobs is None:
            return self._on_limit
        return partial(self._async_jobs.limit, run.record)

    def _not_admitted(self, run: JobRun, job: ReadJob) -> Outcome | None:
        """Return what becomes of a unit that may not begin, by the begin rows of features; None if it may."""
        unit = run.unit
        verdict = self._rows.verdict(run, job)
        if verdict is not None and verdict.action == "go":
            is_stale = self._monotonic() > unit.reserved_at + self._stale_seconds
            return REQUEUE if is_stale else None  # it may have stood still since the answer, as above
        outcome = self._deferred(job, verdict)
        if isinstance(outcome, Dropped) and verdict is not None:
            self._report.emit("job_dropped", reason=verdict.reason)
        tally = self._report.tally(job.name, unit.queue)
        if isinstance(outcome, Parked):
            tally.count("parked")
        elif isinstance(outcome, Dropped | Deferred):
            reason = "" if verdict is None else verdict.reason
            tally.skip(DROPPED if isinstance(outcome, Dropped) else DEFERRED, reason)
        return outcome

    async def _perform_within(
        self, run: JobRun, job: ReadJob, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> Outcome | None:
        """Run an async job inside the server middleware; return what that returns."""
        unit, has_run = run.unit, False

        async def last() -> Outcome | None:
            nonlocal has_run
            has_run = True
            run.returned = await _awaited(definition, perform, *self._opened(job.payload))
            return None

        run.effects = []
        seen = Run(job.payload, unit.queue, definition, instance, run.effects, unit.identity, unit.token)
        returned = await self._setup.server_middleware.ainvoke(seen, last)
        if not has_run:
            self._skip(run, definition, returned)
        return returned

    def _skip(self, run: JobRun, definition: Definition, returned: object) -> None:
        """Count a job that middleware has not let run."""
        run.was_skipped = True
        self._report.tally(definition.name, run.unit.queue).skip(
            DEFERRED if isinstance(returned, Deferred) else DROPPED
        )

    def _run_within(
        self, run: JobRun, job: ReadJob, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> Outcome:
        """Run a job inside the server middleware."""
        unit, has_run, generation = run.unit, False, Forks.generation

        def last() -> Outcome | None:
            nonlocal has_run
            exit_if_forked(generation)  # a child that middleware forked off has come to the job
            has_run = True
            try:
                run.returned = perform(*self._opened(job.payload))
            except BaseException as error:
                exit_if_forked(generation, error)
                raise
            exit_if_forked(generation)
            if run.returned is not None:
                definition.check_returned(run.returned)
            return None

        run.effects = []
        seen = Run(job.payload, unit.queue, definition, instance, run.effects, unit.identity, unit.token)
        returned = self._setup.server_middleware.invoke(seen, last)
        exit_if_forked(generation)
        if not has_run:
            self._skip(run, definition, returned)
        return DONE if returned is None else decide(Facts(ending=Ending.RETURNED, returned=returned))

    # 4. conclude

    def _deferred(self, job: ReadJob, verdict: BeginVerdict | None) -> Outcome:
        """Return the outcome of a unit that may not run now.  verdict: None where Redis could not be asked."""
        unit, now = job.unit, self._runtime.clock.now()
        changes = {} if verdict is None or not verdict.reason else refusal(job.payload, verdict)
        if verdict is not None and verdict.reason == DEFERRED_BY_RATE_LIMIT:
            self._report.tally(job.name, unit.queue).count("rate_limited")
        if verdict is not None and verdict.action == "defer" and verdict.reason:
            self._report.report_deferred(job.name, verdict.seconds, verdict.reason)
        entry = job.entry(changes, TRANSIENT_KEYS)
        return decide(Facts(ending=Ending.NOT_ADMITTED, now=now, raw=unit.payload, entry=entry, verdict=verdict))

    def _yielded(self, job: ReadJob) -> Outcome:
        unit, now, is_stopping = job.unit, self._runtime.clock.now(), self._stopping.is_set()
        keys = TRANSIENT_KEYS + DEFERRAL_KEYS
        entry = None if is_stopping else job.entry({}, keys)
        return decide(Facts(ending=Ending.YIELDED, now=now, raw=unit.payload, entry=entry, is_stopping=is_stopping))

    def _failed(self, run: JobRun, job: ReadJob, raised: BaseException) -> Outcome:
        unit, definition = job.unit, job.definition
        error = as_exception(raised)
        payload = job.pristine()  # as it came: middleware and the job may have changed theirs
        now = self._runtime.clock.now()
        option = payload.get("retry")
        if option is None and definition is not None:
            option = definition.options["retry"]
        wanted = retry.wanted_backtrace(payload, {} if definition is None else definition.options, raised)
        backtrace = retry.backtrace(raised, wanted, partial(self._trace, run, raised))
        plan = retry.plan(payload, unit.queue, raised, option, self._runtime.config.max_retries, now, backtrace)
        former = DEFERRAL_KEYS if backtrace is not None else (*DEFERRAL_KEYS, BACKTRACE)  # that is of another failure
        facts = Facts(
            ending=Ending.FAILED,
            now=now,
            raw=unit.payload,
            queue=unit.queue,
            entry=job.entry(plan.changes, former),
            error=error,
            plan=plan,
            is_kept=payload.get("dead") is not False,
        )
        told = {key: value for key, value in {**payload, **plan.changes}.items() if key not in former}
        outcome = self._hooks.decide(facts, definition, told, error)
        run.failure = raised
        if not (is_a(raised, RetryError) and isinstance(outcome, Retry)):
            self._setup.notify_error_handlers(error, {"context": "job", "job": payload, "queue": unit.queue})
        return outcome

    def _trace(self, run: JobRun, error: BaseException) -> list[str]:
        run.trace = retry.trace(error)  # which the line of the log shows as well
        return run.trace

    def _interrupted(self, run: JobRun) -> Outcome:
        try:
            job = self._reader.identify(run)
        except MalformedPayload as error:
            return self._bury_unreadable(run.unit, error)
        before, definition = job.pristine().get("interrupted_count"), job.definition
        count = (before if type(before) is int and before >= 0 else 0) + 1
        self._count_interrupted(run)
        limit = definition.local.get("max_retries_after_interruption") if definition is not None else None
        limit = self._runtime.config.max_forced_stops if limit is None else limit
        now = self._runtime.clock.now()
        if definition is not None and limit != NO_LIMIT and count >= limit:  # N runs, as for N deaths
            reason = CannotRun(
                f"interrupted {count} times by forced stops, and {definition.name} is given up after {limit}; it does "
                "not run again. Shorten it, or raise Interrupted in it while `current_job().stopping`, and retry it"
            )
            changes = {"interrupted_count": count, "failed_at": now, "retry_count": 0, **retry.describe_error(reason)}
            return self._give_up(job, Ending.FORCED_STOP, reason, changes, now)
        entry = job.entry({"interrupted_count": count})
        return decide(Facts(ending=Ending.FORCED_STOP, now=now, entry=entry))

    def _cut_off(self, run: JobRun, end: Callable[[JobRun], Outcome]) -> Outcome:
        """Return the outcome of a unit that still runs: as `end` says, unless its job was cancelled."""
        outcome = end(run)
        if run.job is None or run.context is None or not run.context.cancelled:
            return outcome
        return self._of_cancelled(run, run.job, outcome)

    def _of_cancelled(self, run: JobRun, job: ReadJob, outcome: Outcome) -> Outcome:
        """Return the outcome of a job that was cancelled while it ran: it does not run again."""
        return self._dropped(run, job) if isinstance(outcome, Retry | Deferred | Interrupted) else outcome

    def _dropped(self, run: JobRun, job: ReadJob) -> Outcome:
        """Return Dropped for a job that was cancelled while it ran."""
        by = CANCELLATIONS.name if run.context is None else run.context.cancelled_by
        now, verdict = self._runtime.clock.now(), BeginVerdict("drop", reason=by)
        entry = job.entry(refusal({}, verdict), TRANSIENT_KEYS)
        self._report.emit("job_dropped", reason=verdict.reason)
        return decide(Facts(ending=Ending.NOT_ADMITTED, now=now, raw=job.unit.payload, entry=entry, verdict=verdict))

    def _count_interrupted(self, run: JobRun) -> None:
        assert run.context is not None, "it is identified"
        self._report.tally_of_stop(run.context.name, run.unit.queue).count("interrupted")

    def _give_up(
        self,
        job: ReadJob,
        ending: Ending,
        error: CannotRun,
        changes: Mapping[str, JSON],
        now: float,
        *,
        is_told: bool = True,
    ) -> Outcome:
        """Return the outcome of a job that will not run again, without a failed run.  is_told: hooks are called."""
        payload = job.pristine()
        facts = Facts(
            ending=ending,
            now=now,
            raw=job.unit.payload,
            queue=job.unit.queue,
            entry=job.entry(changes),
            error=error,
            is_kept=payload.get("dead") is not False,
        )
        if not is_told:
            return decide(facts)
        return self._hooks.decide(facts, job.definition, {**payload, **changes}, error)

    def _without_report(self, run: JobRun, error: BaseException) -> Outcome:
        """Return the outcome of a unit whose report failed, or before it the search for its outcome."""
        if run.outcome is None:
            if run.has_begun or not is_a(error, MemoryError):
                return self._bury_undecidable(run, error)
            self._stopping.wait(MEMORY_PAUSE_SECONDS)
            return REQUEUE
        with suppress(Exception):  # there may be no memory: this is one more line that cannot be written
            self._setup.notify_error_handlers(as_exception(error), {"context": "report of a job"})
        return run.outcome  # a job that is done must not run again

    def _bury_undecidable(self, run: JobRun, error: BaseException) -> Outcome:
        """Return Dead, bytes kept, for a unit whose outcome could not be found: it must not take the thread with it."""
        unit, now, reason = run.unit, self._runtime.clock.now(), as_exception(error)
        self._report.log_failed("cannot conclude, buried", error)
        return decide(Facts(ending=Ending.UNDECIDABLE, now=now, raw=unit.payload, queue=unit.queue, error=reason))


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
