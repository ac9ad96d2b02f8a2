"""Endings: how runs end.  Each is a value, and its method `outcome` says what becomes of the unit.

| ending            | a run                                        | becomes                                          |
|-------------------|----------------------------------------------|--------------------------------------------------|
| Returned          | returned, or raised NormalFailure            | the outcome that middleware returned, else Done  |
| NotStarted        | did not begin, for want of time or place     | Requeue                                          |
| Refused           | may not begin, by a begin row                | Dropped, Deferred, Parked by the row, or Requeue |
| RanOverLimit      | asked for a rate limit that has no room      | Deferred                                         |
| RaisedInterrupted | raised Interrupted                           | Interrupted if the process stops, else Deferred  |
| GaveWay           | gave way to other jobs of its queue          | Interrupted, to the back of its queue            |
| CutOff            | was cut off by a forced stop                 | Interrupted                                      |
| Cancelled         | was cancelled, and would run again otherwise | Dropped                                          |
| Unresolved        | has a class or a key that is not here yet    | Deferred                                         |
| Raised            | failed, and has attempts left                | Retry, unless `retry_in` discards or kills       |
|                   | failed for good                              | Dead, unless its options or hooks say no         |
|                   | failed, and its options keep nothing         | Discard; Dead if it could not begin              |
| GivenUp           | was cut off too often                        | Dead, unless its options or hooks say no         |
| KilledProcesses   | has killed as many processes as it may       | Dead, unless its options or hooks say no         |
| Unreadable        | is not a job                                 | Dead                                             |
| OutcomeFailed     | has no outcome                               | Dead                                             |

Three functions make the endings that depend on earlier runs of the job: `unresolved`, `ending_of_forced_stop` and
`killed_processes`.  An ending asks the job's hooks and tells death handlers (job_hooks.py), and changes nothing that is
stored.  So its outcome can be asked for again where there was no memory; then hooks and handlers are called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kiqcluster.application.registry import Definition
from kiqcluster.errors import CannotRun, JobTimedOut, MalformedPayload, as_exception
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.process.config import NO_LIMIT
from kiqcluster.sidekiq.backtraces import BACKTRACE
from kiqcluster.sidekiq.outcome import (
    KILL,
    Dead,
    Deferred,
    Discard,
    Done,
    Dropped,
    HookAnswer,
    Interrupted,
    Outcome,
    Parked,
    Requeue,
    Retry,
)
from kiqcluster.sidekiq.payload import TRANSIENT_KEYS, Payload, read_object, wrap
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.store.engine.units import BeginVerdict
from kiqcluster.worker.run import retry
from kiqcluster.worker.run.read_job import DEFERRAL_KEYS, ReadJob, deferral, refusal

__all__ = [
    "DEFERRAL_SECONDS",
    "DONE",
    "INTERRUPTED_DELAY_SECONDS",
    "MAX_DEFERRALS",
    "NOT_STARTED",
    "REQUEUE",
    "RETURNED",
    "Cancelled",
    "CutOff",
    "Ending",
    "GaveWay",
    "GivenUp",
    "Hooks",
    "KilledProcesses",
    "NotStarted",
    "OutcomeFailed",
    "Raised",
    "RaisedInterrupted",
    "RanOverLimit",
    "Refused",
    "Returned",
    "Unreadable",
    "Unresolved",
    "ending_of_forced_stop",
    "hard_timeout",
    "killed_processes",
    "unresolved",
]

DEFERRAL_SECONDS = 30.0  # until a job of an unknown class, or with an unknown key, is looked at again
MAX_DEFERRALS = 10  # of such a job; then it fails the normal way, or is buried
INTERRUPTED_DELAY_SECONDS = 1.0  # that a job waits which raised Interrupted although nothing stops
DONE, REQUEUE = Done(), Requeue()  # the hot path's, made once


class Hooks(Protocol):
    """The hooks of a job that decide, and those that are told at its end (job_hooks.JobHooks)."""

    @property
    def max_retries(self) -> int:
        """The attempts of a job whose options say nothing of them."""
        ...

    def retry_in(
        self, definition: Definition | None, told: Payload, count: int, error: Exception
    ) -> float | HookAnswer:
        """Return the seconds until the next attempt, DISCARD or KILL.  count: failures before this one."""
        ...

    def may_bury(self, definition: Definition | None, told: Payload, error: Exception, *, is_interrupted: bool) -> bool:
        """Return whether a job that does not run again goes to the dead set."""
        ...

    def tell_death_handlers(self, told: Payload, error: Exception) -> None:
        """Tell the death handlers of a job that does not run again."""
        ...


class Ending:
    """How a run ended."""

    __slots__ = ()

    failure: BaseException | None = None
    """The error that ended the run, as features and the log see it."""
    value: Any = None
    """What `perform` returned."""
    was_skipped: bool = False
    """Whether server middleware did not call `perform`."""

    def outcome(self, job: ReadJob, now: float, hooks: Hooks) -> Outcome:
        """Return what becomes of the unit.  now: epoch seconds.  Each ending has its own."""
        raise NotImplementedError(type(self).__name__)


@dataclass(slots=True)
class Returned(Ending):
    """The job ran to its end, or middleware did not let it."""

    value: Any = None
    by_middleware: object = None
    """What middleware returned: an outcome takes the place of Done."""
    was_skipped: bool = False
    failure: BaseException | None = None
    """NormalFailure, where the job has raised it: it is done, and only its batch is told."""

    def outcome(self, _job: ReadJob, _now: float, _hooks: Hooks) -> Outcome:
        return self.by_middleware if is_a(self.by_middleware, Outcome) else DONE


class NotStarted(Ending):
    """Nothing of the job ran, and nothing is written of it."""

    __slots__ = ()

    def outcome(self, _job: ReadJob, _now: float, _hooks: Hooks) -> Outcome:
        return REQUEUE


@dataclass(slots=True)
class Refused(Ending):
    """A begin row is not true.  verdict: None where Redis could not be asked."""

    verdict: BeginVerdict | None

    def outcome(self, job: ReadJob, now: float, _hooks: Hooks) -> Outcome:
        verdict = self.verdict
        if verdict is None or verdict.action == "lost":  # Redis is away, or others have it: settle finds out
            return REQUEUE
        if verdict.action == "park":
            assert verdict.row is not None, "the row that is not true parks"
            largest, *more = verdict.row.arguments
            limit = None if largest == "" else int(largest)
            return Parked(verdict.row.key, limit, str(more[0]) if len(more) > 1 else "")
        entry = job.entry(refusal(job.payload, verdict) if verdict.reason else {}, TRANSIENT_KEYS)
        return Dropped(entry, now) if verdict.action == "drop" else Deferred(entry, now + verdict.seconds)


class RanOverLimit(Refused):
    """The job itself asked for a limit that has no room now."""

    __slots__ = ()


@dataclass(slots=True)
class RaisedInterrupted(Ending):
    """The job, or middleware, raised Interrupted.  is_stopping: the process."""

    is_stopping: bool

    def outcome(self, job: ReadJob, now: float, _hooks: Hooks) -> Outcome:
        if self.is_stopping:
            return Interrupted(job.unit.payload)
        # From its queue it would come back at once, for ever.
        return Deferred(job.entry({}, TRANSIENT_KEYS + DEFERRAL_KEYS), now + INTERRUPTED_DELAY_SECONDS)


@dataclass(slots=True)
class GaveWay(Ending):
    """An iterable job has had its turn.  is_stopping: the process; then the job is the next of its queue."""

    is_stopping: bool

    def outcome(self, job: ReadJob, _now: float, _hooks: Hooks) -> Outcome:
        return Interrupted(job.unit.payload, to_back=not self.is_stopping)


@dataclass(slots=True)
class CutOff(Ending):
    """The job still runs, and the process must go.  count: of such stops with this one; None if it does not count."""

    count: int | None

    def outcome(self, job: ReadJob, _now: float, _hooks: Hooks) -> Outcome:
        return Interrupted(job.unit.payload if self.count is None else job.entry({"interrupted_count": self.count}))


@dataclass(slots=True)
class Cancelled(Ending):
    """Somebody has cancelled the job while it ran.  by: as in `dropped_by`."""

    by: str
    failure: BaseException | None = None
    """The error of a run that has failed as well."""

    def outcome(self, job: ReadJob, now: float, _hooks: Hooks) -> Outcome:
        return Dropped(job.entry(refusal({}, BeginVerdict("drop", reason=self.by)), TRANSIENT_KEYS), now)


@dataclass(slots=True)
class Unresolved(Ending):
    """The job's class or key is not here; a rolling restart may bring it.

    reason: unknown_class or unknown_key.  count: of its deferrals for this reason, with this one.
    """

    error: CannotRun
    reason: str
    count: int

    def outcome(self, job: ReadJob, now: float, _hooks: Hooks) -> Outcome:
        return Deferred(job.entry(deferral(job.payload, self.reason), TRANSIENT_KEYS), now + DEFERRAL_SECONDS)


@dataclass(slots=True)
class Raised(Ending):
    """The job failed."""

    failure: BaseException
    trace: list[str] | None = None
    """The traceback, where the outcome has needed it: the line of the log shows it as well."""
    payload: Payload | None = None
    """The payload as it came, once the outcome is known."""

    def outcome(self, job: ReadJob, now: float, hooks: Hooks) -> Outcome:
        raised, definition, unit = self.failure, job.definition, job.unit
        payload = self.payload = job.pristine()
        options: Mapping[str, JSON] = {} if definition is None else definition.options
        option = payload.get("retry")
        option = options.get("retry") if option is None else option
        wanted = retry.wanted_backtrace(payload, options, raised)
        backtrace = retry.backtrace(raised, wanted, partial(self._trace, raised))
        plan = retry.plan(payload, unit.queue, raised, option, hooks.max_retries, now, backtrace)
        former = DEFERRAL_KEYS if backtrace is not None else (*DEFERRAL_KEYS, BACKTRACE)  # that is of another failure
        entry = job.entry(plan.changes, former)
        told = {key: value for key, value in {**payload, **plan.changes}.items() if key not in former}
        error = as_exception(raised)
        if plan.wanted and not plan.exhausted:
            answer = hooks.retry_in(definition, told, plan.count, error)
            if not isinstance(answer, HookAnswer):
                return Retry(entry, now + answer)
            is_final = answer is KILL
        else:  # a job that could not begin is kept: nobody has decided that it may be forgotten
            is_final = plan.wanted or is_a(error, CannotRun)
        return _ended(job, hooks, now, entry, told, error) if is_final else _forgotten(hooks, told, error)

    def _trace(self, error: BaseException) -> list[str]:
        self.trace = retry.trace(error)
        return self.trace


@dataclass(slots=True)
class GivenUp(Ending):
    """The job does not run again, and its last run has not failed.  count: of its interruptions, or of deaths."""

    error: CannotRun
    count: int
    is_told: bool = True
    """Whether hooks and handlers are called."""

    def outcome(self, job: ReadJob, now: float, hooks: Hooks) -> Outcome:
        changes = {**_of_burial(self.error, now), "interrupted_count": self.count}
        payload, entry = job.pristine(), job.entry(changes)
        if self.is_told:
            return _ended(job, hooks, now, entry, {**payload, **changes}, self.error, is_interrupted=True)
        return Discard() if payload.get("dead") is False else Dead(entry, now)


class KilledProcesses(GivenUp):
    """As many processes died while they ran the job as it may kill; it did not run again."""

    __slots__ = ()


@dataclass(slots=True)
class Unreadable(Ending):
    """The unit's bytes are no job, or its arguments cannot be read."""

    error: MalformedPayload

    def outcome(self, job: ReadJob, now: float, _hooks: Hooks) -> Outcome:
        entry = payload = None
        with suppress(MalformedPayload):
            payload = read_object(job.unit.payload)[1]
        if payload is not None and not {"class", "args"}.intersection(misfits(payload)):
            entry = job.entry(_of_burial(self.error, now), DEFERRAL_KEYS)
        return Dead(_wrapped(job, self.error, now) if entry is None else entry, now, counted=False)


@dataclass(slots=True)
class OutcomeFailed(Ending):
    """The search for the outcome failed; the dead set keeps the bytes, and the thread goes on."""

    error: BaseException

    def outcome(self, job: ReadJob, now: float, _hooks: Hooks) -> Outcome:
        return Dead(_wrapped(job, as_exception(self.error), now), now)


RETURNED, NOT_STARTED = Returned(), NotStarted()


def unresolved(job: ReadJob, reason: str, error: CannotRun) -> Unresolved | None:
    """Return the ending of a job that another release or configuration can run, None if it has waited enough."""
    count = deferral(job.payload, reason)["deferred_count"]
    return Unresolved(error, reason, count) if count <= MAX_DEFERRALS else None


def ending_of_forced_stop(job: ReadJob, max_forced_stops: int) -> Ending:
    """Return the ending of a job that runs while the process must go.

    max_forced_stops: of a class whose options say nothing of them.
    """
    before = job.pristine().get("interrupted_count")
    count = (before if type(before) is int and before >= 0 else 0) + 1
    if job.definition is None:
        return CutOff(count)
    limit = job.definition.local.get("max_retries_after_interruption")
    limit = max_forced_stops if limit is None else limit
    if limit == NO_LIMIT or count < limit:  # N runs, as for N deaths
        return CutOff(count)
    error = CannotRun(
        f"interrupted {count} times by forced stops, and {job.definition.name} is given up after {limit}; it does "
        "not run again. Shorten it, or raise Interrupted in it while `current_job().stopping`, and retry it"
    )
    return GivenUp(error, count)


def killed_processes(job: ReadJob, *, is_told: bool) -> KilledProcesses:
    """Return the ending of a job that has killed as many processes as it may."""
    deaths = job.unit.deaths
    error = CannotRun(
        f"{deaths} processes died while they ran this job; it is not run again. Look at their death reports, "
        "mend the job, and retry it"
    )
    return KilledProcesses(error, deaths, is_told)


def hard_timeout(job: ReadJob) -> JobTimedOut:
    """Return the error of a job whose process was replaced because of its `timeout_hard`."""
    limit = 0.0 if job.definition is None else job.definition.local.get("timeout_hard", 0.0)
    return JobTimedOut(job.name, "timeout_hard", limit)


def _ended(
    job: ReadJob,
    hooks: Hooks,
    now: float,
    entry: bytes,
    told: Payload,
    error: Exception,
    *,
    is_interrupted: bool = False,
) -> Outcome:
    """Return the outcome of a job that will not run again.  told: the payload as it would be written."""
    is_wanted = told.get("dead") is not False  # read first: a hook may change the payload that it is told
    may_bury = hooks.may_bury(job.definition, told, error, is_interrupted=is_interrupted)
    # Before the outcome is written: after a crash in between they are told again, which is better than never.
    hooks.tell_death_handlers(told, error)
    return Dead(entry, now) if may_bury and is_wanted else Discard()


def _forgotten(hooks: Hooks, told: Payload, error: Exception) -> Outcome:
    """Return the outcome of a job of which nothing is kept."""
    hooks.tell_death_handlers(told, error)
    return Discard()


def _of_burial(error: Exception, now: float) -> dict[str, JSON]:
    return {**retry.describe_error(error), "failed_at": now, "retry_count": 0}


def _wrapped(job: ReadJob, error: Exception, now: float) -> bytes:
    return wrap(job.unit.payload, job.unit.queue, error, now)
