"""Tasks: many jobs with one status; how far each is, which rows failed and why; cancel, close.

/tasks         a row for each task, the youngest first
/tasks/<id>    one task: counts, child tasks, callbacks, and its failed jobs with their arguments and messages
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from werkzeug.exceptions import NotFound

from kiqcluster.api import JobRecord
from kiqcluster.application.argument_filter import HIDDEN_ARGUMENT
from kiqcluster.errors import TaskEnded
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.tasks import Task, TaskEvent, TaskStatus
from kiqcluster.web.context import Context
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Action, Done, Page, Question

__all__ = ["ACTIONS", "PAGES", "progress"]

TASKS_PER_PAGE = 25
FAILURES_PER_PAGE = 25
MAX_SHOWN_CHILDREN = 100
MAX_MESSAGES = 10  # of one job
MAX_REASON_CHARACTERS = 200
NO_ARGUMENTS = "–"  # they are not kept: large, or encrypted
PARTS = (("finish", "good"), ("failed", "warn"), ("error", "bad"), ("working", "a"))  # of a bar, from the left


def show_tasks(context: Context) -> Mapping[str, Any]:
    """Show the tasks.  Three round trips."""
    count, page = Task.count(store=context.store), context.number("page")
    pages = max(1, -(-count // TASKS_PER_PAGE))
    page = min(page, pages)
    found = Task.all((page - 1) * TASKS_PER_PAGE, TASKS_PER_PAGE, store=context.store)
    return {"rows": [_row(each) for each in found], "count": count, "number": page, "pages": pages}


def _row(status: TaskStatus) -> Mapping[str, Any]:
    return {"task": status, "bar": list(progress(status)), "percent": min(100.0, status.percent)}


def progress(status: TaskStatus) -> Iterator[tuple[str, float, float]]:
    """Yield the parts of a task's bar: kind, where it begins, how long it is, both in per cent of all jobs."""
    whole = max(status.total, status.expected if status.is_open else 0)
    start = 0.0
    for name, kind in PARTS:
        length = min(100.0 - start, 100 * getattr(status, name) / whole) if whole else 0.0
        if length > 0:
            yield kind, round(start, 2), round(length, 2)
            start += length


def show_task(context: Context) -> Mapping[str, Any]:
    """Show one task.  Four round trips.  Raises NotFound."""
    task, page = Task.get(context.route["task"], store=context.store), context.number("page")
    status = _status(context, task)
    parts = task.parts((page - 1) * FAILURES_PER_PAGE, FAILURES_PER_PAGE, MAX_SHOWN_CHILDREN)
    children = sorted(parts.children, key=lambda each: (-each.created_at, each.id))
    ended = status.completed_at or (None if status.is_complete else context.clock.now())
    return {
        **_row(status),
        "title": status.name or status.id,
        "callbacks": [
            {"event": event, "queue": queue, "job": JobRecord(payload, queue)}
            for event, (queue, payload) in parts.callbacks.items()
        ],
        "children": [_row(each) for each in children],
        "child_count": parts.child_count,
        "failed": parts.failed,
        "failures": [
            {
                "event": each,
                "arguments": _arguments(context, status, each),
                "messages": _timed_messages(each)[-MAX_MESSAGES:],
                "more": max(0, len(each.messages) - MAX_MESSAGES),
            }
            for each in parts.failures
        ],
        "number": page,
        "pages": max(1, -(-parts.failed // FAILURES_PER_PAGE)),
        "took": max(0.0, ended - status.created_at) if ended is not None and status.created_at else None,
        "max_reason": MAX_REASON_CHARACTERS,
    }


def _status(context: Context, task: Task) -> TaskStatus:
    """Return the status of a task.  Raises NotFound."""
    try:
        return task.status(most_failures=0)
    except TaskEnded as error:
        raise NotFound(context.gettext("There is no such task; it may have expired.")) from error


def _timed_messages(event: TaskEvent) -> list[tuple[float | None, str]]:
    """Return the messages of a job, each with the time at which it was written, None where that was not kept."""
    timed: list[tuple[float | None, str]] = [(each.at, text) for each in event.changes for text in each.messages]
    return [(None, text) for text in event.messages[: len(event.messages) - len(timed)]] + timed


def _arguments(context: Context, status: TaskStatus, event: TaskEvent) -> str:
    """Return the arguments of a job of a task, as those of a job are shown.

    Of a job whose class nobody has kept, numbers only; nothing where the hook of the application decides by the class.
    """
    if not isinstance(event.params, list):
        return NO_ARGUMENTS
    name = status.class_of(event)
    if not name and context.formatter is not None:
        return HIDDEN_ARGUMENT
    payload: dict[str, JSON] = {"class": name or "-", "args": event.params, "jid": event.jid}
    try:
        return context.arguments(JobRecord(ruby_json.encode(payload)))
    except ValueError:  # what no payload can hold
        return NO_ARGUMENTS


# actions


def ask_to_cancel(context: Context) -> Question:
    """Ask, with the count of jobs that have not begun."""
    status = _status(context, Task.get(context.route["task"], store=context.store))
    text = context.ngettext(
        "Cancel the task %(name)s with its child tasks? %(count)s job has not begun, and will be dropped.",
        "Cancel the task %(name)s with its child tasks? %(count)s jobs have not begun, and will be dropped.",
        status.enqueue,
        name=status.name or status.id,
    )
    return Question(text, context.gettext("Cancel the task"), _back(context))


def cancel(context: Context) -> Done:
    """Cancel a task and its child tasks."""
    reason = context.request.form.get("reason", "").strip().replace("\0", "")[:MAX_REASON_CHARACTERS]
    is_cancelled = Task.get(context.route["task"], store=context.store).cancel(reason)
    text = message("The task is cancelled.") if is_cancelled else message("The task was complete already.")
    return Done(context.gettext(text), _back(context), target=context.route["task"], has_failed=not is_cancelled)


def ask_to_close(context: Context) -> Question:
    """Ask about a task to which somebody may still add jobs."""
    status = _status(context, Task.get(context.route["task"], store=context.store))
    text = context.gettext(
        "Close the task %(name)s? It is complete once the jobs that it has now have ended; nobody can add more.",
        name=status.name or status.id,
    )
    return Question(text, context.gettext("Close the task"), _back(context))


def close(context: Context) -> Done:
    """Close a task whose creator died."""
    Task.get(context.route["task"], store=context.store).close()
    return Done(context.gettext("The task is closed."), _back(context), target=context.route["task"])


def _back(context: Context) -> str:
    return context.url("task", task=context.route["task"])


PAGES = (
    Page("tasks", "/tasks", show_tasks, "tasks.html", message("Tasks"), place=78, key="t"),
    Page("task", "/tasks/<name:task>", show_task, "task.html", message("Tasks")),
)
ACTIONS = (
    Action("task_cancel", "/tasks/<name:task>/cancel", cancel, question=ask_to_cancel),
    Action("task_close", "/tasks/<name:task>/close", close, question=ask_to_close),
)
