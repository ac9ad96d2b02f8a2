"""Execution: a unit goes in, an outcome comes out.  It never raises, and writes nothing.

Runs in: processor threads.
1. read        bytes → payload; what is no job is wrapped for the dead set; what was reserved long ago is put back
2. resolve     name → definition; an unknown one is deferred, for a rolling deploy may bring it
3. run         server middleware around perform, within the job's context
4. conclude    return or error → outcome, by retry.py and the job's hooks

The bytes of a unit are the truth: what is written back is those bytes with some keys replaced.
Counterpart: sidekiq processor.rb dispatch and job_retry.rb.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import replace
from typing import Any

from kiqcluster.errors import CannotRun, Interrupted, MalformedPayload, MisfitArguments, UnknownJob
from kiqcluster.ipc import forks
from kiqcluster.ipc.forks import Forks, children_end_here, end_if_forked
from kiqcluster.job import DISCARD, KILL
from kiqcluster.process.metrics import BRIEF, DEFERRED, DROPPED, JobMetrics, Tallies, Tally
from kiqcluster.process.runtime import CURRENT_JOB, JobContext, Run, Runtime
from kiqcluster.registry import Definition, Registry
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Effect, Outcome, Requeue, Retry
from kiqcluster.sidekiq.outcome import Interrupted as InterruptedOutcome
from kiqcluster.sidekiq.payload import INVALID_PAYLOAD, Payload, presentable, read, seconds, unwrap, wrap
from kiqcluster.store.engine import Unit
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from kiqcluster.worker.run import retry

__all__ = ["UNREGISTERED", "Execution"]

DEFERRAL = 30.0  # seconds until a job of an unknown class is looked at again
MOST_DEFERRALS = 10  # then it fails the normal way
YIELD_DELAY = 1.0  # seconds that a job waits which raised Interrupted although nothing stops
UNREGISTERED = "(unknown)"  # label of jobs whose class is not registered here
TRANSIENT_KEYS = ("at", "enqueued_at")  # that entries of the schedule set do not have
DONE = Done()
REQUEUE = Requeue()
SayDone = Callable[[Payload, str, str, float], None]  # payload, class, queue, seconds that it ran
OUTCOME_WORDS = {Retry: "failed, will be retried", Dead: "failed, buried", Discard: "failed, discarded"}


class Execution:
    """Runs units for one processor; one per thread, so its tallies have one writer."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        metrics: JobMetrics,
        stopping: threading.Event,
        say_done: SayDone | None = None,
        is_fenced: Callable[[str], bool] = lambda _identity: False,
    ) -> None:
        """say_done: says job_done, instead of an event; called within the job's context.

        is_fenced: returns whether others may run what is held under an identity; asked by jobs.
        """
        self._runtime = runtime
        self._clock = runtime.clock
        self._setup = runtime.setup
        self._registry = registry
        self._stopping = stopping
        self._stale = min(STALE_UNIT_SECONDS, runtime.config.recover_after / 2)  # far below what others wait for
        self._metrics = metrics
        self._tallies = metrics.tallies()
        self._is_fenced = is_fenced
        self._say_done = (say_done or self._emit_done) if runtime.events.is_heard("job_done") else None
        self.seconds = 0.0  # that the last run took
        self._cpu = 0.0  # this thread's CPU seconds, as last read
        self._cpu_due = 0.0  # when that is too old to begin a run with
        self._failure: BaseException | None = None  # of the run at hand, until it is said
        # What links want written with the run's outcome, whatever that is; each run has a list of its own.
        self._effects: list[Effect] = []
        forks.watch()

    def execute(self, unit: Unit) -> Outcome:
        """Run a unit and return what became of it."""
        try:
            outcome = copy_context().run(self._execute, unit)
        except BaseException as error:  # noqa: BLE001  # a hook that raises what is no error, a payload nobody thought of
            outcome = self._bury_unsettled(unit, error)
        if self._effects:
            outcome = replace(outcome, effects=(*outcome.effects, *self._effects))
            self._effects = []
        return outcome

    def _execute(self, unit: Unit) -> Outcome:
        try:
            payload = self._read(unit)
        except MalformedPayload as error:
            return self._bury_unreadable(unit, error)
        started = self._clock.monotonic()
        if started > unit.reserved_at + self._stale:  # this process was frozen: others may run it by now
            return REQUEUE
        name, definition = self._registry.find(payload)
        if unit.deaths and unit.deaths >= self._deaths_allowed(definition):
            return self._bury_killer(unit, payload, name, definition)
        if started >= self._cpu_due:
            self._cpu, self._cpu_due = self._clock.cpu(), started + BRIEF
        CURRENT_JOB.set(JobContext(payload, unit.queue, name, self._stopping, unit.identity, self._is_fenced))
        outcome = self._unknown(unit, payload, name) if definition is None else self._run(unit, payload, definition)
        self.seconds = self._clock.monotonic() - started
        self._conclude(unit, name, payload, outcome)
        return outcome

    def _deaths_allowed(self, definition: Definition | None) -> int:
        limit = None if definition is None else definition.local.get("max_retries_after_interruption")
        return self._runtime.config.max_retries_after_interruption if limit is None else int(limit)

    def _bury_killer(self, unit: Unit, payload: Payload, name: str, definition: Definition | None) -> Outcome:
        """Return Dead for a job that has killed as many processes as it may, without running it."""
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
        self._say_failed("killed its processes, buried", error)
        self._tally(name, unit.queue).add(Dead(b"", now), 0.0, None, was_retried=False)
        self._setup.notify_error_handlers(error, {"context": "job", "job": payload, "queue": unit.queue})
        return self._exhausted(unit, payload, definition, error, changes, now)

    def interrupt(self, unit: Unit) -> Outcome:
        """Return the outcome of the unit that still runs when the process must go, with its run's effects.

        Called by the main thread; the run itself goes on and is not heard any more.
        """
        return replace(self._interrupted(unit), effects=tuple(self._effects))

    def _interrupted(self, unit: Unit) -> Outcome:
        try:
            payload = read(unit.payload)
        except MalformedPayload as error:
            return self._bury_unreadable(unit, error)
        before = payload.get("interrupted_count")
        count = (before if type(before) is int and before >= 0 else 0) + 1
        name, definition = self._registry.find(payload)
        # The processor may be counting at this moment, and each tally has one writer.
        self._tally(name, unit.queue, self._metrics.tallies()).count("interrupted")
        limit = definition.local.get("max_retries_after_interruption") if definition is not None else None
        limit = self._runtime.config.max_forced_stops if limit is None else limit
        now = self._clock.now()
        if definition is not None and count > limit:
            reason = CannotRun(f"interrupted {count} times by forced stops; {definition.name} allows {limit}")
            changes = {"interrupted_count": count, "failed_at": now, "retry_count": 0, **retry.describe_error(reason)}
            return self._exhausted(unit, payload, definition, reason, changes, now)
        return InterruptedOutcome(ruby_json.patch(unit.payload, {"interrupted_count": count}))

    # 1. read

    def _read(self, unit: Unit) -> Payload:
        payload = read(unit.payload)
        if payload["class"] == INVALID_PAYLOAD and (kept := unwrap(payload)) is not None:
            unit.payload = kept  # somebody retries an entry of ours that holds bytes which were no job
            payload = read(kept)
        arguments = payload.get("args")
        if arguments is None:
            payload["args"] = []  # Ruby calls perform without arguments
        elif type(arguments) is not list:
            raise MalformedPayload(f"args is of type {type(arguments).__name__}, not a list")
        return payload

    def _bury_unreadable(self, unit: Unit, error: MalformedPayload) -> Outcome:
        """Return Dead for bytes that are no job: as they are if Ruby's pages can show them, else wrapped."""
        now = self._clock.now()
        self._setup.notify_error_handlers(
            error, {"context": "malformed payload", "queue": unit.queue, "payload": unit.payload}
        )
        self._say_failed("cannot run, buried", error)
        try:
            payload = ruby_json.decode(unit.payload)
        except ruby_json.Undecodable:
            payload = None
        if not isinstance(payload, dict):
            return Dead(wrap(unit.payload, unit.queue, error, now), now, counted=False)
        changes = {**retry.describe_error(error), "failed_at": now, "retry_count": 0}
        return Dead(self._entry(unit, changes, now), now, counted=False)

    def _bury_unsettled(self, unit: Unit, error: BaseException) -> Outcome:
        """Return Dead, bytes kept, for a unit whose outcome could not be found: it must not take the thread with it."""
        now = self._clock.now()
        self._failure = None  # said here, with what came of it; it is none of the next unit's
        try:
            reason = _as_exception(error)
            self._say_failed("cannot conclude, buried", error)
        except BaseException:  # noqa: BLE001  # an error may fail whoever looks at it; put back, its job would run for ever
            reason = CannotRun("it has raised an error that cannot be looked at, so what becomes of it cannot be found")
            self._say_failed("cannot conclude, buried", reason)
        return Dead(wrap(unit.payload, unit.queue, reason, now), now)

    # 2. resolve

    def _unknown(self, unit: Unit, payload: Payload, name: str) -> Outcome:
        error = UnknownJob(name, "" if payload["class"] == name else "active_job=True")
        before = payload.get("deferred_count")
        count = (before if type(before) is int and before >= 0 else 0) + 1
        now = self._clock.now()
        changes = {"deferred": True, "deferred_by": "unknown_class", "deferred_count": count}
        if count <= MOST_DEFERRALS and (entry := self._entry_for_ruby(unit, changes, now, TRANSIENT_KEYS)) is not None:
            self._say_failed("deferred", error, detail=f" for {DEFERRAL:.0f} s ({count} of {MOST_DEFERRALS})")
            return Deferred(entry, now + DEFERRAL)
        return self._failed(unit, None, error)

    # 3. run

    def _run(self, unit: Unit, payload: Payload, definition: Definition) -> Outcome:
        generation = Forks.generation
        try:
            arguments = payload["args"]
            if not definition.fewest <= len(arguments) <= definition.most and (misfit := definition.fits(arguments)):
                raise MisfitArguments(misfit)  # noqa: TRY301  # concluded like any error of the job
            instance, perform = definition.prepare()
            if not self._setup.server_middleware.links:
                perform(*arguments)
                if Forks.generation != generation or not Forks.page[0]:
                    end_if_forked(generation)
                return DONE
            return self._run_within(unit, payload, definition, instance, perform)
        except BaseException as error:  # noqa: BLE001  # a job may raise anything, sys.exit included; no thread dies of it
            end_if_forked(generation, error)
            if _was_interrupted(error):
                return self._yielded(unit)
            return self._failed(unit, definition, error)

    def _run_within(
        self, unit: Unit, payload: Payload, definition: Definition, instance: object, perform: Callable[..., Any]
    ) -> Outcome:
        """Run a job inside the server middleware."""
        has_run, generation = False, Forks.generation

        def last() -> Outcome | None:
            nonlocal has_run
            end_if_forked(generation)  # a link's child goes on into the job
            has_run = True
            try:
                perform(*payload["args"])
            except BaseException as error:
                end_if_forked(generation, error)
                raise
            end_if_forked(generation)
            return None

        self._effects = []  # whoever keeps the list of an earlier run adds nothing to this one's
        run = Run(payload, unit.queue, definition, instance, self._effects, unit.identity, unit.token)
        outcome = self._setup.server_middleware.invoke(run, last)
        end_if_forked(generation)
        if not has_run:
            self._tally(definition.name, unit.queue).skip(DEFERRED if isinstance(outcome, Deferred) else DROPPED)
        return outcome if isinstance(outcome, Outcome) else DONE

    # 4. conclude

    def _yielded(self, unit: Unit) -> Outcome:
        now = self._clock.now()
        if self._stopping.is_set() or (entry := self._entry_for_ruby(unit, {}, now, TRANSIENT_KEYS)) is None:
            return InterruptedOutcome(unit.payload)
        return Deferred(entry, now + YIELD_DELAY)  # nothing stops: in the queue it would come back at once, for ever

    def _failed(self, unit: Unit, definition: Definition | None, raised: BaseException) -> Outcome:
        error = raised if isinstance(raised, Exception) else _as_exception(raised)
        payload = self._read(unit)  # as it came: middleware and the job may have changed theirs
        now = self._clock.now()
        option = payload.get("retry")
        if option is None and definition is not None:
            option = definition.options["retry"]
        plan = retry.plan(payload, unit.queue, raised, option, self._runtime.config.max_retries, now)
        outcome = self._concluded(unit, payload, definition, error, plan, now)
        self._failure = raised
        self._setup.notify_error_handlers(error, {"context": "job", "job": payload, "queue": unit.queue})
        return outcome

    def _concluded(
        self,
        unit: Unit,
        payload: Payload,
        definition: Definition | None,
        error: Exception,
        plan: retry.Plan,
        now: float,
    ) -> Outcome:
        if not plan.wanted:
            if isinstance(error, CannotRun):  # it never ran: nobody has decided that it may be forgotten
                return self._exhausted(unit, payload, definition, error, plan.changes, now)
            self._setup.notify_death_handlers({**payload, **plan.changes}, error)
            return Discard()
        # Ruby's poller would pop an entry that it cannot enqueue from our retry set, and drop it.
        if plan.exhausted or (entry := self._entry_for_ruby(unit, plan.changes, now)) is None:
            return self._exhausted(unit, payload, definition, error, plan.changes, now)
        answer = self._ask(definition.retry_in, plan.count, error, {**payload, **plan.changes}) if definition else None
        if answer is DISCARD:
            self._setup.notify_death_handlers({**payload, **plan.changes}, error)
            return Discard()
        if answer is KILL:
            return self._exhausted(unit, payload, definition, error, plan.changes, now)
        at = now + retry.delay(answer, plan.count, self._runtime.rng)
        return Retry(entry, at)

    def _exhausted(
        self, unit: Unit, payload: Payload, definition: Definition | None, error: Exception, changes: Any, now: float
    ) -> Outcome:
        """Tell the job and the death handlers that it will not run again; bury it unless it says no."""
        told = {**payload, **changes}
        answer = self._ask(definition.retries_exhausted, told, error) if definition else None
        # Before the outcome is written: after a crash in between they are told again, which beats never.
        self._setup.notify_death_handlers(told, error)
        if payload.get("dead") is False or answer is DISCARD:
            return Discard()
        entry = self._entry_for_ruby(unit, changes, now)
        return Dead(wrap(unit.payload, unit.queue, error, now) if entry is None else entry, now)

    def _ask(self, hook: Any, *facts: Any) -> Any:
        """Return a hook's answer; one that fails is reported and counts as no answer, as in Sidekiq."""
        if hook is None:
            return None
        try:
            with children_end_here():
                return hook(*facts)
        except BaseException as raised:  # noqa: BLE001  # the application's code; the job's end is decided without it
            error = raised if isinstance(raised, Exception) else _as_exception(raised)
            self._setup.notify_error_handlers(error, {"context": f"hook {getattr(hook, '__name__', hook)!s}"})
            return None

    def _entry(self, unit: Unit, changes: Any, now: float, without: tuple[str, ...] = ()) -> bytes:
        """Return the unit's bytes with changes, and with what Ruby's pages need mended."""
        mended = presentable({**ruby_json.decode(unit.payload), **changes}, unit.queue, now)
        return ruby_json.patch(unit.payload, {**changes, **mended}, without)

    def _entry_for_ruby(self, unit: Unit, changes: Any, now: float, without: tuple[str, ...] = ()) -> bytes | None:
        """Return the same, or None where Ruby could not read and enqueue it."""
        entry = self._entry(unit, changes, now, without)
        return entry if ruby_json.ruby_reads(entry) else None

    def _conclude(self, unit: Unit, name: str, payload: Payload, outcome: Outcome) -> None:
        """Say and count what became of a unit."""
        elapsed = self.seconds
        if outcome is DONE or type(outcome) is Done:
            if self._say_done is not None:
                self._say_done(payload, name, unit.queue, elapsed)
        elif self._failure is not None:
            failure, self._failure = self._failure, None
            detail = f", in {outcome.at - self._clock.now():.0f} s" if isinstance(outcome, Retry) else ""
            self._say_failed(OUTCOME_WORDS[type(outcome)], failure, elapsed, detail)
        elif type(outcome) is InterruptedOutcome:
            self._runtime.events.emit("job_interrupted", elapsed=elapsed)
        enqueued_at = seconds(payload.get("enqueued_at"))
        waited = None if enqueued_at is None else self._clock.now() - elapsed - enqueued_at
        used = None if elapsed < BRIEF else self._read_cpu(elapsed)
        self._tally(name, unit.queue).add(outcome, elapsed, waited, was_retried="retry_count" in payload, used=used)

    def _read_cpu(self, elapsed: float) -> float:
        """Return the CPU seconds of a run that took `elapsed`, too much by BRIEF at most (docs/metrics.md)."""
        before, self._cpu = self._cpu, self._clock.cpu()
        self._cpu_due = self._clock.monotonic() + BRIEF
        return min(self._cpu - before, elapsed)

    def _emit_done(self, _payload: Payload, _name: str, _queue: str, elapsed: float) -> None:
        self._runtime.events.emit("job_done", elapsed=elapsed)

    def _say_failed(self, outcome: str, error: BaseException, elapsed: float = 0.0, detail: str = "") -> None:
        described = retry.describe_error(error)
        trace = "" if isinstance(error, CannotRun) else retry.trace(error)
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


def _as_exception(raised: BaseException) -> Exception:
    """Return what handlers are told of an error that is no Exception (sys.exit in a job)."""
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
