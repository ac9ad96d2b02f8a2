"""Decision: what becomes of a unit, from what is known of its run.  Pure.

disposition   facts → which of the ways a unit may go; execution.py asks the job's hooks by it
decide        facts → outcome

| a run                                          | becomes                                              |
|------------------------------------------------|------------------------------------------------------|
| returned                                       | the outcome that middleware returned, else Done      |
| did not begin, for the process stood still     | Requeue                                              |
| may not begin, by a begin row                  | Dropped, Deferred or Parked, as the row says         |
| raised Interrupted                             | Interrupted if the process stops, else Deferred      |
| gave way to other jobs of its queue            | Interrupted, to the back of its queue                |
| was cut off by a forced stop                   | Interrupted, until it has had too many of these      |
| has a class that is not registered             | Deferred, until it has had too many of these         |
| is encrypted with a key that is not here       | Deferred, until it has had too many; then Dead       |
| failed, and has attempts left                  | Retry, unless `retry_in` discards or kills           |
| failed for good, or has killed its processes   | Dead, unless its options or `retries_exhausted` say no |
| failed, and its options keep nothing           | Discard; Dead if it could not begin                  |
| is not a job, or has no outcome                | Dead                                                 |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from kiqcluster.errors import CannotRun
from kiqcluster.process.boundary.calls import is_a
from kiqcluster.sidekiq.outcome import (
    DISCARD,
    KILL,
    Dead,
    Deferred,
    Discard,
    Done,
    Dropped,
    Interrupted,
    Outcome,
    Parked,
    Requeue,
    Retry,
)
from kiqcluster.sidekiq.payload import wrap
from kiqcluster.store.engine.units import BeginVerdict
from kiqcluster.worker.run.retry import Plan

__all__ = [
    "DEFERRAL_SECONDS",
    "DONE",
    "REQUEUE",
    "YIELD_SECONDS",
    "Disposition",
    "Ending",
    "Facts",
    "decide",
    "disposition",
]

DEFERRAL_SECONDS = 30.0  # until a job of an unknown class, or with an unknown key, is looked at again
YIELD_SECONDS = 1.0  # that a job waits which raised Interrupted although nothing stops


class Ending(Enum):
    """How the run of a unit ended."""

    RETURNED = auto()
    NOT_STARTED = auto()
    NOT_ADMITTED = auto()  # a begin row is not true, or could not be asked
    YIELDED = auto()  # the job, or middleware, raised Interrupted
    GAVE_WAY = auto()  # an iterable job has had its turn
    FORCED_STOP = auto()  # it still runs, and the process must go
    UNKNOWN_CLASS = auto()
    UNKNOWN_KEY = auto()
    FAILED = auto()
    KILLED_PROCESSES = auto()  # as many as it may; it did not run again
    NOT_A_JOB = auto()
    UNDECIDABLE = auto()  # the search for its outcome failed


class Disposition(Enum):
    """Which way a unit goes."""

    FINISH = auto()
    REQUEUE = auto()
    INTERRUPT = auto()
    DEFER = auto()
    DROP = auto()
    PARK = auto()
    RETRY = auto()
    DISCARD = auto()
    GIVE_UP = auto()  # dead, unless its options or `retries_exhausted` say that nothing is kept
    BURY = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts that decide about a unit.

    now: epoch seconds.  raw: the unit's bytes.  entry: these with what the outcome changes; None where it changes
    nothing, or they are not a job.  returned: by middleware.  is_stopping: the process.  plan: of a failure.
    retry_in, retries_exhausted: what the job's hooks answered; None where none was asked.
    retry_delay: seconds.  verdict: of the begin rows; None where they could not be asked.
    is_kept: False where the job's options say that it is not kept once it is dead.
    """

    ending: Ending
    now: float = 0.0
    raw: bytes = b""
    queue: str = ""
    entry: bytes | None = None
    error: Exception | None = None
    returned: object = None
    is_stopping: bool = False
    plan: Plan | None = None
    retry_in: Any = None
    retries_exhausted: Any = None
    retry_delay: float = 0.0
    is_kept: bool = True
    verdict: BeginVerdict | None = None


def disposition(facts: Facts) -> Disposition:
    """Return which way a unit goes."""
    match facts.ending:
        case Ending.RETURNED:
            return Disposition.FINISH
        case Ending.NOT_STARTED:
            return Disposition.REQUEUE
        case Ending.NOT_ADMITTED:
            return _disposition_of_verdict(facts)
        case Ending.YIELDED:
            # While nothing stops it would come back from its queue at once, for ever.
            return Disposition.INTERRUPT if facts.is_stopping else Disposition.DEFER
        case Ending.GAVE_WAY:
            return Disposition.INTERRUPT
        case Ending.FORCED_STOP:
            return Disposition.INTERRUPT if facts.error is None else Disposition.GIVE_UP
        case Ending.UNKNOWN_CLASS | Ending.UNKNOWN_KEY:
            return Disposition.DEFER
        case Ending.FAILED:
            return _disposition_of_failure(facts)
        case Ending.KILLED_PROCESSES:
            return Disposition.GIVE_UP
        case Ending.NOT_A_JOB | Ending.UNDECIDABLE:
            return Disposition.BURY


def _disposition_of_verdict(facts: Facts) -> Disposition:
    match facts.verdict:
        case None | BeginVerdict(action="lost"):  # Redis is away, or others have it: settle finds out
            return Disposition.REQUEUE
        case BeginVerdict(action="drop"):
            return Disposition.DROP
        case BeginVerdict(action="park"):
            return Disposition.PARK
    return Disposition.DEFER


def _disposition_of_failure(facts: Facts) -> Disposition:
    plan = facts.plan
    assert plan is not None, "a failure has a plan"
    if not plan.wanted:  # a job that could not begin is kept: nobody has decided that it may be forgotten
        return Disposition.GIVE_UP if is_a(facts.error, CannotRun) else Disposition.DISCARD
    if plan.exhausted or facts.retry_in is KILL:
        return Disposition.GIVE_UP
    return Disposition.DISCARD if facts.retry_in is DISCARD else Disposition.RETRY


def decide(facts: Facts) -> Outcome:
    """Return the outcome of a unit."""
    match disposition(facts):
        case Disposition.FINISH:
            return facts.returned if is_a(facts.returned, Outcome) else Done()
        case Disposition.REQUEUE:
            return Requeue()
        case Disposition.INTERRUPT:
            is_forced = facts.ending is Ending.FORCED_STOP and facts.entry is not None
            to_back = facts.ending is Ending.GAVE_WAY and not facts.is_stopping
            return Interrupted(facts.entry if is_forced and facts.entry else facts.raw, to_back)
        case Disposition.DEFER:
            assert facts.entry is not None, "a deferral writes its keys"
            return Deferred(facts.entry, facts.now + _deferral_seconds(facts))
        case Disposition.DROP:
            return Dropped(facts.raw if facts.entry is None else facts.entry, facts.now)
        case Disposition.PARK:
            assert facts.verdict is not None, "a verdict parks"
            assert facts.verdict.row is not None, "by the row that is not true"
            largest, *more = facts.verdict.row.arguments
            limit = None if largest == "" else int(largest)
            return Parked(facts.verdict.row.key, limit, str(more[0]) if len(more) > 1 else "")
        case Disposition.RETRY:
            assert facts.entry is not None, "a failure writes its keys"
            return Retry(facts.entry, facts.now + facts.retry_delay)
        case Disposition.DISCARD:
            return Discard()
        case Disposition.GIVE_UP if not facts.is_kept or facts.retries_exhausted is DISCARD:
            return Discard()
        case Disposition.GIVE_UP | Disposition.BURY:
            return Dead(_dead_entry(facts), facts.now, counted=facts.ending is not Ending.NOT_A_JOB)


def _deferral_seconds(facts: Facts) -> float:
    if facts.verdict is not None:
        return facts.verdict.seconds
    return YIELD_SECONDS if facts.ending is Ending.YIELDED else DEFERRAL_SECONDS


def _dead_entry(facts: Facts) -> bytes:
    if facts.entry is not None:
        return facts.entry
    assert facts.error is not None, "what is buried has a reason"
    return wrap(facts.raw, facts.queue, facts.error, facts.now)


# The hot path's, decided once.
DONE = decide(Facts(ending=Ending.RETURNED))
REQUEUE = decide(Facts(ending=Ending.NOT_STARTED))
