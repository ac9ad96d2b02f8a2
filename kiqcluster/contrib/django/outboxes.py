"""Outbox: `outbox(job).enqueue(…)` writes the job into the current transaction of Django; a task likewise, and all
tasks of a backend with the option `outbox` (task_backend/outbox_tasks).  What happens to the rows: outbox_tables.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from django.db import DEFAULT_DB_ALIAS

from kiqcluster.client.chains import Chain, HasPerform
from kiqcluster.contrib.django.outbox_tables import writer
from kiqcluster.contrib.outbox.verbs import Outbox, OutboxOfJob, enqueuer_of
from kiqcluster.job import Enqueuer

if TYPE_CHECKING:
    from kiqcluster.contrib.django.task_backend.outbox_tasks import OutboxOfTask

__all__ = ["outbox"]

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TASKS = "kiqcluster.contrib.django.task_backend.outbox_tasks"  # only where there is the framework


class AnyTask(Protocol[P, R_co]):
    """A task of Django.  R_co: its result."""

    @property
    def module_path(self) -> str: ...

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@overload
def outbox(job: type[HasPerform[P, R]], *, using: str = ..., push_after_commit: bool = ...) -> OutboxOfJob[P, R]: ...
@overload
def outbox(
    job: Enqueuer[P, R] | Chain[P, R], *, using: str = ..., push_after_commit: bool = ...
) -> OutboxOfJob[P, R]: ...
@overload
def outbox(job: AnyTask[P, R], *, using: str = ..., push_after_commit: bool = ...) -> OutboxOfTask[P, R]: ...
@overload
def outbox(job: None = ..., *, using: str = ..., push_after_commit: bool = ...) -> Outbox: ...
def outbox(job: Any = None, *, using: str = DEFAULT_DB_ALIAS, push_after_commit: bool = True) -> Any:
    """Return the verbs of a job that write into the current transaction: enqueue, perform_in, perform_bulk, ….

    job: a job class or function, also with `.set(…)`, or a chain; None for `push` and `push_bulk` by items; or a task,
    also with `.using(…)`, for `enqueue` and `aenqueue`.  using: alias of the database.  push_after_commit: False leaves
    the push to the relay.  Raises UsageError.
    """
    write = writer(using, push_after_commit)
    if job is None:
        return Outbox(write)
    if not isinstance(job, type) and hasattr(job, "module_path"):
        return import_module(TASKS).outbox_of(job, using, push_after_commit)
    return OutboxOfJob(write, enqueuer_of(job))
