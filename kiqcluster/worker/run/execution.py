"""Execution: a unit goes in, an outcome comes out.  It never raises, and writes nothing.

Runs in: processor threads; the main thread (`interrupt`).
1. read        bytes → payload, its arguments decompressed; bytes that are not a job are buried; a unit that was
               reserved long ago is put back
2. resolve     name → definition; an unknown one is deferred, for a rolling deploy may bring it
3. run         begin rows of features, then server middleware around perform, within the job's context
4. conclude    gather the facts, ask the job's hooks, decide (decision.py); tell handlers, log and count
5. end         features see the outcome and add rows to it

Settle writes a unit's bytes back with some keys replaced: compressed arguments stay so, and a job's changes to its own
copy are not written.
Counterpart: sidekiq processor.rb dispatch and job_retry.rb.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from kiqcluster.application.registry import Definition, Registry
from kiqcluster.errors import (
    CannotRun,
    CannotWait,
    Interrupted,
    MalformedPayload,
    MisfitArguments,
    OverLimit,
    PayloadDecompressionError,
    RetryError,
    StoreError,
    UnknownJob,
)
from kiqcluster.features import timeouts
from kiqcluster.features.size_limiter import opened
from kiqcluster.features.stacks import current_stacks
from kiqcluster.features.versions import is_newer
from kiqcluster.ipc import forks
from kiqcluster.ipc.forks import Forks, exit_forked_children, exit_if_forked
from kiqcluster.limits import DEFERRED_BY
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import CURRENT_JOB, JobContext, JobEnd, Run, Runtime
from kiqcluster.process.tallies import DEFERRED, DROPPED, MIN_CPU_MEASURED_SECONDS, Tallies, Tally
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.compression import COMPRESSED, decompressed, is_compressed
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Dropped, Effect, Outcome, Parked, Retry
from kiqcluster.sidekiq.outcome import Interrupted as InterruptedOutcome
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, Payload, lock_of, presentable, read, seconds, unwrap
from kiqcluster.store import is_outage
from kiqcluster.store.engine.units import GO, BeginVerdict, Unit
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from kiqcluster.worker.run import retry
from kiqcluster.worker.run.decision import (
    DEFERRAL_SECONDS,
    DONE,
    REQUEUE,
    Disposition,
    Ending,
    Facts,
    decide,
    disposition,
)
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["MAX_DEFERRALS", "UNREGISTERED", "Execution"]

MAX_DEFERRALS = 10  # of a job of an unknown class; then it fails the normal way
UNREGISTERED = "(unknown)"  # label of jobs whose class is not registered here
TRANSIENT_KEYS = ("at", "enqueued_at")  # that entries of the schedule set do not have
DEFERRAL_KEYS = ("deferred", "deferred_by")  # that a job which has begun does not have any more
LogDone = Callable[[Payload, str, str, float], None]  # payload, class, queue, seconds that it ran
BeginRun = Callable[[Unit, Sequence[Effect]], BeginVerdict]
OUTCOME_WORDS = {Retry: "failed, will be retried", Dead: "failed, buried", Discard: "failed, discarded"}


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
        on_due: Callable[[Retry | Deferred], None] = lambda _outcome: None,
        on_limit: Callable[[str, float], None] = lambda _token, _seconds: None,
    ) -> None:
        """log_done: logs job_done, instead of an event; called within the job's context.

        is_fenced: returns whether others may run what is held under an identity; jobs ask it.
        begin_run: puts a unit's begin rows into force; None where units are run without Redis, and rows not asked for.
        on_due: called with an outcome whose job becomes due again.
        on_limit: told for how many seconds the unit of a token may run (`timeout_hard`).
        """
        self._runtime = runtime
        self._clock = runtime.clock
        self._setup = runtime.setup
        self._registry = registry
        self._stopping = stopping
        # Far below the time after which others may run what this process holds.
        self._stale_seconds = min(STALE_UNIT_SECONDS, runtime.config.recover_after / 2)
        self._metrics = metrics
        self._tallies = metrics.tallies()
        self._stop_tallies: Tallies | None = None
        self._is_fenced = is_fenced
        self._begin_run = begin_run
        self._on_due = on_due
        self._on_limit = on_limit
        self._stacks = current_stacks()
        self._log_done = (log_done or self._emit_done) if runtime.events.is_heard("job_done") else None
        self._cpu = 0.0  # this thread's CPU seconds, as last read
        self._cpu_due = 0.0  # when that is too old to begin a run with
        forks.install()

    def execute(self, run: JobRun) -> Outcome:
        """Run a unit and return what became of it."""
        try:
            outcome = copy_context().run(self._execute, run)
        except BaseException as error:  # noqa: BLE001  # a hook may raise anything, a payload may hold anything
            outcome = self._bury_undecidable(run, error)
        if run.effects or run.features:
            outcome = self._with_effects(run, outcome)
        return outcome

    def interrupt(self, run: JobRun) -> Outcome:
        """Return the outcome of a unit that still runs when the process must go, with its run's effects.

        Called by the main thread; the run itself goes on, and its result is ignored.
        """
        return self._with_effects(run, self._interrupted(run))

    def put_back(self, run: JobRun) -> Outcome:
        """Return the same where another job is the reason why the process must go: this does not count."""
        self._identify(run, opened(read(run.unit.payload)))
        self._count_interrupted(run)
        entry = run.unit.payload
        return self._with_effects(run, decide(Facts(ending=Ending.FORCED_STOP, now=self._clock.now(), entry=entry)))

    def time_out(self, run: JobRun) -> Outcome:
        """Return the outcome of a unit that has run for longer than its `timeout_hard`: it has failed.

        Called by the main thread of a process that must go, or for a unit of a process that was killed.
        """
        unit = run.unit
        try:
            payload = self._read(unit)
        except MalformedPayload as error:
            return self._bury_unreadable(unit, error)
        name, definition = self._identify(run, payload)
        reason = timeouts.hard_timeout(name, definition)
        outcome = self._failed(run, definition, reason)
        elapsed = max(0.0, self._clock.now() - run.since)
        self._log_failed(OUTCOME_WORDS[type(outcome)], reason, elapsed)
        if isinstance(outcome, Retry):
            self._on_due(outcome)
        tally = self._tally(name, unit.queue, self._tallies_of_stop())
        tally.add(outcome, elapsed, None, was_retried="retry_count" in payload)
        tally.count("timed_out")
        return self._with_effects(run, outcome)

    def _execute(self, run: JobRun) -> Outcome:
        unit = run.unit
        try:
            payload = self._read(unit)
        except MalformedPayload as error:
            return self._bury_unreadable(unit, error)
        name, definition = self._registry.find(payload)
        run.context = JobContext(payload, unit.queue, name, self._stopping, unit.identity, self._is_fenced)
        run.features = self._stacks.server_of(definition, payload)
        started = self._clock.monotonic()
        if started > unit.reserved_at + self._stale_seconds:  # this process was frozen: others may run it by now
            return REQUEUE
        if unit.deaths and unit.deaths >= self._deaths_allowed(definition):
            return self._bury_killer(unit, payload, name, definition)
        if started >= self._cpu_due:
            self._cpu, self._cpu_due = self._clock.cpu(), started + MIN_CPU_MEASURED_SECONDS
        CURRENT_JOB.set(run.context)
        outcome = self._unknown(run, payload, name) if definition is None else self._run(run, payload, definition)
        run.seconds = self._clock.monotonic() - started
        self._conclude(run, name, payload, outcome)
        return outcome

    def _deaths_allowed(self, definition: Definition | None) -> int:
        limit = None if definition is None else definition.local.get("max_retries_after_interruption")
        return self._runtime.config.max_retries_after_interruption if limit is None else int(limit)

    # 1. read

    def _read(self, unit: Unit) -> Payload:
        payload = read(unit.payload)
        if payload["class"] == INVALID_PAYLOAD and (kept := unwrap(payload)) is not None:
            unit.payload = kept  # an entry of ours that holds bytes which were not a job, and that is retried by hand
            payload = read(kept)
        if COMPRESSED in payload and is_compressed(payload):
            payload = decompressed(payload)
        arguments = payload.get("args")
        if arguments is None:
            payload["args"] = []  # Ruby calls perform without arguments
        elif type(arguments) is not list:
            raise MalformedPayload(f"args is of type {type(arguments).__name__}, not a list")
        return payload

    def _bury_unreadable(self, unit: Unit, error: MalformedPayload) -> Outcome:
        """Return Dead for bytes that are not a job: as they are if Ruby's pages can show them, else wrapped."""
        now = self._clock.now()
        self._setup.notify_error_handlers(
            error, {"context": "malformed payload", "queue": unit.queue, "payload": unit.payload}
        )
        self._log_failed("cannot run, buried", error)
        try:
            payload = ruby_json.decode(unit.payload)
        except ruby_json.Undecodable:
            payload = None
        entry = None
        if isinstance(payload, dict):
            entry = self._entry(unit, {**retry.describe_error(error), "failed_at": now, "retry_count": 0}, now)
        if isinstance(error, PayloadDecompressionError):
            self._tally(self._registry.find(read(unit.payload))[0], unit.queue).count("dead")
        outcome = decide(
            Facts(ending=Ending.NOT_A_JOB, now=now, raw=unit.payload, queue=unit.queue, entry=entry, error=error)
        )
        lock = lock_of(payload) if isinstance(payload, dict) else None
        if lock is None:
            return outcome
        name, jid = lock  # no feature is asked about what is not a job
        return replace(
            outcome, effects=(*outcome.effects, Effect("clear", self._runtime.store.keys.lock(name), (jid,)))
        )

    def _bury_killer(self, unit: Unit, payload: Payload, name: str, definition: Definition | None) -> Outcome:
        """Return the outcome of a job that has killed as many processes as it may, without running it."""
        now = self._clock.now()
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
        self._log_failed("killed its processes, buried", error)
        self._tally(name, unit.queue).add(Dead(b"", now), 0.0, None, was_retried=False)
        self._setup.notify_error_handlers(error, {"context": "job", "job": payload, "queue": unit.queue})
        return self._give_up(unit, payload, definition, Ending.KILLED_PROCESSES, error, changes, now)

    # 2. resolve

    def _unknown(self, run: JobRun, payload: Payload, name: str) -> Outcome:
        unit = run.unit
        error = UnknownJob(name, "" if payload["class"] == name else "active_job=True")
        changes = _deferral(payload, "unknown_class")
        count, now = changes["deferred_count"], self._clock.now()
        if count <= MAX_DEFERRALS and (entry := self._entry_for_ruby(unit, changes, now, TRANSIENT_KEYS)) is not None:
            detail = f" for {DEFERRAL_SECONDS:.0f} s ({count} of {MAX_DEFERRALS})"
            self._log_failed("deferred", error, detail=detail)
            return decide(Facts(ending=Ending.UNKNOWN_CLASS, now=now, entry=entry))
        return self._failed(run, None, error)

    # 3. run

    def _run(self, run: JobRun, payload: Payload, definition: Definition) -> Outcome:
        generation = Forks.generation
        try:
            arguments = payload["args"]
            is_misfit = not definition.fewest <= len(arguments) <= definition.most
            if is_misfit and not is_newer(payload, definition) and (misfit := definition.fits(arguments)):
                raise MisfitArguments(misfit)  # noqa: TRY301  # concluded like any error of the job
            if run.features and (refused := self._not_admitted(run, payload, definition)) is not None:
                return refused
            if definition.has_timeout and run.context is not None:
                token = run.unit.token
                timeouts.begin(run.context, definition, self._clock.monotonic, lambda each: self._on_limit(token, each))
            instance, perform = definition.prepare()
            if not self._setup.server_middleware.stack:
                perform(*arguments)
                if Forks.generation != generation or not Forks.page[0]:
                    exit_if_forked(generation)
                return DONE
            return self._run_within(run, payload, definition, instance, perform)
        except BaseException as error:  # noqa: BLE001  # a job may raise anything, sys.exit included; no thread dies of it
            exit_if_forked(generation, error)
            if _was_interrupted(error):
                return self._yielded(run, definition)
            if isinstance(error, OverLimit):
                return self._deferred(
                    run, payload, definition, BeginVerdict("defer", error.seconds, reason=DEFERRED_BY)
                )
            return self._failed(run, definition, error)

    def _not_admitted(self, run: JobRun, payload: Payload, definition: Definition) -> Outcome | None:
        """Return what becomes of a unit that may not begin, by the begin rows of features; None if it may."""
        unit = run.unit
        keys = self._runtime.store.keys
        verdict = self._verdict(run, Run(payload, unit.queue, definition, None, [], unit.identity, unit.token, keys))
        if verdict is not None and verdict.action == "go":
            is_stale = self._clock.monotonic() > unit.reserved_at + self._stale_seconds
            return REQUEUE if is_stale else None  # it may have stood still since the answer, as above
        outcome = self._deferred(run, payload, definition, verdict)
        if isinstance(outcome, Dropped) and verdict is not None:
            self._runtime.events.emit("job_dropped", reason=verdict.reason)
        tally = self._tally(definition.name, unit.queue)
        if isinstance(outcome, Parked):
            tally.count("parked")
        elif isinstance(outcome, Dropped | Deferred):
            tally.skip(DROPPED if isinstance(outcome, Dropped) else DEFERRED)
        return outcome

    def _verdict(self, run: JobRun, seen: Run) -> BeginVerdict | None:
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
            self._notify(error, "begin rows")
            return BeginVerdict("defer", DEFERRAL_SECONDS)  # the next try would be refused as well: not at once
        if verdict.row is not None:
            place = next(index for index, row in enumerate(rows) if row is verdict.row)
            return replace(verdict, reason=names[place])
        return verdict

    def _run_within(
        self, run: JobRun, payload: Payload, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> Outcome:
        """Run a job inside the server middleware."""
        unit, has_run, generation = run.unit, False, Forks.generation

        def last() -> Outcome | None:
            nonlocal has_run
            exit_if_forked(generation)  # a child that middleware forked off has come to the job
            has_run = True
            try:
                perform(*payload["args"])
            except BaseException as error:
                exit_if_forked(generation, error)
                raise
            exit_if_forked(generation)
            return None

        run.effects = []
        seen = Run(payload, unit.queue, definition, instance, run.effects, unit.identity, unit.token)
        returned = self._setup.server_middleware.invoke(seen, last)
        exit_if_forked(generation)
        if not has_run:
            self._tally(definition.name, unit.queue).skip(DEFERRED if isinstance(returned, Deferred) else DROPPED)
        return DONE if returned is None else decide(Facts(ending=Ending.RETURNED, returned=returned))

    # 4. conclude

    def _deferred(self, run: JobRun, payload: Payload, definition: Definition, verdict: BeginVerdict | None) -> Outcome:
        """Return the outcome of a unit that may not run now.  verdict: None where Redis could not be asked."""
        unit, now = run.unit, self._clock.now()
        changes = {} if verdict is None or not verdict.reason else _changes(payload, verdict)
        entry = self._entry_for_ruby(unit, changes, now, TRANSIENT_KEYS)
        if entry is None and verdict is not None and verdict.action == "defer":
            return self._failed(run, definition, CannotWait(verdict.reason or "Redis refuses its begin rows"))
        return decide(Facts(ending=Ending.NOT_ADMITTED, now=now, raw=unit.payload, entry=entry, verdict=verdict))

    def _yielded(self, run: JobRun, definition: Definition) -> Outcome:
        unit, now, is_stopping = run.unit, self._clock.now(), self._stopping.is_set()
        entry = None if is_stopping else self._entry_for_ruby(unit, {}, now, TRANSIENT_KEYS + DEFERRAL_KEYS)
        if entry is None and not is_stopping:
            return self._failed(run, definition, CannotWait("it raised Interrupted"))
        return decide(Facts(ending=Ending.YIELDED, now=now, raw=unit.payload, entry=entry, is_stopping=is_stopping))

    def _failed(self, run: JobRun, definition: Definition | None, raised: BaseException) -> Outcome:
        unit = run.unit
        error = raised if isinstance(raised, Exception) else _as_exception(raised)
        payload = self._read(unit)  # as it came: middleware and the job may have changed theirs
        now = self._clock.now()
        option = payload.get("retry")
        if option is None and definition is not None:
            option = definition.options["retry"]
        plan = retry.plan(payload, unit.queue, raised, option, self._runtime.config.max_retries, now)
        facts = Facts(
            ending=Ending.FAILED,
            now=now,
            raw=unit.payload,
            queue=unit.queue,
            entry=self._entry_for_ruby(unit, plan.changes, now, DEFERRAL_KEYS),
            error=error,
            plan=plan,
            is_kept=payload.get("dead") is not False,
        )
        told = {key: value for key, value in {**payload, **plan.changes}.items() if key not in DEFERRAL_KEYS}
        outcome = self._decide(facts, definition, told, error)
        run.failure = raised
        if not (isinstance(raised, RetryError) and isinstance(outcome, Retry)):
            self._setup.notify_error_handlers(error, {"context": "job", "job": payload, "queue": unit.queue})
        return outcome

    def _interrupted(self, run: JobRun) -> Outcome:
        unit = run.unit
        try:
            payload = opened(read(unit.payload))
        except MalformedPayload as error:
            return self._bury_unreadable(unit, error)
        before = payload.get("interrupted_count")
        count = (before if type(before) is int and before >= 0 else 0) + 1
        _, definition = self._identify(run, payload)
        self._count_interrupted(run)
        limit = definition.local.get("max_retries_after_interruption") if definition is not None else None
        limit = self._runtime.config.max_forced_stops if limit is None else limit
        now = self._clock.now()
        if definition is not None and count > limit:
            reason = CannotRun(f"interrupted {count} times by forced stops; {definition.name} allows {limit}")
            changes = {"interrupted_count": count, "failed_at": now, "retry_count": 0, **retry.describe_error(reason)}
            return self._give_up(unit, payload, definition, Ending.FORCED_STOP, reason, changes, now)
        entry = ruby_json.patch(unit.payload, {"interrupted_count": count})
        return decide(Facts(ending=Ending.FORCED_STOP, now=now, entry=entry))

    def _identify(self, run: JobRun, payload: Payload) -> tuple[str, Definition | None]:
        """Return name and definition of a unit that may not have begun; its features see its end."""
        unit = run.unit
        name, definition = self._registry.find(payload)
        if run.context is None:
            run.context = JobContext(payload, unit.queue, name, self._stopping, unit.identity, self._is_fenced)
            run.features = self._stacks.server_of(definition, payload)
        return name, definition

    def _count_interrupted(self, run: JobRun) -> None:
        assert run.context is not None, "it is identified"
        self._tally(run.context.name, run.unit.queue, self._tallies_of_stop()).count("interrupted")

    def _tallies_of_stop(self) -> Tallies:
        """Return what counts units that end here without their thread: it may be counting, and each has one writer."""
        self._stop_tallies = self._metrics.tallies() if self._stop_tallies is None else self._stop_tallies
        return self._stop_tallies

    def _give_up(
        self,
        unit: Unit,
        payload: Payload,
        definition: Definition | None,
        ending: Ending,
        error: CannotRun,
        changes: Any,
        now: float,
    ) -> Outcome:
        """Return the outcome of a job that will not run again, without a failed run."""
        facts = Facts(
            ending=ending,
            now=now,
            raw=unit.payload,
            queue=unit.queue,
            entry=self._entry_for_ruby(unit, changes, now),
            error=error,
            is_kept=payload.get("dead") is not False,
        )
        return self._decide(facts, definition, {**payload, **changes}, error)

    def _bury_undecidable(self, run: JobRun, error: BaseException) -> Outcome:
        """Return Dead, bytes kept, for a unit whose outcome could not be found: it must not take the thread with it."""
        unit, now = run.unit, self._clock.now()
        try:
            reason = _as_exception(error)
            self._log_failed("cannot conclude, buried", error)
        except BaseException:  # noqa: BLE001  # to look at an error may fail; put back, its job would run for ever
            reason = CannotRun("it has raised an error that cannot be looked at, so what becomes of it cannot be found")
            self._log_failed("cannot conclude, buried", reason)
        return decide(Facts(ending=Ending.UNDECIDABLE, now=now, raw=unit.payload, queue=unit.queue, error=reason))

    def _decide(self, facts: Facts, definition: Definition | None, told: Payload, error: Exception) -> Outcome:
        """Ask the job's hooks what they may decide, tell the death handlers of a job that will not run again, decide.

        told: the payload as it would be written.
        """
        if disposition(facts) is Disposition.RETRY and facts.plan is not None:
            count = facts.plan.count
            answer = self._ask(definition.retry_in, count, error, dict(told)) if definition else None
            delay = retry.delay(answer, count, self._runtime.rng)
            facts = replace(facts, retry_in=answer, retry_delay=delay)
        way = disposition(facts)
        if way is Disposition.GIVE_UP and definition is not None:
            facts = replace(facts, retries_exhausted=self._ask(definition.retries_exhausted, told, error))
        if way in (Disposition.GIVE_UP, Disposition.DISCARD):
            # Before the outcome is written: after a crash in between they are told again, which is better than never.
            self._setup.notify_death_handlers(told, error)
        return decide(facts)

    def _ask(self, hook: Any, *facts: Any) -> Any:
        """Return a hook's answer; one that fails is reported and counts as no answer, as in Sidekiq."""
        if hook is None:
            return None
        try:
            with exit_forked_children():
                return hook(*facts)
        except BaseException as raised:  # noqa: BLE001  # the application's code; the job's end is decided without it
            self._notify(raised, f"hook {getattr(hook, '__name__', hook)!s}")
            return None

    def _notify(self, raised: BaseException, context: str) -> None:
        error = raised if isinstance(raised, Exception) else _as_exception(raised)
        self._setup.notify_error_handlers(error, {"context": context})

    def _entry(self, unit: Unit, changes: Any, now: float, without: tuple[str, ...] = ()) -> bytes:
        """Return the unit's bytes with changes, and with the mended keys that Ruby's pages need."""
        mended = presentable({**ruby_json.decode(unit.payload), **changes}, unit.queue, now)
        return ruby_json.patch(unit.payload, {**changes, **mended}, without)

    def _entry_for_ruby(self, unit: Unit, changes: Any, now: float, without: tuple[str, ...] = ()) -> bytes | None:
        """Return the same, or None where Ruby could not read and enqueue it."""
        entry = self._entry(unit, changes, now, without)
        return entry if ruby_json.ruby_reads(entry) else None

    def _conclude(self, run: JobRun, name: str, payload: Payload, outcome: Outcome) -> None:
        """Log and count what became of a unit."""
        elapsed, queue = run.seconds, run.unit.queue
        if outcome is DONE or type(outcome) is Done:
            if self._log_done is not None:
                self._log_done(payload, name, queue, elapsed)
        elif run.failure is not None:
            detail = f", in {outcome.at - self._clock.now():.0f} s" if isinstance(outcome, Retry) else ""
            self._log_failed(OUTCOME_WORDS[type(outcome)], run.failure, elapsed, detail)
        elif type(outcome) is InterruptedOutcome:
            self._runtime.events.emit("job_interrupted", elapsed=elapsed)
        if isinstance(outcome, Retry | Deferred):
            self._on_due(outcome)
        enqueued_at = seconds(payload.get("enqueued_at"))
        waited = None if enqueued_at is None else self._clock.now() - elapsed - enqueued_at
        used = None if elapsed < MIN_CPU_MEASURED_SECONDS else self._read_cpu(elapsed)
        tally = self._tally(name, queue)
        tally.add(outcome, elapsed, waited, was_retried="retry_count" in payload, used=used)
        if run.context is not None and run.context.time_limit is not None and run.context.timed_out:
            tally.count("timed_out")

    def _read_cpu(self, elapsed: float) -> float:
        """Return the CPU seconds of a run that took `elapsed` (docs/metrics.md).

        They are too many by MIN_CPU_MEASURED_SECONDS at most.
        """
        before, self._cpu = self._cpu, self._clock.cpu()
        self._cpu_due = self._clock.monotonic() + MIN_CPU_MEASURED_SECONDS
        return min(self._cpu - before, elapsed)

    def _emit_done(self, _payload: Payload, _name: str, _queue: str, elapsed: float) -> None:
        self._runtime.events.emit("job_done", elapsed=elapsed)

    def _log_failed(self, outcome: str, error: BaseException, elapsed: float = 0.0, detail: str = "") -> None:
        described = retry.describe_error(error)
        trace = "" if isinstance(error, CannotRun | RetryError) else retry.trace(error)
        text = f"{described['error_class']}: {described['error_message']}"
        self._runtime.events.emit(
            "job_failed", outcome=outcome, detail=detail, elapsed=elapsed, error=text, traceback=trace
        )

    def _tally(self, name: str, queue: str, tallies: Tallies | None = None) -> Tally:
        """Return what counts the runs of a job.  tallies: None for those of the processor."""
        tallies = self._tallies if tallies is None else tallies
        tally = tallies.get((name, queue))
        if tally is None:
            # A name that nobody registered may be anything: as a label it would let Redis grow our series without end.
            key = (name if self._registry.get(name) is not None else UNREGISTERED, queue)
            tally = tallies[key] = tallies.get(key) or Tally()
        return tally

    # 5. end

    def _with_effects(self, run: JobRun, outcome: Outcome) -> Outcome:
        """Return the outcome with the rows of server middleware and of features."""
        effects = [*outcome.effects, *(run.effects or ())]
        unit, context = run.unit, run.context
        if context is None:
            return replace(outcome, effects=tuple(effects))
        keys = self._runtime.store.keys
        has_asked = unit.holds or self._begin_run is None
        place = (unit.queue, context.name, unit.identity, unit.token, keys, unit.payload)
        end = JobEnd(outcome, context.payload, *place, has_asked)
        for feature in run.features:
            try:
                with exit_forked_children():
                    added: tuple[Effect, ...] = tuple(feature.on_end(end))
            except BaseException as raised:  # noqa: BLE001  # the outcome is decided, and written without its rows
                with suppress(BaseException):  # an error that escapes would put a job back that has run
                    self._notify(raised, "end of a feature")
            else:
                effects += added
        return replace(outcome, effects=tuple(effects))


def _changes(payload: Payload, verdict: BeginVerdict) -> dict[str, Any]:
    """Return the keys that a job gets which may not begin."""
    if verdict.action == "drop":
        return {"dropped": True, "dropped_by": verdict.reason}
    return _deferral(payload, verdict.reason)


def _deferral(payload: Payload, reason: str) -> dict[str, Any]:
    """Return the keys that a deferred job gets.  reason: the name of the feature, or unknown_class."""
    before = payload.get("deferred_count")
    count = (before if type(before) is int and before >= 0 else 0) + 1
    return {"deferred": True, "deferred_by": reason, "deferred_count": count}


def _as_exception(raised: BaseException) -> Exception:
    """Return an Exception for handlers, of an error that is not one (sys.exit in a job)."""
    wrapped = RuntimeError(f"{type(raised).__name__}: {retry.describe_error(raised)['error_message']}")
    wrapped.__cause__ = raised
    return wrapped


def _was_interrupted(error: BaseException) -> bool:
    """Return whether the job turned our Interrupted into an error of its own."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, Interrupted):
            return True
        seen.add(id(cause))
        cause = retry.cause_of(cause)
    return False
