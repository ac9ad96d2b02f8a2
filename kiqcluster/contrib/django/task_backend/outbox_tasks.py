"""Outbox tasks: tasks of Django that are written into the current transaction.

1. outbox_of   `outbox(task)`: the verbs of one task
2. as_rows     the push of a task becomes a row; called by the backend
3. waiting     the events of a task whose row has not been pushed, for its result
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, cast

from kiqcluster.contrib.django.outbox_tables import waiting_row, writer
from kiqcluster.contrib.django.task_backend.framework import Task
from kiqcluster.contrib.django.task_backend.options import OutboxTarget, into_outbox
from kiqcluster.contrib.outbox.rows import ready
from kiqcluster.contrib.outbox.verbs import become_rows
from kiqcluster.errors import MalformedPayload, UsageError
from kiqcluster.features.history import decoded

__all__ = ["OutboxOfTask", "as_rows", "outbox_of", "waiting"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)

NOTE = "note"  # operation of the row that begins a history (features/history)


class OutboxOfTask(Generic[P, R]):
    """The verbs of one task."""

    def __init__(self, task: Any) -> None:
        self._task = task

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Write the task into the caller's transaction; return its result.  Raises as the enqueue of the task."""
        return cast("R", self._task.enqueue(*args, **kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do the same in a coroutine: the row is written in the thread of sync_to_async, where transactions are."""
        return cast("R", await self._task.aenqueue(*args, **kwargs))


def outbox_of(task: Any, alias: str, push_after_commit: bool) -> OutboxOfTask[Any, Any]:
    """Return the verbs of a task.  Raises UsageError for one of another backend."""
    if not isinstance(task, Task):
        raise UsageError(f"outbox takes a job class, a job function, a chain or a task of Django, not {task!r}")
    if not hasattr(task.get_backend(), "job_options"):
        raise UsageError(
            f"outbox takes tasks of kiqcluster's backend, and TASKS[{task.backend!r}] of {task.module_path} is another"
        )
    return OutboxOfTask(into_outbox(task, OutboxTarget(alias, push_after_commit)))


@contextmanager
def as_rows(target: OutboxTarget) -> Iterator[None]:
    """Have the pushes of a block become rows.  Raises UsageError for a database that has no outbox."""
    with become_rows(writer(target.alias, target.push_after_commit)):
        yield


def waiting(alias: str, identifier: str) -> list[Mapping[str, Any]]:
    """Return the events of a task whose row waits in this database, [] if there is none.  Reads all rows that wait."""
    row = waiting_row(alias, identifier)
    if row is None:
        return []
    try:
        guards = ready(row).rows
    except MalformedPayload:
        return []
    notes = [guard.arguments[0] for guard in guards if guard.operation == NOTE]
    return decoded([note for note in notes if isinstance(note, bytes)])
