"""Policies: code of the application that decides before each run whether a job runs, is deferred or is dropped.

    @job(policy=policies.health_signal(is_database_healthy, delay=60))
    def rebuild(index): ...

A policy is a function of the run that returns Defer, Drop, or None to run the job.  A class may have several: the first
one that does not return None decides.
feature_flag      runs while a flag is on, else it is deferred, or dropped
health_signal     runs while something is healthy, else it is deferred
ReplicaReached    waits until a replica of the database has what the caller wrote

A job that is deferred or dropped has not failed: no attempt is counted.  A policy that raises fails the job, as the
job's own code would.
Price: the calls of the policy before each run, and of `position` at each push; no round trip to Redis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Push, Run
from kiqcluster.sidekiq.payload import deferral_count

__all__ = ["Decision", "Defer", "Drop", "Policy", "ReplicaReached", "feature_flag", "health_signal"]

REPLICA_POSITION = "wal_locations"  # in payloads, as GitLab writes it: {"main": position}
DATABASE = "main"
REPLICA_DELAY_SECONDS = 1.0
FLAG_DELAY_SECONDS = 300.0  # GitLab's
HEALTH_DELAY_SECONDS = 5.0  # GitLab's
MAX_DELAY_SECONDS = 10 * 365 * 86_400  # more is taken for a mistake
HEALTH_CHECK_SECONDS = 1.0  # for which an answer holds
WAITS_FOR_REPLICA = "data_consistency"  # in `deferred_by`


@dataclass(frozen=True, slots=True)
class Defer:
    """Run the job later.  seconds: until it is looked at again.  reason: written to `deferred_by`.

    Raises UsageError unless seconds is a number from 0 to 10 years.
    """

    seconds: float
    reason: str = "policy"

    def __post_init__(self) -> None:
        seconds: object = self.seconds
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not (is_number and 0 <= self.seconds < MAX_DELAY_SECONDS):  # which NaN and infinity are not
            raise UsageError(
                f"a job cannot be deferred by {seconds!r} seconds; give a number below 10 years, 0 at least"
            )


@dataclass(frozen=True, slots=True)
class Drop:
    """Do not run the job; it is kept among the dropped jobs.  reason: written to `dropped_by`."""

    reason: str = "policy"


Decision = Defer | Drop | None
Policy = Callable[[Run], Decision]


def feature_flag(is_on: Callable[[str], object], *, delay: float = FLAG_DELAY_SECONDS, drop: bool = False) -> Policy:
    """Return a policy that runs jobs while a flag is on.

    is_on: gets the name of the job, before each run.  delay: seconds.  drop: drop jobs instead while it is off.
    """
    otherwise = Drop("feature_flag") if drop else Defer(delay, "feature_flag")

    def decide(run: Run) -> Decision:
        return None if is_on(run.job.name) else otherwise

    return decide


def health_signal(
    is_healthy: Callable[[], object], *, delay: float = HEALTH_DELAY_SECONDS, check: float = HEALTH_CHECK_SECONDS
) -> Policy:
    """Return a policy that runs jobs while something is healthy.

    is_healthy: asked by each process, and its answer holds for `check` seconds.  delay: seconds.
    """
    asked_at, answer, later = -inf, True, Defer(delay, "health_signal")

    def decide(_run: Run) -> Decision:
        nonlocal asked_at, answer
        now = SystemClock.monotonic()
        if now >= asked_at + check:  # threads may ask at the same time, which does no harm
            asked_at, answer = now, bool(is_healthy())
        return None if answer else later

    return decide


class ReplicaReached:
    """A policy for jobs that read from a replica of the database: they wait until it has what the caller had written.

    position: returns where the primary stands (PostgreSQL: `pg_current_wal_insert_lsn()`); called at each push.
    has_reached: whether the replica stands there, given what `position` returned.
    delay: seconds.  most: how often a job waits; then it runs, and `is_reached` tells it to read from the primary.
    """

    def __init__(
        self,
        position: Callable[[], str],
        has_reached: Callable[[str], object],
        *,
        delay: float = REPLICA_DELAY_SECONDS,
        most: int = 1,
    ) -> None:
        self._position = position
        self._has_reached = has_reached
        self._later = Defer(delay, WAITS_FOR_REPLICA)
        self._most = most

    def on_push(self, push: Push) -> None:
        """Write the position of the primary to the payload; one that is there stays."""
        push.payload.setdefault(REPLICA_POSITION, {DATABASE: self._position()})

    def is_reached(self, run: Run) -> bool:
        """Return whether the replica has what the caller had written; True for a payload that names no position."""
        positions = run.payload.get(REPLICA_POSITION)
        position = positions.get(DATABASE) if isinstance(positions, dict) else None
        return position is None or bool(self._has_reached(position))

    def __call__(self, run: Run) -> Decision:
        if deferral_count(run.payload, WAITS_FOR_REPLICA) >= self._most or self.is_reached(run):
            return None
        return self._later
