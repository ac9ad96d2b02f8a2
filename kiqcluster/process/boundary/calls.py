"""Calls: how our code calls the application's, and looks at its values.

Code of the application may raise anything, SystemExit and MemoryError included; it may fork; and its values may run
code of their own when somebody asks for their text, their length, their items or their class.  So there is no list of
errors to expect.  Each call of it is one of three:

a push         the caller of the push gets the error, before anything is written (client/client)
a run          the job and what decides whether it begins: their error ends the run (worker/run/execution)
all the rest   hooks, handlers, rows at the end of a run, collectors, lines of the log: nobody waits for their error.
               They are called by `guarded`, with what is done instead

guarded      call it, or do something else
with_memory  call our own code, again where there is no memory for it
exc_info     an error as logging takes it
is_a         isinstance that asks the type of a value, and not the value
name_of      the name of a function or class, for a report
shown        type and text of a value, for a report

Price of `guarded`: 0.2 µs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeGuard, TypeVar

from kiqcluster.errors import text_of
from kiqcluster.ipc.forks import exit_if_other_process

__all__ = ["MEMORY_PAUSE_SECONDS", "exc_info", "guarded", "handled_error", "is_a", "name_of", "shown", "with_memory"]

MEMORY_PAUSE_SECONDS = 0.1  # between two tries while there is no memory
MEMORY_TRIES = 50
MAX_SHOWN_CHARACTERS = 200  # of a value in a report

_TRACEBACK = vars(BaseException)["__traceback__"]  # whatever a property of the error's class says

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


def guarded(
    instead: Callable[[BaseException], R], call: Callable[P, T], *arguments: P.args, **keywords: P.kwargs
) -> T | R:
    """Call code of the application; return what it returns, or what `instead` returns for the error that it raises.

    A child process that the code forks ends where the code returns.  `instead` does not keep the error: see
    handled_error.
    """
    pid = os.getpid()
    try:
        returned = call(*arguments, **keywords)
    except BaseException:  # noqa: BLE001  # the boundary: see above
        exit_if_other_process(pid, handled_error())
        return instead(handled_error())
    exit_if_other_process(pid)
    return returned


def handled_error() -> BaseException:
    """Return the error that the caller handles, where that must not give it a name.

    An error has the frames through which it came, and those of their callers.  If one of them has the error, all that
    these frames hold stays until the collector of cycles comes; and a reporter that looks at the locals of a frame
    leaves a copy of them there (before Python 3.13).
    """
    error = sys.exception()
    assert error is not None, "it handles one"
    return error


def with_memory(pause: Callable[[float], object], call: Callable[[], T]) -> T:
    """Call our own code, and again a while later where there is no memory for it.  Raises MemoryError after 5 s.

    pause: waits for so many seconds.
    """
    for _ in range(MEMORY_TRIES):
        try:
            return call()
        except MemoryError:
            pause(MEMORY_PAUSE_SECONDS)
    return call()


def exc_info(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an error as logging takes it, which would ask the error itself whether it is true."""
    return type(error), error, _TRACEBACK.__get__(error)


def is_a(value: object, kinds: type[T] | tuple[type[T], ...]) -> TypeGuard[T]:
    """Return whether a value is of a type; unlike isinstance, without a look at its `__class__`, which may be code."""
    return issubclass(type(value), kinds)


def name_of(call: object) -> str:
    """Return the name of a function, or of the class of another callable, as a report names it."""
    fallback = text_of(type(call).__name__)
    return guarded(lambda _: fallback, lambda: text_of(getattr(call, "__name__", fallback)))


def shown(value: object) -> str:
    """Return the type and the text of a value that the application has answered, cut, as a report shows it."""
    return f"{name_of(type(value))} {text_of(value)}"[:MAX_SHOWN_CHARACTERS]
