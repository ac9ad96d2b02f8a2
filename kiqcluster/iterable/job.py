"""IterableJob: a job that is a loop over items, and goes on where it was after a stop or a crash.

class Renew(IterableJob, queue="long"):
    def build_enumerator(self, shop: int, *, cursor: int | None) -> Iterator[tuple[int, int]]:
        return sequence_enumerator(members_of(shop), cursor=cursor)

    def each_iteration(self, member: int, shop: int) -> None: ...

Renew.perform_async(7)      each item is done at least once; one whose run is cut off is done again

`each_iteration` may be an `async def`: then the job is an async one, and its enumerator runs in a thread.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    closing,
    nullcontext,
    suppress,
)
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, Protocol, Unpack

from kiqcluster.application.options import JobOptions
from kiqcluster.application.signatures import hides_parameters, signature_of
from kiqcluster.errors import AbortIteration, JobDefinitionError
from kiqcluster.iterable.loop import Loop
from kiqcluster.job import Job
from kiqcluster.process.job_context import CURRENT_STEP
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = ["IterableJob"]

P = ParamSpec("P")
PARTS = ("build_enumerator", "each_iteration")
HOOKS = ("on_start", "on_resume", "on_stop", "on_cancel", "on_complete", "around_iteration")
END = object()  # of the items


class HasEachIteration(Protocol[P]):
    """A class whose instances have `each_iteration`, which gives the verbs their signature."""

    def each_iteration(self, item: Any, /, *args: P.args, **kwargs: P.kwargs) -> object: ...


class PerformOf:
    """`perform`, as mypy and pyright see it: it takes what `each_iteration` takes after the item."""

    def __get__(self, job: HasEachIteration[P], owner: object) -> Callable[P, None]:
        raise NotImplementedError


class IterableJob(Job):
    """Base of iterable jobs.

    A subclass implements `build_enumerator(*args, cursor)`, which returns an iterable of pairs (item, cursor), from the
    item at `cursor` on (None: from the first), and `each_iteration(item, *args)`.  It may implement the hooks below,
    which do nothing here.  arguments: of the job.  cursor: of the item that is done now.

    Option `max_iteration_runtime`: seconds after which a run lets other jobs of its queue go first.
    """

    is_iterable: ClassVar[bool] = True
    arguments: tuple[Any, ...] = ()
    cursor: JSON = None

    if TYPE_CHECKING:
        perform = PerformOf()

    def __init_subclass__(
        cls, *, name: str | None = None, namespace: str | None = None, **options: Unpack[JobOptions]
    ) -> None:
        if "perform" in vars(cls):
            raise JobDefinitionError(f"{cls.__qualname__}.perform would not be called; call it each_iteration")
        missing = [part for part in PARTS if not callable(getattr(cls, part, None))]
        if not missing:
            cls.perform = _perform_of(cls)  # type: ignore[assignment]
        elif len(missing) < len(PARTS):
            raise JobDefinitionError(f"{cls.__qualname__} lacks {missing[0]}; an iterable job has both of {PARTS}")
        super().__init_subclass__(name=name, namespace=namespace, **options)

    def on_start(self) -> None:
        """Do something before the first item of the first run."""

    def on_resume(self) -> None:
        """Do something before the first item of a later run."""

    def on_stop(self) -> None:
        """Do something at the end of a run which has not failed, whatever the reason."""

    def on_cancel(self) -> None:
        """Do something when somebody has cancelled the job while it ran; `on_stop` is called next."""

    def on_complete(self) -> None:
        """Do something after the last item; `on_stop` was called before."""

    def around_iteration(self) -> AbstractContextManager[object] | AbstractAsyncContextManager[object]:
        """Return a context in which `each_iteration` is called, such as one transaction for each item.

        An async job may return an async one.  An ordinary one is entered on the event loop, and must not wait there.
        """
        return nullcontext()


def _perform_of(cls: type[Any]) -> Callable[..., Any]:
    """Return the method `perform` of a class: one run."""
    is_async = inspect.iscoroutinefunction(cls.each_iteration)
    _check_parts(cls)
    around = None if cls.around_iteration is IterableJob.around_iteration else "around_iteration"
    perform: Callable[..., Any] = _async_perform(around) if is_async else _perform(around)
    perform.__signature__ = _signature_of(cls)  # type: ignore[attr-defined]
    perform.__wrapped__ = cls.build_enumerator  # type: ignore[attr-defined]  # where the names in its annotations are known
    perform.__name__ = "perform"
    return perform


def _check_parts(cls: type[Any]) -> None:
    """Raise JobDefinitionError for methods whose bodies would never run."""
    for name in ("build_enumerator", *HOOKS):
        method = getattr(cls, name)
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            raise JobDefinitionError(f"{cls.__qualname__}.{name} would not be awaited; make it an ordinary def")
    for name in ("each_iteration", *HOOKS):
        method = getattr(cls, name)
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            remedy = "decorate it with contextmanager" if name == "around_iteration" else "use no yield in it"
            raise JobDefinitionError(f"{cls.__qualname__}.{name} is a generator, which nobody would run; {remedy}")


def _perform(around: str | None) -> Callable[..., None]:
    def perform(self: Any, *args: Any) -> None:
        check_returned = type(self).definition.check_returned
        loop = _loop(self, args)
        token = CURRENT_STEP.set(loop.step)
        try:
            with closing(loop.items()) as items:
                for item in items:
                    try:
                        if around is None:
                            check_returned(self.each_iteration(item, *args))
                        else:
                            with self.around_iteration():
                                check_returned(self.each_iteration(item, *args))
                    except AbortIteration as aborted:
                        with suppress(StopIteration):
                            items.throw(aborted)
                        return
        finally:
            CURRENT_STEP.reset(token)

    return perform


def _async_perform(around: str | None) -> Callable[..., Any]:
    async def perform(self: Any, *args: Any) -> None:
        check_returned = type(self).definition.check_returned
        loop = _loop(self, args)
        items = loop.items()
        token = CURRENT_STEP.set(loop.step)
        try:
            while (item := await asyncio.to_thread(next, items, END)) is not END:
                try:
                    if around is None:
                        check_returned(await self.each_iteration(item, *args))
                    else:
                        async with _entered(self.around_iteration()):
                            check_returned(await self.each_iteration(item, *args))
                except AbortIteration as aborted:
                    await asyncio.to_thread(_throw, items, aborted)
                    return
        except asyncio.CancelledError:
            if not loop.is_cancelled:
                raise
            await asyncio.to_thread(loop.end_cancelled)
        finally:
            if inspect.getgeneratorstate(items) != inspect.GEN_CLOSED:
                await asyncio.to_thread(_close, items)
            CURRENT_STEP.reset(token)

    return perform


@asynccontextmanager
async def _entered(
    context: AbstractContextManager[object] | AbstractAsyncContextManager[object],
) -> AsyncIterator[None]:
    if isinstance(context, AbstractAsyncContextManager):
        async with context:
            yield
    else:
        with context:
            yield


def _close(items: Generator[Any, None, None]) -> None:
    with suppress(ValueError):  # a cancel has come while its thread takes the next item, and closes it then
        items.close()


def _throw(items: Any, aborted: AbortIteration) -> None:
    with suppress(StopIteration):
        items.throw(aborted)


def _loop(job: Any, arguments: tuple[Any, ...]) -> Loop:
    return Loop(job, arguments, type(job).definition.local.get("max_iteration_runtime"))


def _signature_of(cls: type[Any]) -> inspect.Signature:
    """Return the signature of `perform`: that of build_enumerator without its cursor.

    Raises JobDefinitionError where each_iteration does not take the same arguments after the item.
    """
    signature = signature_of(cls.build_enumerator)
    parameters, is_hidden = dict(signature.parameters), hides_parameters(cls.build_enumerator)
    if parameters.pop("cursor", None) is None and not is_hidden:
        raise JobDefinitionError(
            f"{cls.__qualname__}.build_enumerator{signature} needs a parameter named cursor: the job goes on there"
        )
    positions = [each for each in parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    needed = [object() for each in positions if each.kind is not inspect.Parameter.VAR_POSITIONAL]
    each_iteration = signature_of(cls.each_iteration)
    try:
        if not is_hidden:
            each_iteration.bind(object(), object(), *needed[1:])
    except TypeError as error:
        raise JobDefinitionError(
            f"{cls.__qualname__}.each_iteration{each_iteration} has to take the item, and then the arguments of "
            f"build_enumerator{signature}: {error}"
        ) from error
    return signature.replace(parameters=positions)
