"""Task: a function that is declared as in Celery and runs as a job of kiqcluster.

Runs in: threads that push (delay, apply_async), processor threads (the run, retry).
1. Task         the verbs; its definition is one of the registry, like that of @job
2. run          the arguments of the payload → the function, with `self` where it is bound
3. request      self.request, of the run in this context (requests.py)
4. retry        raises Retry, which the hook retry_in of the job turns into a delay (declare.Retries).  A task that
                swallows it is retried as well
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, NoReturn, ParamSpec, TypeVar, overload

from kiqcluster import current_job
from kiqcluster.application.definitions import check_function, define
from kiqcluster.client.destination import store_for_handle
from kiqcluster.client.draft import Draft
from kiqcluster.client.handle import Handle
from kiqcluster.client.sending import send
from kiqcluster.contrib.celery.arguments import Arguments
from kiqcluster.contrib.celery.attributes import RefusesAttributes
from kiqcluster.contrib.celery.calls import Call, call_of, seconds_until
from kiqcluster.contrib.celery.catalogue import APPLY, RETRY, TASK, VERBS, refusal
from kiqcluster.contrib.celery.declare import options_of
from kiqcluster.contrib.celery.errors import MaxRetriesExceededError, PushStopped, Retry, Unsupported
from kiqcluster.contrib.celery.requests import ASKED, REQUEST_OF_RUN, Asked, Request
from kiqcluster.contrib.celery.results import AsyncResult as Result
from kiqcluster.contrib.celery.results import EagerResult
from kiqcluster.contrib.celery.rules import of_retry, seconds_of
from kiqcluster.errors import JobDefinitionError
from kiqcluster.job import Enqueuer
from kiqcluster.process.job_context import JobContext, running_jid
from kiqcluster.process.runtime import current_setup
from kiqcluster.words import page

__all__ = ["Request", "Task"]

P = ParamSpec("P")
R = TypeVar("R", covariant=True)


class Task(RefusesAttributes, Generic[P, R]):
    """A task.  Calling it stays an ordinary call.  definition: of its job."""

    MaxRetriesExceededError = MaxRetriesExceededError

    def __init__(
        self, function: Callable[..., R], name: str, options: Mapping[str, Any], *, is_bound: bool = False
    ) -> None:
        check_function(function, name)
        if inspect.iscoroutinefunction(function):
            raise Unsupported(
                f"{name}: a coroutine is no task of Celery; declare it with @kiqcluster.job ({page('guides/async')})"
            )
        declared = options_of(name, options)
        self.name = name
        self._function = function
        self._is_bound = is_bound
        self._retries = declared.retries
        self._arguments = Arguments(name, function, is_bound=is_bound)
        functools.update_wrapper(self, function, updated=())
        self.definition = define(name, declared.options, lambda: (None, self._perform), self._arguments.wire, function)
        self._enqueuer: Enqueuer[P, R] = Enqueuer(self.definition, self.definition.options)

    @property
    def max_retries(self) -> int | None:
        return self._retries.max_retries

    @property
    def default_retry_delay(self) -> float:
        return self._retries.seconds

    @property
    def queue(self) -> str:
        """The queue of its pushes, by the routing rules."""
        return self._enqueuer.queue

    @property
    def job(self) -> Enqueuer[P, R]:
        """The verbs of kiqcluster: `first.job.then(second.job)`, `Batch.create(name, each.job, rows)`, `job.set(…)`.

        Arguments are those of the payload: keyword-only parameters are one object, the last argument.
        """
        return self._enqueuer

    # Pushes

    def delay(self, /, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Enqueue the task.  Raises InvalidArguments, StoreError, PushStopped.  One round trip."""
        return self._push(args, kwargs, Call())

    def apply_async(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Result[R]:
        """Enqueue the task with options: countdown, eta, expires, queue, task_id.

        Raises as `delay`; Unsupported for an option that would have no effect.
        """
        return self._push(tuple(args or ()), kwargs or {}, call_of(self.name, options))

    def apply(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> EagerResult[R]:
        """Run the task here and now, through middleware and a round trip through JSON."""
        for name in options:
            raise refusal(APPLY, name, f"{self.name}: apply")
        packed = self._arguments.pack(self.name, tuple(args or ()), kwargs or {})
        try:
            returned = self._enqueuer.run_inline(tuple(packed), {})
        except Exception as error:  # noqa: BLE001  # the result has it, as in Celery
            return EagerResult(None, error)
        return EagerResult(returned[0] if returned else None, None)

    def AsyncResult(self, task_id: str) -> Result[R]:  # noqa: N802  # Celery's name
        """Return the handle of a job of this task that was enqueued before."""
        store = store_for_handle(self.name, self.definition)
        return Result(Handle(task_id, self.definition, store))  # type: ignore[arg-type]  # a jid is text

    def _push(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: Call) -> Result[R]:
        arguments = self.definition.write(self._arguments.pack(self.name, args, kwargs))
        options = self._enqueuer.set(**call.options).options if call.options else self._enqueuer.options
        replicas = self._enqueuer.wait_replicas
        draft = Draft(self.name, options, arguments, self.definition, call.at, call.task_id, replicas)
        jid = send(current_setup(), draft)
        if jid is None:
            raise PushStopped(f"{self.name} was not enqueued: client middleware stopped the push")
        return self.AsyncResult(jid)

    # Runs

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(args, kwargs, None)

    run = __call__

    def _perform(self, *wire: Any) -> R:
        args, kwargs = self._arguments.unpack(wire)
        return self._call(tuple(args), kwargs, current_job())

    def _call(self, args: Sequence[Any], kwargs: Mapping[str, Any], running: JobContext | None) -> R:
        if not self._is_bound:
            return self._function(*args, **kwargs)
        is_job = running is not None and running.jid == running_jid()  # not within apply(), which retries nothing
        asked = Asked() if is_job else None
        jid, retries = (None, 0) if running is None else (running.jid, _retries_of(running.payload))
        request = REQUEST_OF_RUN.set(Request(jid, self.name, args, kwargs, retries, running is None))
        outer = ASKED.set(asked)
        try:
            returned = self._function(self, *args, **kwargs)
        finally:
            REQUEST_OF_RUN.reset(request)
            if asked is None:  # of a job, its hook asks for it
                ASKED.reset(outer)
        if asked is not None and asked.message:
            raise Retry(asked.message, asked.seconds)
        return returned

    @property
    def request(self) -> Request:
        """The run of the task in this context; of a call that is no job, one without an id."""
        found = REQUEST_OF_RUN.get()
        return Request(None, self.name, (), {}, 0, True) if found is None else found

    @overload
    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | timedelta | None = None,
        eta: datetime | None = None,
        max_retries: int | None = None,
        throw: Literal[True] = True,
        **options: Any,
    ) -> NoReturn: ...
    @overload
    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | timedelta | None = None,
        eta: datetime | None = None,
        max_retries: int | None = None,
        throw: bool,
        **options: Any,
    ) -> Retry: ...
    def retry(
        self,
        *,
        exc: BaseException | None = None,
        countdown: float | timedelta | None = None,
        eta: datetime | None = None,
        max_retries: int | None = None,
        throw: bool = True,
        **options: Any,
    ) -> Retry:
        """Have the job run again, and end this run.

        Raises Retry, or returns it if `throw` is false; the job runs again whatever the task does then, once, at the
        time that the last call says.  Raises exc or MaxRetriesExceededError without retries left.

        countdown: seconds, or a timedelta, without jitter.  max_retries: at most that of the declaration.
        """
        for name in options:
            raise refusal(RETRY, name, f"{self.name}: self.retry")
        given = {"countdown": countdown, "eta": eta, "max_retries": max_retries}
        for refused in of_retry(given, self.max_retries):
            raise Unsupported(f"{self.name}: {refused.reason}")
        request, most = self.request, self.max_retries if max_retries is None else max_retries
        if request.called_directly:
            raise exc or sys.exc_info()[1] or Retry(f"{self.name} can be retried")
        if most is not None and request.retries >= most:
            raise exc or MaxRetriesExceededError(f"{self.name} has been retried {request.retries} times: {request.id}")
        seconds = seconds_until(eta) if eta is not None else seconds_of(countdown)
        reason = "it asked for it" if exc is None else repr(exc)
        retry = Retry(f"{self.name} is retried: {reason}", seconds, exc)
        if (asked := ASKED.get()) is not None:
            asked.message, asked.seconds = str(retry), seconds
        if not throw:
            return retry
        raise retry from exc

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def __reduce__(self) -> str:
        """Pickle and copy it as Python does with functions: by its name, as Celery does."""
        return self._function.__qualname__

    def __getattr__(self, name: str) -> Any:
        # No AttributeError: kiqcluster itself asks for these, and would take a task without options for a plain job.
        if name in VERBS:
            own = self.__dict__.get("name", "a task")
            raise Unsupported(f"{own}: {name} belongs to kiqcluster; write {own.rpartition('.')[2]}.job")
        return super().__getattr__(name)

    def _missing(self, name: str) -> NoReturn:
        raise refusal(TASK, name, self.__dict__.get("name", "a task"))

    def __init_subclass__(cls) -> None:
        raise JobDefinitionError(
            f"{cls.__qualname__}: a base class of tasks has no effect here; use hooks ({page('guides/middleware')})"
        )


def _retries_of(payload: Mapping[str, Any]) -> int:
    """Return the number of failures before this run; a job that somebody retries by hand has none taken off."""
    count = payload.get("retry_count")
    return max(0, count + 1) if isinstance(count, int) and "failed_at" in payload else 0
