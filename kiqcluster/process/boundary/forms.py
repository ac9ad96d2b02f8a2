"""Forms: whether code of the application can be called as we are going to call it.

Asked where it is registered: a middleware that does not fit would fail each push, a handler would only be a line of the
log after each failure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

from kiqcluster.errors import UsageError
from kiqcluster.process.boundary.calls import name_of

__all__ = ["check_form"]


def check_form(what: str, function: object, form: str, *parameters: str, **keywords: None) -> None:
    """Raise UsageError for code that cannot be called with these arguments, or that a call would not run.

    what: it is to be, such as "a middleware".  form: the parameters as the message shows them.
    """
    if not callable(function):
        raise UsageError(f"{function!r} is not callable, so it cannot be {what}; write a function {form}")
    if _is(inspect.iscoroutinefunction, function) or _is(inspect.isasyncgenfunction, function):
        raise UsageError(
            f"{name_of(function)} is a coroutine function, which nobody would await; {what} is a plain one"
        )
    if _is(inspect.isgeneratorfunction, function):
        raise UsageError(
            f"{name_of(function)} has a yield in it, so calling it would run nothing; write {what} without"
        )
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):
        return  # as of some that are written in C: nobody can tell
    try:
        signature.bind(*parameters, **keywords)
    except TypeError as error:
        raise UsageError(
            f"{name_of(function)}{signature} cannot be {what}: {error}; it is called with {form}"
        ) from error


def _is(of_kind: Callable[[object], bool], function: Callable[..., object]) -> bool:
    """Return whether a function, or the method that an object is called by, is of a kind of functions."""
    return of_kind(function) or of_kind(type(function).__call__)
