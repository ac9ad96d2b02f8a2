"""Runner: makes a job of a task, and runs it in a worker.

1. register    a task that Django has checked → its Definition; the name in payloads is the path of its function
2. find        a name that is not registered → the task of that path in a module of an installed application
3. run, arun   the signals task_started and task_finished, the context of a task, what it returns as JSON
4. tell_death  task_finished for a task that has failed and does not run again (a death handler)

Runs in: threads of jobs, and the event loop.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps

from kiqcluster.application.registry import Definition, current_registry
from kiqcluster.contrib.django.task_backend.framework import (
    Task,
    TaskContext,
    TaskError,
    TaskResultStatus,
    task_backends,
    task_finished,
    task_started,
)
from kiqcluster.contrib.django.task_backend.json_values import result_as_json
from kiqcluster.contrib.django.task_backend.options import BackendOptions, options_of_task, queue_for
from kiqcluster.contrib.django.task_backend.results import (
    DETAILS,
    arguments_of,
    new_result,
    read_events,
    rebuilt,
    result_from,
    set_fields,
    time_of,
)
from kiqcluster.errors import StoreError
from kiqcluster.features.history import HISTORY, described_error
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq.outcome import KILL
from kiqcluster.sidekiq.payload import Payload, seconds

__all__ = ["find", "register", "task_of", "tell_death"]

ANY_ARGUMENTS = inspect.Signature([inspect.Parameter("arguments", inspect.Parameter.VAR_POSITIONAL)])
CLOCK = SystemClock()
UNKEPT = "kiqcluster_unkept"  # attribute of an error: the task has done its work, and its result cannot be kept


# Declarations


def register(task: Any, options: BackendOptions) -> Definition:
    """Return the definition of a task; it is registered if its function is not.  Raises JobDefinitionError."""
    registry, name = current_registry(), task.module_path
    known = registry.get(name)
    if known is not None and (found := task_of(known)) is not None and found.func is task.func:
        return known
    wire, local, ttl = options_of_task(options, task)
    queue = queue_for(options, task.priority, task.queue_name)
    is_async = inspect.iscoroutinefunction(task.func)
    definition = Definition(
        name=name,
        queue=queue,
        options={"retry": 0, "queue": queue, **wire, **({HISTORY: ttl} if ttl else {})},
        prepare=partial(_prepare, task, is_async=is_async),
        signature=ANY_ARGUMENTS,
        origin=(task.func.__module__, task.func.__qualname__),
        local={**local, "retry_in": _retry_in},
        declared=frozenset(("queue", *wire, *local)),  # each task has a queue, which the framework gives it
        is_async=is_async,
    )
    registry.add(definition)
    return definition


def task_of(definition: Definition) -> Any | None:
    """Return the task of a definition; None for the one of a job."""
    prepare = definition.prepare
    return prepare.args[0] if isinstance(prepare, partial) and prepare.func is _prepare else None


def find(name: str) -> Definition | None:
    """Return the definition of the task at a path, None where there is none.

    A module is imported only if it belongs to an installed application, and a function runs only if it is declared as a
    task: what a payload names is never called otherwise.  Raises whatever the import raises.
    """
    module, _, attribute = name.rpartition(".")
    if not module or not any(f"{module}.".startswith(f"{config.name}.") for config in apps.get_app_configs()):
        return None
    task = getattr(import_module(module), attribute, None)
    known = current_registry().get(name)  # importing it may have registered it
    if known is not None or not isinstance(task, Task) or task.module_path != name:
        return known
    return register(task, getattr(task.get_backend(), "job_options", BackendOptions()))


def _retry_in(_count: int, error: BaseException, _payload: Payload) -> object:
    """Return KILL where another run would return the same and repeat the work, None for the usual delay."""
    return KILL if getattr(error, UNKEPT, False) else None


def _prepare(task: Any, *, is_async: bool) -> tuple[object, Callable[..., Any]]:
    return None, partial(_arun if is_async else _run, task)


# Runs


class _Run:
    """A run of a task.  result: as the task and signals see it."""

    def __init__(self, task: Any, arguments: tuple[Any, ...]) -> None:
        context = current_job()
        self.payload: Payload = {} if context is None else context.payload
        self._held = None if context is None else context.held
        details = self.payload.get(DETAILS)
        self._details = details if isinstance(details, dict) else {}
        self._task = task
        self.args, self.kwargs = arguments_of(arguments, self._details)
        self.result: Any = None

    @property
    def sender(self) -> type:
        return type(self.result.task.get_backend())

    def begin(self) -> None:
        """Make the result; of an attempt that is not the first one, with those before it."""
        self.result = self._told() if self._needs_history() else None
        if self.result is None:
            at = seconds(self.payload.get("created_at")) or CLOCK.now()
            task = rebuilt(self._task, self._details)
            at = self._details.get("at", at)
            self.result = new_result(task, str(self.payload.get("jid", "")), self.args, self.kwargs, at)
        if self.result.status != TaskResultStatus.RUNNING:
            now = time_of(CLOCK.now())
            unit = self._held[0] if self._held is not None else None
            self.result.worker_ids.append("" if unit is None else unit.identity)
            started = self.result.started_at or now
            set_fields(self.result, status=TaskResultStatus.RUNNING, started_at=started, last_attempted_at=now)

    def arguments(self) -> list[Any]:
        return [TaskContext(task_result=self.result), *self.args] if self.result.task.takes_context else self.args

    def succeed(self, returned: Any) -> Any:
        """Return what is kept of what the task has returned.

        Raises TypeError, ValueError for what cannot be kept: the task has failed, and does not run again for it.
        """
        try:
            value = result_as_json(returned, is_kept=bool(self.payload.get(HISTORY)))
        except (TypeError, ValueError, RecursionError) as error:
            setattr(error, UNKEPT, True)
            raise
        set_fields(
            self.result,
            status=TaskResultStatus.SUCCESSFUL,
            finished_at=time_of(CLOCK.now()),
            _return_value=value,
        )
        return value

    def _needs_history(self) -> bool:
        keys = ("retry_count", "interrupted_count")
        return bool(self.payload.get(HISTORY)) and (
            self._task.takes_context or any(key in self.payload for key in keys)
        )

    def _told(self) -> Any | None:
        setup = current_setup()
        store = setup.current_store() if self._held is None else self._held[1]
        try:
            events = read_events(setup, store, self.payload["jid"])
        except StoreError:  # the task runs all the same
            return None
        return result_from(self._task, self.payload["jid"], events) if events else None


def _run(task: Any, *arguments: Any) -> Any:
    run = _Run(task, arguments)
    run.begin()
    _report(task_started.send_robust(run.sender, task_result=run.result))
    value = run.succeed(task.func(*run.arguments(), **run.kwargs))
    _report(task_finished.send_robust(run.sender, task_result=run.result))
    return value


async def _arun(task: Any, *arguments: Any) -> Any:
    run = _Run(task, arguments)
    await sync_to_async(run.begin, thread_sensitive=False)()
    _report(await task_started.asend_robust(run.sender, task_result=run.result))
    value = run.succeed(await task.func(*run.arguments(), **run.kwargs))
    _report(await task_finished.asend_robust(run.sender, task_result=run.result))
    return value


def _report(answers: list[tuple[Any, Any]]) -> None:
    """Report receivers of signals that have failed: the task has run all the same."""
    for _, answer in answers:
        if isinstance(answer, Exception):
            current_setup().notify_error_handlers(answer, {"context": "signal of a task"})


def tell_death(payload: Payload, error: Exception) -> None:
    """Tell the receivers of task_finished that a task has failed for good."""
    definition = current_registry().get(str(payload.get("class")))
    task = None if definition is None else task_of(definition)
    if task is None:
        return
    cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ is not None else error
    result = _failed(task, payload, cause)
    sender = type(task_backends[result.backend])
    if sys.exc_info()[0] is not None:
        _report(task_finished.send_robust(sender, task_result=result))
        return
    try:  # receivers find it as the error that is being handled: Django's own log does
        raise cause  # noqa: TRY301  # that is how an error becomes the one that is handled
    except BaseException:  # noqa: BLE001  # as above
        _report(task_finished.send_robust(sender, task_result=result))


def _failed(task: Any, payload: Payload, error: BaseException) -> Any:
    setup, identifier, context = current_setup(), str(payload.get("jid")), current_job()
    store = setup.current_store() if context is None or context.held is None else context.held[1]
    events = []
    with suppress(StoreError):
        events = read_events(setup, store, identifier)
    details = payload.get(DETAILS)
    details = details if isinstance(details, dict) else {}
    if events:
        result = result_from(task, identifier, events)
    else:
        args, kwargs = arguments_of(payload.get("args", []), details)
        result = new_result(rebuilt(task, details), identifier, args, kwargs, details.get("at"))
    if not result.is_finished:
        told = described_error(error)
        result.errors.append(TaskError(exception_class_path=told["class"], traceback=told["traceback"]))
    set_fields(result, status=TaskResultStatus.FAILED, finished_at=time_of(CLOCK.now()))
    return result
