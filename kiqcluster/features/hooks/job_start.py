"""JobStart: the start of a run, as `on_start` of features gets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kiqcluster.application.registry import Definition
from kiqcluster.process.job_context import JobContext

__all__ = ["JobStart"]


@dataclass(slots=True)  # a frozen one takes a microsecond longer to make
class JobStart:
    """A run that nothing keeps from running any more."""

    context: JobContext
    """What the job sees of itself."""
    definition: Definition
    token: str
    """Of the unit."""
    monotonic: Callable[[], float]
    """The worker's clock."""
    on_limit: Callable[[str, float], None]
    """Tells the supervisor for how many seconds the unit of a token may run."""
