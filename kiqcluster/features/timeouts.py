"""Timeouts: for how long a job may run.

timeout        cooperative: `current_job()` tells the job what is left, and `check_timeout` raises JobTimedOut where the
               job asks.  Nothing is ever raised into a job's thread from outside.
timeout_hard   the process of the job is replaced (supervisor/cluster/job_timeouts), also if the job holds the
               interpreter; the job has failed with JobTimedOut (worker/run/timed_out)

on_start       when a unit begins: its limits are put where the job and the supervisor see them

Price: no round trip.  A class without both options pays nothing, a run with them 2 µs.
"""

from __future__ import annotations

from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_start import JobStart
from kiqcluster.process.job_context import TimeLimit

__all__ = ["Timeouts"]


class Timeouts:
    """The server half."""

    name = "timeout"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return definition.has_timeout

    def on_start(self, start: JobStart) -> None:
        """Put the limits of a run into force."""
        local = start.definition.local
        seconds = local.get("timeout")
        if seconds is not None:
            start.context.time_limit = TimeLimit(seconds, start.monotonic() + seconds, start.monotonic)
        seconds = local.get("timeout_hard")
        if seconds is not None:
            start.on_limit(start.token, seconds)
