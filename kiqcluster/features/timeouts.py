"""Timeouts: for how long a job may run.

timeout        cooperative: `current_job()` tells the job what is left, and `check_timeout` raises JobTimedOut where the
               job asks.  Nothing is ever raised into a job's thread from outside.
timeout_hard   the process of the job is replaced (supervisor/cluster/job_timeouts), also if the job holds the
               interpreter; the job has failed with JobTimedOut (worker/run/timed_out)

begin          when a unit begins: its limits are put where the job and the supervisor see them
hard_timeout   the error of a job that was ended

Price: no round trip.  A class without both options costs one comparison, a run with them 2 µs.
"""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster.application.registry import Definition
from kiqcluster.errors import JobTimedOut
from kiqcluster.process.job_context import JobContext, TimeLimit

__all__ = ["begin", "hard_timeout"]


def begin(
    context: JobContext,
    definition: Definition,
    monotonic: Callable[[], float],
    on_hard: Callable[[str, float], None],
    token: str = "",
) -> None:
    """Put the limits of a run into force.  on_hard: gets the unit's token and the seconds of `timeout_hard`."""
    seconds = definition.local.get("timeout")
    if seconds is not None:
        context.time_limit = TimeLimit(seconds, monotonic() + seconds, monotonic)
    seconds = definition.local.get("timeout_hard")
    if seconds is not None:
        on_hard(token, seconds)


def hard_timeout(name: str, definition: Definition | None) -> JobTimedOut:
    """Return the error of a job whose process was replaced because of it."""
    limit = 0.0 if definition is None else definition.local.get("timeout_hard", 0.0)
    return JobTimedOut(name, "timeout_hard", limit)
