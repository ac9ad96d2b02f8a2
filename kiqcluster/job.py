"""Jobs: what an application declares and calls.

class Thumbnail(Job, queue="images", retry=5):         @job(queue="mailers", name="Acme::WelcomeMail")
    def perform(self, path: str, width: int): ...      def welcome(user_id: int): ...

Both forms create a Definition in the registry and an Enqueuer with the verbs.  Both keep the signature, so mypy
checks calls; the lists of perform_bulk are checked at run time.  OPTIONS (application/options.py) is the one table of
options; features add rows.
Counterpart: sidekiq job.rb.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any, ClassVar, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from kiqcluster.application.definitions import check_function, define, wire_name_of
from kiqcluster.application.options import (
    HOOKS,
    OPTIONS,
    RESERVED_NAMES,
    JobOptions,
    PushOptions,
    check_class_body,
    check_combinations,
    check_options,
    check_retries,
    merged,
)
from kiqcluster.application.registry import Definition
from kiqcluster.application.signatures import signature_of
from kiqcluster.client.chains import AsyncNext, Chain, HasPerform, Link, Next
from kiqcluster.client.destination import store_for_handle
from kiqcluster.client.draft import Draft, Drafts
from kiqcluster.client.handle import Handle
from kiqcluster.client.preparation import push_of
from kiqcluster.client.router import options_of, queue_of
from kiqcluster.client.sending import asend, asend_all, send, send_all
from kiqcluster.errors import JobDefinitionError
from kiqcluster.process.durations import delay_of, scheduled_at
from kiqcluster.process.job_context import CURRENT_JOB, INLINE_JOB
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.process.service import run_coroutine
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import DISCARD, KILL, Outcome
from kiqcluster.sidekiq.payload import Jid
from kiqcluster.sidekiq.ruby_json import JSON
from kiqcluster.words import answers

__all__ = ["DISCARD", "KILL", "AsyncJobFunction", "Enqueuer", "HasPerform", "Job", "JobFunction", "job"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R", covariant=True)
R_ = TypeVar("R_")
S = TypeVar("S")


@answers("job")
class Enqueuer(Link[P, R]):
    """The verbs of a job, with options overridden for some pushes.  Cheap to create, and safe to keep.

    has_queue: the queue is one of those overridden, so that no routing rule decides it.
    """

    def __init__(
        self,
        definition: Definition,
        options: Mapping[str, JSON],
        wait_replicas: int | None = None,
        *,
        has_queue: bool = False,
    ) -> None:
        self.definition = definition
        self._options = options
        self._has_queue = has_queue
        self.wait_replicas = definition.local.get("wait_replicas", 0) if wait_replicas is None else wait_replicas

    @property
    def options(self) -> Mapping[str, JSON]:
        """The options of a push, with the queue to which it is routed."""
        if self._has_queue:
            return self._options
        routed = options_of(current_setup(), self.definition)
        declared = self.definition.options
        if routed is declared:
            return self._options
        return routed if self._options is declared else {**self._options, "queue": routed["queue"]}

    @property
    def queue(self) -> str:
        """The resolved queue name, namespace included, by the routing rules."""
        queue: str = self.options["queue"]
        return queue

    def set(self, **options: Unpack[PushOptions]) -> Enqueuer[P, R]:
        """Return the same verbs with options replaced: `Thumbnail.set(queue="critical").perform_async(…)`."""
        checked = check_options(options, self.definition.name)
        wait_replicas = checked.pop("wait_replicas", self.wait_replicas)
        for name in checked:
            if not OPTIONS[name].on_wire:
                raise JobDefinitionError(f"{name} belongs to the definition of {self.definition.name}, not to one push")
        check_retries(checked, self.definition.name)
        has_queue = self._has_queue or "queue" in checked
        return Enqueuer(self.definition, merged(self._options, checked), wait_replicas, has_queue=has_queue)

    def perform_async(self, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Enqueue the job; return its jid, or None when client middleware stopped it.

        Raises InvalidArguments, StoreError.  One round trip.
        """
        return send(current_setup(), self._draft(args, kwargs))

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R] | None:
        """Enqueue the job; return its handle, or None when client middleware stopped it.

        With the option `result_ttl`, `handle.result()` waits for what it returns.  Raises as perform_async.
        """
        return self._handle(send(current_setup(), self._draft(args, kwargs)))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R] | None:
        """Enqueue the job in a coroutine, whose event loop goes on meanwhile; see enqueue.

        Pushes that coroutines make at the same time share round trips.
        """
        return self._handle(await asend(current_setup(), self._draft(args, kwargs)))

    def perform_in(self, delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Enqueue the job to run after a delay, in seconds or as a timedelta."""
        return send(current_setup(), self._draft(args, kwargs, delay_of(delay)))

    def perform_at(self, when: float | datetime, /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """Enqueue the job to run at an epoch second or an aware datetime; at once when that is past.

        A number below 10⁹, which to Sidekiq is a delay, raises InvalidPush.
        """
        return send(current_setup(), self._draft(args, kwargs, scheduled_at(when, 0.0)))

    def perform_bulk(self, argument_lists: Iterable[Sequence[Any]]) -> list[Jid | None]:
        """Enqueue a job per list of arguments; return jids in order.  One round trip per 1 000 jobs.

        Raises InvalidArguments before anything is enqueued; StoreError, whose `enqueued` has the jids written so far.
        """
        return send_all(current_setup(), self._drafts(argument_lists))

    async def aenqueue_bulk(self, argument_lists: Iterable[Sequence[Any]]) -> list[Jid | None]:
        """Enqueue a job per list of arguments in a coroutine; see perform_bulk."""
        return await asend_all(current_setup(), self._drafts(argument_lists))

    def perform_inline(self, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Run the job in this thread, through both middleware chains and a round trip through JSON.

        Its payload has the context that a push would have here (application_context).
        Returns the result of `perform`; None when middleware stopped it.  Errors of the job are raised unchanged.
        """
        returned = self.run_inline(args, kwargs)
        return returned[0] if returned else None

    def run_inline(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[R]:
        """Do the same; return the result as the only element, nothing if middleware stopped the job."""
        push = push_of(current_setup(), self._draft(args, kwargs))
        if push is None:
            return []
        definition = self.definition.enveloped or self.definition
        payload = ruby_json.decode(ruby_json.encode(push.payload))
        instance, perform = definition.prepare()
        run = Run(payload, push.queue, definition, instance)
        returned: list[R] = []

        def last() -> Outcome | None:
            result = perform(*payload["args"])
            result = run_coroutine(result) if definition.is_async else result
            definition.check_returned(result)
            returned.append(result)
            return None

        token = INLINE_JOB.set((CURRENT_JOB.get(), run.jid))
        try:
            current_setup().server_middleware.invoke(run, last)
        finally:
            INLINE_JOB.reset(token)
        return returned

    def with_keys(self, keys: Mapping[str, JSON]) -> Self:
        """Return the same verbs with more keys of the payload; chains call this."""
        made = copy(self)
        made._options = {**self._options, **keys}
        return made

    def _draft(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], at: float | timedelta | None = None) -> Draft:
        definition = self.definition
        arguments = definition.positional(args, kwargs)
        return Draft(definition.name, self.options, arguments, definition, at, None, self.wait_replicas)

    def _drafts(self, lists: Iterable[Sequence[Any]]) -> Drafts:
        definition = self.definition
        return Drafts(definition.name, self.options, lists, definition, wait_replicas=self.wait_replicas)

    def _handle(self, jid: Jid | None) -> Handle[R] | None:
        if jid is None:
            return None
        return Handle(jid, self.definition, store_for_handle(self.definition.name, self.definition))


class ResolvedQueue:
    """`Thumbnail.queue`: the queue to which pushes go that name none."""

    def __get__(self, job: object, owner: type[Job]) -> str:
        if getattr(owner, "definition", None) is None:
            raise AttributeError(f"{owner.__qualname__} is a base of jobs, and has no queue")
        return queue_of(owner.definition)


class _Function(Enqueuer[P, R]):
    """A function that is a job, with its name, its annotations and its documentation."""

    def __init__(self, function: Callable[P, Any], definition: Definition) -> None:
        super().__init__(definition, definition.options)
        self._function = function
        functools.update_wrapper(cast("Any", self), function, updated=())

    def __repr__(self) -> str:
        return f"<job {self.definition.name}>"

    def __reduce__(self) -> str:
        """Pickle and copy it as Python does with functions: by its name, so that `Pool.map` takes it."""
        return self._function.__qualname__


class JobFunction(_Function[P, R]):
    """A function that is a job; calling it stays an ordinary call."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = self._function(*args, **kwargs)
        return result


class AsyncJobFunction(_Function[P, R]):
    """An `async def` that is a job; calling it gives a coroutine, and R is what awaiting that gives."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        coroutine: Coroutine[Any, Any, R] = self._function(*args, **kwargs)
        return coroutine


class MakesJob(Protocol):
    """`@job(…)`: makes a function a job."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # the result of an `async def` is what awaiting it gives
        self, function: Callable[P, Coroutine[Any, Any, R_]], /
    ) -> AsyncJobFunction[P, R_]: ...
    @overload
    def __call__(self, function: Callable[P, R_], /) -> JobFunction[P, R_]: ...


@overload
def job(  # type: ignore[overload-overlap]  # as above
    function: Callable[P, Coroutine[Any, Any, R_]], /
) -> AsyncJobFunction[P, R_]: ...
@overload
def job(function: Callable[P, R_], /) -> JobFunction[P, R_]: ...
@overload
def job(*, name: str | None = None, namespace: str | None = None, **options: Unpack[JobOptions]) -> MakesJob: ...
def job(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    namespace: str | None = None,
    **options: Unpack[JobOptions],
) -> Any:
    """Make a function a job: `@job`, or `@job(queue="mailers")`.

    name: on the wire; default: the function's.  namespace: a prefix, so that two applications may have functions of one
    name: `Billing::welcome`.  options: see OPTIONS.  Raises JobDefinitionError.
    """

    def decorate(function: Callable[..., Any]) -> JobFunction[..., Any] | AsyncJobFunction[..., Any]:
        if not inspect.isfunction(function):
            raise JobDefinitionError(
                f"@job decorates a function; {function!r} is none (a class derives from Job instead)"
            )
        check_function(function, name)
        wire_name = wire_name_of(name, function.__name__, namespace)
        definition = define(wire_name, options, lambda: (None, function), signature_of(function), function)
        return (AsyncJobFunction if definition.is_async else JobFunction)(function, definition)

    return decorate if function is None else decorate(function)


@answers("job")
class Job:
    """Base of job classes.  Options are class keywords: `class Thumbnail(Job, queue="images", retry=5)`.

    A subclass implements `perform`, and may implement `retry_in(count, error, payload)`,
    `retries_exhausted(payload, error)` and `interruptions_exhausted(payload, error)`, as static or ordinary methods.
    Subclasses inherit options and the namespace, but not the name.
    A class without `perform` is a base for others and not a job itself.
    """

    definition: ClassVar[Definition]
    queue: ClassVar[ResolvedQueue] = ResolvedQueue()
    declared_options: ClassVar[Mapping[str, Any]] = {}
    declared_namespace: ClassVar[str | None] = None

    def __init_subclass__(
        cls, *, name: str | None = None, namespace: str | None = None, **options: Unpack[JobOptions]
    ) -> None:
        super().__init_subclass__()
        cls.declared_options = merged(cls.declared_options, options)
        wire_name = wire_name_of(name, cls.__name__, namespace)
        if namespace is not None:
            cls.declared_namespace = namespace
        elif name is None:
            wire_name = wire_name_of(None, cls.__name__, cls.declared_namespace)
        for reserved in RESERVED_NAMES & cls.__dict__.keys():
            remedy = "call it otherwise"
            if reserved == "queue":
                remedy = f'options are class keywords: write class {cls.__name__}(Job, queue="…")'
            raise JobDefinitionError(f"{cls.__qualname__}.{reserved} would hide what Job has of that name; {remedy}")
        check_class_body(cls)
        perform = getattr(cls, "perform", None)
        if perform is None:
            check_options(options, cls.__name__)
            check_combinations(cls.declared_options, cls.__name__)
            return
        if not callable(perform):
            raise JobDefinitionError(f"{cls.__qualname__}.perform is not a method; write def perform(self, …)")
        _check_init(cls)
        is_bound = isinstance(inspect.getattr_static(cls, "perform"), staticmethod | classmethod)
        hooks = {hook: _hook(cls, hook) for hook in HOOKS if hasattr(cls, hook)}
        cls.definition = define(
            wire_name,
            {**cls.declared_options, **hooks},
            lambda: _prepared(cls),
            signature_of(perform, has_self=not is_bound),
            cls,
        )

    # Of each verb with a result the first form is that of classes with `async def perform`.

    @overload
    @classmethod
    def set(cls: type[HasPerform[P, Coroutine[Any, Any, R_]]], **options: Unpack[PushOptions]) -> Enqueuer[P, R_]: ...
    @overload
    @classmethod
    def set(cls: type[HasPerform[P, R_]], **options: Unpack[PushOptions]) -> Enqueuer[P, R_]: ...
    @classmethod
    def set(cls: type[HasPerform[P, Any]], **options: Unpack[PushOptions]) -> Enqueuer[P, Any]:
        """See Enqueuer.set."""
        return _enqueuer(cls).set(**options)

    @overload
    @classmethod
    def then(
        cls: type[HasPerform[P, Coroutine[Any, Any, R_]]],
        job: AsyncNext[R_, Q, S],
        /,
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> Chain[P, S]: ...
    @overload
    @classmethod
    def then(
        cls: type[HasPerform[P, Coroutine[Any, Any, R_]]], job: Next[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Chain[P, S]: ...
    @overload
    @classmethod
    def then(
        cls: type[HasPerform[P, R_]], job: AsyncNext[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Chain[P, S]: ...
    @overload
    @classmethod
    def then(
        cls: type[HasPerform[P, R_]], job: Next[R_, Q, S], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> Chain[P, S]: ...
    @overload
    @classmethod
    def then(cls: type[HasPerform[P, Any]], job: Mapping[str, Any], /, *args: Any) -> Chain[P, Any]: ...
    @classmethod
    def then(cls: type[HasPerform[P, Any]], job: Any, /, *args: Any, **kwargs: Any) -> Chain[P, Any]:
        """Return a chain of this job and another one.  See Chain.then."""
        return _enqueuer(cls).then(job, *args, **kwargs)

    @classmethod
    def perform_async(cls: type[HasPerform[P, R_]], /, *args: P.args, **kwargs: P.kwargs) -> Jid | None:
        """See Enqueuer.perform_async."""
        return _enqueuer(cls).perform_async(*args, **kwargs)

    @overload
    @classmethod
    def enqueue(
        cls: type[HasPerform[P, Coroutine[Any, Any, R_]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R_] | None: ...
    @overload
    @classmethod
    def enqueue(cls: type[HasPerform[P, R_]], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R_] | None: ...
    @classmethod
    def enqueue(cls: type[HasPerform[P, Any]], /, *args: P.args, **kwargs: P.kwargs) -> Handle[Any] | None:
        """See Enqueuer.enqueue."""
        return _enqueuer(cls).enqueue(*args, **kwargs)

    @overload
    @classmethod
    async def aenqueue(
        cls: type[HasPerform[P, Coroutine[Any, Any, R_]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Handle[R_] | None: ...
    @overload
    @classmethod
    async def aenqueue(cls: type[HasPerform[P, R_]], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R_] | None: ...
    @classmethod
    async def aenqueue(cls: type[HasPerform[P, Any]], /, *args: P.args, **kwargs: P.kwargs) -> Handle[Any] | None:
        """See Enqueuer.aenqueue."""
        return await _enqueuer(cls).aenqueue(*args, **kwargs)

    @classmethod
    async def aenqueue_bulk(cls: type[HasPerform[P, R_]], argument_lists: Iterable[Sequence[Any]]) -> list[Jid | None]:
        """See Enqueuer.aenqueue_bulk."""
        return await _enqueuer(cls).aenqueue_bulk(argument_lists)

    @classmethod
    def perform_in(
        cls: type[HasPerform[P, R_]], delay: float | timedelta, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """See Enqueuer.perform_in."""
        return _enqueuer(cls).perform_in(delay, *args, **kwargs)

    @classmethod
    def perform_at(
        cls: type[HasPerform[P, R_]], when: float | datetime, /, *args: P.args, **kwargs: P.kwargs
    ) -> Jid | None:
        """See Enqueuer.perform_at."""
        return _enqueuer(cls).perform_at(when, *args, **kwargs)

    @classmethod
    def perform_bulk(cls: type[HasPerform[P, R_]], argument_lists: Iterable[Sequence[Any]]) -> list[Jid | None]:
        """See Enqueuer.perform_bulk."""
        return _enqueuer(cls).perform_bulk(argument_lists)

    @overload
    @classmethod
    def perform_inline(
        cls: type[HasPerform[P, Coroutine[Any, Any, R_]]], /, *args: P.args, **kwargs: P.kwargs
    ) -> R_ | None: ...
    @overload
    @classmethod
    def perform_inline(cls: type[HasPerform[P, R_]], /, *args: P.args, **kwargs: P.kwargs) -> R_ | None: ...
    @classmethod
    def perform_inline(cls: type[HasPerform[P, Any]], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """See Enqueuer.perform_inline."""
        return _enqueuer(cls).perform_inline(*args, **kwargs)


def _enqueuer(cls: type[HasPerform[P, R_]]) -> Enqueuer[P, R_]:
    definition: Definition | None = getattr(cls, "definition", None)
    if definition is None:
        raise JobDefinitionError(
            f"{cls.__qualname__} is not a job but a base of jobs; it becomes one with `def perform(self, …)`"
        )
    return Enqueuer(definition, definition.options)


def _check_init(cls: type[Any]) -> None:
    """Raise JobDefinitionError for a class that no worker can make an instance of."""
    try:  # `signature` is slow for a class without either method: it copies the table of modules, and parses a text
        if type(cls) is not type or any({"__init__", "__new__"} & vars(base).keys() for base in cls.__mro__[:-1]):
            inspect.signature(cls).bind()
    except TypeError as error:
        raise JobDefinitionError(
            f"{cls.__qualname__}.__init__: {error}; a worker makes an instance without arguments for each run, so give "
            "it defaults, or take them as arguments of perform"
        ) from error
    except ValueError:  # it has no signature that Python could tell
        return


def _prepared(cls: type[Any]) -> tuple[object, Callable[..., Any]]:
    instance = cls()
    return instance, instance.perform


def _hook(cls: type[Any], name: str) -> Callable[..., Any]:
    def hook(*facts: Any) -> Any:
        return getattr(cls(), name)(*facts)

    hook.__name__ = f"{cls.__qualname__}.{name}"  # error handlers receive it
    return hook
