"""Interventions: puts into force what operators have said about jobs, as the heartbeat reads it from Redis.

apply_strikes     strikes (features/strikes)
apply_cancelled   cancelled jobs and batches (features/cancellation): they do not begin, and those that run are told
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kiqcluster.errors import RedisRefused
from kiqcluster.features.cancellation import CANCELLATIONS
from kiqcluster.features.stacks import current_stacks
from kiqcluster.features.strikes import STRIKES
from kiqcluster.process.context.cancel_marks import Marks
from kiqcluster.process.runtime import Runtime

__all__ = ["Interventions"]


class Interventions:
    """cancel_jobs: tells the running jobs that have these marks.  Runs in: the heartbeat's thread."""

    def __init__(self, runtime: Runtime, cancel_jobs: Callable[[Marks], None]) -> None:
        self._runtime = runtime
        self._cancel_jobs = cancel_jobs
        self._refusal = ""  # why nobody can read which jobs are cancelled

    def apply_strikes(self, raw: Mapping[bytes, bytes], why: str) -> None:
        """Use the strikes, id → value; why: these are not all, "" if they are."""
        is_new, errors = STRIKES.apply(raw, why)
        if is_new:
            current_stacks().run.ask_again()
        for error in errors:
            self._runtime.trouble("strikes", error)

    def apply_cancelled(self, jids: Sequence[str], batches: Sequence[str], why: str) -> None:
        """Have these jobs not begin, and tell those that run, also those of these batches.

        why: nobody can read which they are, "" if they can.
        """
        if CANCELLATIONS.apply(jids, batches):
            current_stacks().run.ask_again()
        if CANCELLATIONS.marks:
            self._cancel_jobs(CANCELLATIONS.marks)
        if why and why != self._refusal:
            self._runtime.trouble("cancelled jobs", RedisRefused(why))
        self._refusal = why
