"""App: the object that a code base calls `app`, and shared_task.

Celery       declares tasks, keeps the settings that they need, sends a task by its name
shared_task  declares a task without an app; it gets the settings of the app that was created last, as in Celery
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any, Concatenate, Literal, NoReturn, ParamSpec, TypeVar, Unpack, overload

from kiqcluster import Client
from kiqcluster.application.registry import current_registry
from kiqcluster.client.destination import store_for_handle
from kiqcluster.client.handle import Handle
from kiqcluster.contrib.celery.attributes import RefusesAttributes
from kiqcluster.contrib.celery.calls import call_of
from kiqcluster.contrib.celery.catalogue import refusal
from kiqcluster.contrib.celery.conf import Conf, options_of_shared, use_for_shared
from kiqcluster.contrib.celery.declare import TaskOptions
from kiqcluster.contrib.celery.errors import PushStopped, Unsupported
from kiqcluster.contrib.celery.results import AsyncResult, HandleOfId
from kiqcluster.contrib.celery.settings import APP, BUILD, OF_BUILD, SETTINGS, setting_name
from kiqcluster.contrib.celery.task import Task
from kiqcluster.errors import JobDefinitionError

__all__ = ["Celery", "shared_task"]

P = ParamSpec("P")
R = TypeVar("R")
OLD_NAMESPACE = "CELERY"  # of some settings before Celery 4, in upper case


class Celery(RefusesAttributes):
    """Declares tasks with common settings.  main: name for tasks of `__main__`.  broker: URL of the Redis.

    A code base may have several: they share the registry of the process, and each keeps its own settings.
    """

    def __init__(
        self, main: str | None = None, *, broker: str | None = None, backend: str | None = None, **options: Any
    ) -> None:
        for name in options:
            raise refusal(BUILD, name, f"Celery({main!r})")
        self.main = main
        self.conf = Conf(main or "app")
        for argument, value in (("broker", broker), ("backend", backend)):
            if value is not None:
                self.conf.update({OF_BUILD[argument]: value})
        use_for_shared(self.conf)

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, /, *, bind: Literal[True], **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...
    @overload
    def task(
        self, /, *, bind: Literal[False] = False, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(self, function: Any = None, /, *, bind: bool = False, **options: Unpack[TaskOptions]) -> Any:
        """Declare a task: `@app.task`, or `@app.task(bind=True, max_retries=5)`."""
        return _declare(function, options, self.conf.options, is_bound=bind, main=self.main)

    def config_from_object(self, source: Any, *, namespace: str = "") -> None:
        """Set the keys that an object, a mapping or `package.module:object` has.

        namespace: the prefix of the keys, such as CELERY.  Without one, each public name in lower case that is neither
        a function nor a module nor a class is a key, and so are the upper-case names from before Celery 4.
        """
        if isinstance(source, str):
            module, _, attribute = source.partition(":")
            found: Any = importlib.import_module(module)
            source = getattr(found, attribute) if attribute else found
        pairs = (
            source.items() if isinstance(source, Mapping) else ((name, getattr(source, name)) for name in dir(source))
        )
        self.conf.update(
            {
                setting_name(name, namespace or OLD_NAMESPACE): value
                for name, value in pairs
                if _is_key(name, value, namespace)
            }
        )

    def send_task(
        self, name: str, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult[Any]:
        """Enqueue a task by its name, which need not be declared in this process: then it has positions only."""
        call = call_of(name, options)
        definition = current_registry().get(name)
        if kwargs and definition is None:
            raise Unsupported(
                f"{name} is not declared in this process, so the positions of {', '.join(kwargs)} are not known; pass "
                "all arguments by position, or import the task and call apply_async"
            )
        positions = list(args or ()) if definition is None else definition.positional(tuple(args or ()), kwargs or {})
        routed = {} if definition is not None else self.conf.queue_of(name)
        item = {"class": name, "args": positions, **routed, **call.options}
        keys = {"at": call.at, "jid": call.task_id}
        jid = Client().push({**item, **{key: value for key, value in keys.items() if value is not None}})
        if jid is None:
            raise PushStopped(f"{name} was not enqueued: client middleware stopped the push")
        store = store_for_handle(name, definition)
        return AsyncResult(
            HandleOfId(jid, None, store, name=name) if definition is None else Handle(jid, definition, store)
        )

    def AsyncResult(self, task_id: str) -> AsyncResult[Any]:  # noqa: N802  # Celery's name
        """Return the result of a job by its id."""
        return AsyncResult(task_id)

    def _missing(self, name: str) -> NoReturn:
        raise refusal(APP, name, f"Celery({self.__dict__.get('main')!r})")


@overload
def shared_task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def shared_task(
    *, bind: Literal[True], **options: Unpack[TaskOptions]
) -> Callable[[Callable[Concatenate[Any, P], R]], Task[P, R]]: ...
@overload
def shared_task(
    *, bind: Literal[False] = False, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def shared_task(function: Any = None, /, *, bind: bool = False, **options: Any) -> Any:
    """Declare a task without an app: `@shared_task`, or `@shared_task(bind=True, max_retries=5)`."""
    return _declare(function, options, options_of_shared, is_bound=bind, main=None)


def _declare(
    function: Any,
    options: Mapping[str, Any],
    common: Callable[[str], Mapping[str, Any]],
    *,
    is_bound: bool,
    main: str | None,
) -> Any:
    """Declare a task.  common: its name → the options that the settings give it."""

    def decorate(function: Any) -> Task[Any, Any]:
        if not isinstance(function, FunctionType):
            raise JobDefinitionError(
                f"a task is a function; {function!r} is none: write a function, with bind=True for self"
            )
        module = main if function.__module__ == "__main__" and main else function.__module__
        own = {key: value for key, value in options.items() if key != "name"}
        name = options.get("name") or f"{module}.{function.__name__}"
        return Task(function, name, {**common(name), **own}, is_bound=is_bound)

    return decorate if function is None else decorate(function)


def _is_key(name: str, value: Any, namespace: str) -> bool:
    """Return whether a name of a settings object is a key of Celery."""
    if namespace:
        return name.startswith(namespace + "_")
    if name.isupper():  # a name from before Celery 4
        return setting_name(name, OLD_NAMESPACE) in SETTINGS
    return name.islower() and not name.startswith("_") and not isinstance(value, FunctionType | ModuleType | type)
