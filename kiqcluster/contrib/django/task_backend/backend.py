"""TaskBackend: Django's tasks as jobs of kiqcluster.

TASKS = {"default": {"BACKEND": "kiqcluster.contrib.django.TaskBackend", "QUEUES": [], "OPTIONS": {…}}}

1. validate_task   Django's checks; then the task is registered as a job
2. enqueue         the task → a push of the job, whose class is the path of the function; or a row of an outbox
3. get_result      the events of the job → TaskResult; those of a row that waits have the job as well

What a worker does with it: runner.  What OPTIONS may say: options.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.core import checks
from django.db import transaction

from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.client.draft import Draft
from kiqcluster.client.sending import asend, send
from kiqcluster.contrib.django.checks import check_backend
from kiqcluster.contrib.django.commits import CommitDeferral, is_open, named_by_call
from kiqcluster.contrib.django.install import install
from kiqcluster.contrib.django.task_backend.framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResultDoesNotExist,
    task_enqueued,
)
from kiqcluster.contrib.django.task_backend.json_values import arguments_as_json
from kiqcluster.contrib.django.task_backend.options import (
    KiqTask,
    OutboxTarget,
    options_of_task,
    outbox_of_task,
    queue_for,
    read_options,
)
from kiqcluster.contrib.django.task_backend.results import (
    DETAILS,
    arguments_with,
    details_of,
    due_time,
    new_result,
    read_events,
    result_from,
    set_fields,
    time_of,
)
from kiqcluster.contrib.django.task_backend.runner import register, task_of
from kiqcluster.errors import InvalidPush, JobDefinitionError
from kiqcluster.features.history import HISTORY
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.payload import check_queue_name, new_jid, stamp

__all__ = ["TaskBackend"]

CLOCK = SystemClock()


class TaskBackend(BaseTaskBackend):
    """Django's backend.  Thread-safe: its fields do not change once it is made.

    supports_priority: where OPTIONS has priority_queues.  supports_get_result: unless its result_ttl is 0.
    """

    task_class = KiqTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self.job_options = read_options(alias, self.options)
        self.supports_priority = bool(self.job_options.queues)
        self.supports_get_result = self.job_options.result_ttl > 0
        install()

    # 1. validate

    def validate_task(self, task: Any) -> None:
        """Check a task as Django does, and register its function.  Raises InvalidTask."""
        super().validate_task(task)
        try:
            check_queue_name(queue_for(self.job_options, task.priority, task.queue_name))
            register(task, self.job_options)
            options_of_task(self.job_options, task)
            outbox_of_task(self.job_options, task)
        except (InvalidPush, JobDefinitionError) as error:
            raise InvalidTask(str(error)) from error

    # 2. enqueue

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Push a task; return its result.  Raises InvalidTask, TypeError for arguments that are not JSON, StoreError.

        In a transaction with enqueue_on_commit, it is pushed at the commit, and has no `enqueued_at` before.  With an
        outbox, it is a row of the transaction, and there is no round trip; UsageError, DatabaseError where that fails.
        """
        result, draft, now = self._prepared(task, args, kwargs)
        target = self._target(task)
        with nullcontext() if target is None else outbox_tasks().as_rows(target):
            jid = send(current_setup(), draft)
        if jid is None:  # client middleware has stopped it
            return result
        set_fields(result, id=jid)
        alias = self._awaited(draft.definition, target)
        if alias is None:
            self._tell(result, now)
        else:
            transaction.on_commit(lambda: self._tell(result, now), using=alias)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Do the same in a coroutine, whose event loop goes on meanwhile.

        A push that waits for a commit, and a row, are made in the thread of the transaction, by sync_to_async.
        """
        if self._target(task) is not None or self._may_wait(task):
            return await sync_to_async(self.enqueue, thread_sensitive=True)(task, args, kwargs)
        result, draft, now = self._prepared(task, args, kwargs)
        jid = await asend(current_setup(), draft)
        if jid is not None:
            set_fields(result, id=jid, enqueued_at=time_of(now))
            await task_enqueued.asend(type(self), task_result=result)
        return result

    def _prepared(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Draft, float]:
        """Return the result, the push and the time of a task.  Raises InvalidTask, TypeError."""
        self.validate_task(task)
        if task.func.__module__ == "__main__":
            raise InvalidTask(
                f"{task.module_path} is declared in the program that runs, where no worker finds it; move it into a "
                "module of an installed application"
            )
        definition = register(task, self.job_options)
        result = new_result(task, new_jid(), arguments_as_json(args, "args"), arguments_as_json(kwargs, "kwargs"))
        now = stamp(CLOCK.now())
        wire, _, ttl = options_of_task(self.job_options, task)
        options = {
            "retry": 0,
            "queue": queue_for(self.job_options, task.priority, task.queue_name),
            **wire,
            **({HISTORY: ttl} if ttl else {}),
            DETAILS: details_of(task, keywords=bool(result.kwargs), at=now),
        }
        due = due_time(task.run_after)
        at = None if due is None else due.timestamp()
        arguments = arguments_with(result.args, result.kwargs)
        return result, Draft(definition.name, options, arguments, definition, at, result.id), now

    def _tell(self, result: Any, now: float) -> None:
        set_fields(result, enqueued_at=time_of(now))
        task_enqueued.send(type(self), task_result=result)

    def _target(self, task: Any) -> OutboxTarget | None:
        """Return the outbox of a push, None for none: enqueue_on_commit may name the commit of another database."""
        target, named = outbox_of_task(self.job_options, task), named_by_call()
        return None if target is None or named not in (None, target.alias) else target

    def _awaited(self, definition: Definition | None, target: OutboxTarget | None) -> str | None:
        """Return the alias of the database whose commit the push waits for, None if it is written."""
        deferral = current_setup().deferral
        if target is not None:
            alias: str | None = target.alias
        else:
            alias = deferral.alias(definition) if isinstance(deferral, CommitDeferral) else None
        return alias if alias is not None and is_open(alias) else None

    def _may_wait(self, task: Any) -> bool:
        deferral = current_setup().deferral
        definition = current_registry().get(task.module_path)
        return isinstance(deferral, CommitDeferral) and deferral.alias(definition) is not None

    # 3. results

    def get_result(self, result_id: str) -> Any:
        """Return a task's result.  Raises TaskResultDoesNotExist; NotImplementedError where none are kept; StoreError.

        One round trip.  With the option `outbox`, a task that is not in Redis is looked for there, by one query.
        """
        if not self.supports_get_result:
            return super().get_result(result_id)
        identifier = str(result_id)
        events = self._events(identifier)
        if not events:
            raise TaskResultDoesNotExist(identifier)
        name = str(events[0]["job"].get("class"))
        _, definition = current_registry().find({"class": name, "args": []})
        task = None if definition is None else task_of(definition)
        if task is None:
            raise TaskResultDoesNotExist(f"{identifier}: it is of {name}, and there is no such task here")
        return result_from(task, identifier, events)

    async def aget_result(self, result_id: str) -> Any:
        """Do the same in a coroutine."""
        asks_database = self.job_options.outbox is not None
        return await sync_to_async(self.get_result, thread_sensitive=asks_database)(result_id)

    def _events(self, identifier: str) -> Sequence[Mapping[str, Any]]:
        setup, outbox = current_setup(), self.job_options.outbox
        store = setup.current_store()
        events = read_events(setup, store, identifier)
        if events or outbox is None:
            return events
        # Between the two looks, the row may have been pushed.
        return outbox_tasks().waiting(outbox.alias, identifier) or read_events(setup, store, identifier)

    def check(self, **_: Any) -> Iterable[checks.CheckMessage]:
        """Return what is wrong with the settings of this backend."""
        return check_backend(self)


def outbox_tasks() -> Any:
    """Return the module: it needs models, and tasks may be declared before these are ready."""
    return import_module("kiqcluster.contrib.django.task_backend.outbox_tasks")
