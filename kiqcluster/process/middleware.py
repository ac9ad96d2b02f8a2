"""Middleware: code around a push (client) and around a run (server), and the chain that holds it.

A server middleware is `(run, proceed) -> Outcome | None`, a client middleware `(push, proceed) -> Push | None`.
It calls `proceed()` once and returns the result; a client middleware that returns None stops the push.
Code of another form, such as a class with `call` or a function with a yield, is refused where it is added.
A middleware given as a class is instantiated once, when it is added.

An async job goes through the method `acall` of a server middleware, a coroutine function of the same arguments, where
`proceed()` is awaited.  If any has none, the job runs inside of all `__call__` of a thread that waits for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

from kiqcluster.errors import UsageError
from kiqcluster.process.boundary.calls import name_of
from kiqcluster.process.boundary.forms import check_form

__all__ = ["Chain"]

Subject = TypeVar("Subject")
Result = TypeVar("Result")
Proceed = Callable[[], Result]
FORM = "(run, proceed), a client middleware with (push, proceed)"
Middleware = Callable[[Subject, Proceed[Result]], Result]


class Chain(Generic[Subject, Result]):
    """An ordered list of middleware; the first is the outermost.

    Change it at set-up time, before threads start.  A middleware is named by itself or by its class.
    stack: the tuple in use, replaced at each change.
    """

    def __init__(self) -> None:
        self.stack: tuple[Middleware[Subject, Result], ...] = ()

    def __iter__(self) -> Iterator[Middleware[Subject, Result]]:
        return iter(self.stack)

    def __len__(self) -> int:
        return len(self.stack)

    def add(self, middleware: Middleware[Subject, Result]) -> Middleware[Subject, Result]:
        """Add a middleware innermost.  Returns it, so that `@server_middleware.add` decorates a function."""
        self.stack = (*self.stack, _instantiate(middleware))
        return middleware

    def prepend(self, middleware: Middleware[Subject, Result]) -> Middleware[Subject, Result]:
        """Add a middleware outermost."""
        self.stack = (_instantiate(middleware), *self.stack)
        return middleware

    def insert_before(self, existing: object, middleware: Middleware[Subject, Result]) -> None:
        """Add a middleware just outside an existing one.  Raises UsageError if that is not in the chain."""
        at = self._find(existing)
        self.stack = (*self.stack[:at], _instantiate(middleware), *self.stack[at:])

    def insert_after(self, existing: object, middleware: Middleware[Subject, Result]) -> None:
        """Add a middleware just inside an existing one.  Raises UsageError if that is not in the chain."""
        at = self._find(existing) + 1
        self.stack = (*self.stack[:at], _instantiate(middleware), *self.stack[at:])

    def replace(self, existing: object, middleware: Middleware[Subject, Result]) -> None:
        """Replace an existing middleware.  Raises UsageError if that is not in the chain."""
        at = self._find(existing)
        self.stack = (*self.stack[:at], _instantiate(middleware), *self.stack[at + 1 :])

    def remove(self, existing: object) -> None:
        """Remove a middleware.  Raises UsageError if it is not in the chain."""
        at = self._find(existing)
        self.stack = (*self.stack[:at], *self.stack[at + 1 :])

    def discard(self, kind: type) -> None:
        """Remove the middleware of a class, if there is any."""
        self.stack = tuple(each for each in self.stack if type(each) is not kind)

    def clear(self) -> None:
        """Remove all middleware."""
        self.stack = ()

    def invoke(self, subject: Subject, last: Proceed[Result]) -> Result:
        """Run the middleware around `last`; return the result of the outermost."""
        proceed = last  # no function that calls itself: it would hold the subject until the collector of cycles comes
        for middleware in reversed(self.stack):
            proceed = partial(middleware, subject, proceed)
        return proceed()

    def is_async(self) -> bool:
        """Return whether all of it has `acall`, or there is none."""
        return all(hasattr(middleware, "acall") for middleware in self.stack)

    async def ainvoke(self, subject: Subject, last: Callable[[], Awaitable[Result]]) -> Result:
        """Run the middleware around `last`, which is awaited; return the result of the outermost."""
        stack: tuple[Any, ...] = self.stack
        proceed = last
        for middleware in reversed(stack):
            proceed = partial(middleware.acall, subject, proceed)
        return await proceed()

    def _find(self, wanted: object) -> int:
        for at, middleware in enumerate(self.stack):
            if middleware is wanted or type(middleware) is wanted:
                return at
        names = (
            ", ".join(getattr(middleware, "__name__", type(middleware).__name__) for middleware in self.stack)
            or "no middleware"
        )
        raise UsageError(f"{wanted!r} is not in the chain, which has {names}")


def _instantiate(middleware: Middleware[Subject, Result]) -> Middleware[Subject, Result]:
    """Return a middleware, or an instance of its class.  Raises UsageError for one that a push or a run cannot call."""
    made = _made(middleware) if isinstance(middleware, type) else middleware
    if inspect.iscoroutinefunction(made) or inspect.iscoroutinefunction(type(made).__call__):
        raise UsageError(
            f"{middleware!r} is a coroutine function, which jobs in threads cannot call; write a class with __call__ "
            "for these, and with async def acall for async jobs"
        )
    check_form("a middleware", made, FORM, "run", "proceed")
    return made


def _made(kind: type[Any]) -> Any:
    try:
        signature = inspect.signature(kind)
    except (TypeError, ValueError):  # as of some that are written in C: nobody can tell
        return kind()
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"{name_of(kind)} cannot be made without arguments ({error}); add an instance of it"
        ) from error
    return kind()
