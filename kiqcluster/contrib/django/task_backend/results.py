"""Results: what Django's tasks framework shows of a task, from the events of its job (features/history).

1. details_of     what the payload of a task keeps beside its arguments: backend, priority, …
2. arguments_of   positional and keyword arguments of a payload
3. rebuilt        the task as it was enqueued, without Django's checks: settings may have changed since
4. result_from    events → TaskResult

| latest event                  | status      |
|-------------------------------|-------------|
| enqueued, failed, put_back    | READY       |
| began                         | RUNNING     |
| ended                         | SUCCESSFUL, or FAILED |

Pure, but for `read_events`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.utils import timezone

from kiqcluster.contrib.django.task_backend.framework import TaskError, TaskResult, TaskResultStatus
from kiqcluster.features.history import decoded, read_history
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store

__all__ = [
    "DETAILS",
    "arguments_of",
    "arguments_with",
    "details_of",
    "due_time",
    "new_result",
    "read_events",
    "rebuilt",
    "result_from",
    "set_fields",
    "time_of",
]

DETAILS = (
    "kiq_django"  # key of a payload: backend, priority, queue, run_after, whether the last argument is the keywords
)

Event = Mapping[str, Any]


# Payloads


def details_of(task: Any, *, keywords: bool, at: float) -> dict[str, Any]:
    """Return what the payload keeps.  at: epoch seconds of the push."""
    due = due_time(task.run_after)
    return {
        "backend": task.backend,
        "queue": task.queue_name,
        "priority": task.priority,
        **({} if due is None else {"run_after": due.timestamp()}),
        **({"keywords": True} if keywords else {}),
        "at": at,
    }


def arguments_with(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a payload: keyword arguments are a dict at the end."""
    return [*args, dict(kwargs)] if kwargs else list(args)


def arguments_of(arguments: Sequence[Any], details: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return positional and keyword arguments."""
    if details.get("keywords") and arguments and isinstance(arguments[-1], dict):
        return list(arguments[:-1]), arguments[-1]
    return list(arguments), {}


def rebuilt(task: Any, details: Mapping[str, Any]) -> Any:
    """Return a task as it was enqueued.  task: as it is declared."""
    run_after = details.get("run_after")
    changed = {
        "backend": str(details.get("backend", task.backend)),
        "queue_name": str(details.get("queue", task.queue_name)),
        "priority": details.get("priority", task.priority),
        "run_after": time_of(run_after) if isinstance(run_after, int | float) else None,
    }
    copy = object.__new__(type(task))
    set_fields(copy, **{**{each.name: getattr(task, each.name) for each in fields(task)}, **changed})
    return copy


def set_fields(frozen: Any, **values: Any) -> None:
    """Set fields of an object that is frozen for others."""
    for name, value in values.items():
        object.__setattr__(frozen, name, value)


# Times


def time_of(seconds: float) -> datetime:
    """Return an epoch second as Django's times are: aware where USE_TZ is True."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at if settings.USE_TZ else timezone.make_naive(at)


def due_time(run_after: datetime | None) -> datetime | None:
    """Return an aware time."""
    if run_after is None or timezone.is_aware(run_after):
        return run_after
    aware: datetime = timezone.make_aware(run_after)
    return aware


# Results


def new_result(
    task: Any, identifier: str, args: Sequence[Any], kwargs: Mapping[str, Any], enqueued_at: float | None = None
) -> Any:
    """Return the result of a task that has not run."""
    return TaskResult(
        task=task,
        id=identifier,
        status=TaskResultStatus.READY,
        enqueued_at=None if enqueued_at is None else time_of(enqueued_at),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=dict(kwargs),
        backend=task.backend,
        errors=[],
        worker_ids=[],
    )


def result_from(declared: Any, identifier: str, events: Sequence[Event]) -> Any:
    """Return the result that events tell of; the first one has the job.  declared: the task."""
    job = events[0]["job"]
    details = job.get(DETAILS) or {}
    args, kwargs = arguments_of(job.get("args", []), details)
    result = new_result(rebuilt(declared, details), identifier, args, kwargs, details.get("at", events[0]["at"]))
    last: Event | None = None
    for event in events[1:]:
        if not (event["event"] == "began" and last is not None and _is_same_run(event, last)):
            _apply(result, event)
        last = event
    return result


def _is_same_run(event: Event, last: Event) -> bool:
    """Return whether a begin is told twice: its answer was lost, and it was asked for again."""
    return last["event"] == "began" and event.get("token") == last.get("token")


def _apply(result: Any, event: Event) -> None:
    at = time_of(event["at"])
    if event["event"] == "began":
        _begin(result, event, at)
        return
    if event["event"] in ("failed", "ended") and not event.get("worker"):  # in the memory of a test nothing begins
        _begin(result, event, at)
    if isinstance(error := event.get("error"), dict):
        told = TaskError(exception_class_path=str(error.get("class")), traceback=str(error.get("traceback")))
        result.errors.append(told)
    if event["event"] != "ended":
        set_fields(result, status=TaskResultStatus.READY)
    elif event.get("state") == "done":
        set_fields(result, status=TaskResultStatus.SUCCESSFUL, finished_at=at, _return_value=event.get("value"))
    else:
        set_fields(result, status=TaskResultStatus.FAILED, finished_at=at)


def _begin(result: Any, event: Event, at: datetime) -> None:
    set_fields(result, status=TaskResultStatus.RUNNING, last_attempted_at=at, finished_at=None)
    if result.started_at is None:
        set_fields(result, started_at=at)
    result.worker_ids.append(str(event.get("worker", "")))


def read_events(setup: Setup, store: Store, identifier: str) -> list[Event]:
    """Return the events of a task, [] where none are kept; those of a test from its memory.  One round trip."""
    memory = setup.delivery
    events = read_history(store, identifier) if memory is None else decoded(memory.kept(store.keys.history(identifier)))
    is_whole = bool(events) and events[0]["event"] == "enqueued" and isinstance(events[0].get("job"), dict)
    return events if is_whole else []
