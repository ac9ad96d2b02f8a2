"""Limited capacity: jobs that take their work from somewhere else, a few at a time, until none is left.

class Import(LimitedCapacityJob, queue="imports"):
    def max_running_jobs(self) -> int: ...            how many may run at once, in the whole fleet
    def remaining_work_count(self) -> int: ...        how much work is left
    def perform_work(self) -> None: ...               takes one piece of work, and does it

Import.perform_with_capacity()      starts jobs for what is left, as many as may run; call it from a cron job, say

1. start   one job for each seat, 0 to max_running_jobs - 1, but not more than work is left.  The seat is the first
           argument of the payload, and a seat has one job at most (features/deduplication, until_executed)
2. run     perform_work; if work is left then, the script that ends the job enqueues the next one for its seat
3. end     a job that fails, or finds no work, or whose seat is too many by now, frees its seat

The number of running jobs of all arguments together is limited by features/limits/concurrency_limit.  Nothing polls.
Price: that of both features.  A start is one round trip; a job counts its work twice, and pushes once for its seat.
Counterpart: GitLab's LimitedCapacity::Worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, Protocol, Unpack

from kiqcluster.application.options import JobOptions
from kiqcluster.application.signatures import hides_parameters, signature_of
from kiqcluster.client.client import Client
from kiqcluster.errors import JobDefinitionError
from kiqcluster.job import Enqueuer, Job
from kiqcluster.process.job_context import current_job

__all__ = ["LimitedCapacityJob"]

P = ParamSpec("P")
PAUSED = -1  # as a concurrency limit, whose 0 is none
OWN_OPTIONS = ("concurrency_limit", "concurrency_key", "deduplicate", "deduplicate_key", "reschedule_once")
PARTS = ("max_running_jobs", "remaining_work_count", "perform_work")
SELF = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
SEAT = inspect.Parameter("seat", inspect.Parameter.POSITIONAL_ONLY, annotation=int)


class HasWork(Protocol[P]):
    """A class whose instances have `perform_work`, which gives perform_with_capacity its signature."""

    def perform_work(self, *args: P.args, **kwargs: P.kwargs) -> object: ...


class LimitedCapacityJob(Job, retry=0, deduplicate="until_executed", reschedule_once=True):
    """Base of jobs that work while work is left, a limited number at a time.

    A subclass implements `max_running_jobs()`, `remaining_work_count(*args)` and `perform_work(*args)`.
    """

    def __init_subclass__(
        cls, *, name: str | None = None, namespace: str | None = None, **options: Unpack[JobOptions]
    ) -> None:
        for option in OWN_OPTIONS:
            if option in options:
                raise JobDefinitionError(f"{cls.__qualname__}: {option} has no effect here; use max_running_jobs")
        missing = [part for part in PARTS if not callable(getattr(cls, part, None))]
        if "perform" in vars(cls):
            raise JobDefinitionError(f"{cls.__qualname__}.perform would not be called; call it perform_work")
        if not missing:
            perform = _perform_of(cls)
            setattr(cls, perform.__name__, perform)
            options["concurrency_limit"] = lambda: cls().max_running_jobs() or PAUSED  # type: ignore[attr-defined]
        elif len(missing) < len(PARTS) and "perform_work" not in missing:
            raise JobDefinitionError(f"{cls.__qualname__} lacks {' and '.join(missing)}")
        super().__init_subclass__(name=name, namespace=namespace, **options)

    @classmethod
    def perform_with_capacity(cls: type[HasWork[P]], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Start jobs for the work that is left, as many as may run and do not run or wait already.

        One round trip, and what the counts of the class cost.  Raises InvalidArguments, StoreError.
        """
        enqueuer, instance = _enqueuer(cls), _counts(cls)
        seated = enqueuer.definition.positional((0, *args), kwargs)
        arguments = seated[1:]
        left = instance.remaining_work_count(*enqueuer.definition.values(seated)[1:])
        seats = min(instance.max_running_jobs(), left)
        enqueuer.perform_bulk([[seat, *arguments] for seat in range(seats)])


class Counts(Protocol):
    """The parts of a limited-capacity job."""

    def max_running_jobs(self) -> int: ...
    def remaining_work_count(self, *args: Any) -> int: ...
    def perform_work(self, *args: Any) -> object: ...


def _counts(cls: Callable[[], Any]) -> Counts:
    made: Counts = cls()
    return made


def _enqueuer(cls: Any) -> Enqueuer[Any, Any]:
    definition = getattr(cls, "definition", None)
    if definition is None:
        raise JobDefinitionError(f"{cls.__qualname__} is not a job but a base of jobs; it lacks {', '.join(PARTS)}")
    return Enqueuer(definition, definition.options)


def _perform_of(cls: type[Any]) -> Callable[..., None]:
    """Return the method `perform` of a class: its work, for one seat."""

    def perform(self: Counts, seat: int, *args: Any) -> None:
        if not _has_work(self, seat, args):
            return
        self.perform_work(*args)
        if _has_work(self, seat, args):
            # This job has the seat, so the push is refused.  The script that ends the job enqueues the next one for it.
            enqueuer = _enqueuer(type(self))
            with _where_it_runs(enqueuer.definition.name):
                enqueuer.perform_async(seat, *args)

    of_work = signature_of(cls.perform_work, has_self=True)
    refused = inspect.Parameter.VAR_KEYWORD if hides_parameters(cls.perform_work) else None
    others = [each for each in of_work.parameters.values() if each.kind is not refused]
    if inspect.iscoroutinefunction(cls.perform_work):
        raise JobDefinitionError(f"{cls.__qualname__}.perform_work is async, which workers do not run yet")
    perform.__signature__ = of_work.replace(parameters=[SELF, SEAT, *others])  # type: ignore[attr-defined]
    perform.__wrapped__ = cls.perform_work  # type: ignore[attr-defined]  # where the names in its annotations are known
    return perform


def _where_it_runs(name: str) -> AbstractContextManager[object]:
    """Have pushes go to the shard from which the job of this name was fetched: it has the lock of the seat.

    Outside of workers, and within another job, they go where the class is routed.
    """
    running = current_job()
    if running is None or running.held is None or running.name != name:
        return nullcontext()
    return Client.via(running.held[1])


def _has_work(job: Counts, seat: int, args: Sequence[Any]) -> bool:
    return seat < job.max_running_jobs() and job.remaining_work_count(*args) > 0
