"""Modes: decide where pushes go while a test runs; with functions for the current mode.

fake     jobs stay in memory, to inspect them and run them by `drain`
inline   jobs run before their push returns
real     jobs go to Redis, as without this module; for a part of a test within another mode

Each is a context manager: it applies to all threads of the process, may be nested, and restores the previous mode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.testing.memory import Fake, Inline

__all__ = [
    "assert_enqueued",
    "current_fake",
    "dead",
    "drain",
    "enqueued",
    "fake",
    "inline",
    "performed",
    "real",
    "refute_enqueued",
    "retries",
]

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def fake() -> Iterator[Fake]:
    """Keep the jobs pushed in a `with` block in memory, not in Redis, for a test to inspect and drain."""
    with current_setup().delivering(jobs := Fake()):
        yield jobs


@contextmanager
def inline() -> Iterator[Inline]:
    """Run the jobs pushed in a `with` block before their push returns, unless they are due later."""
    with current_setup().delivering(jobs := Inline()):
        yield jobs


@contextmanager
def real() -> Iterator[None]:
    """Send the jobs pushed in a `with` block to Redis."""
    with current_setup().delivering(None):
        yield


def current_fake() -> Fake:
    """Return the Fake or Inline that keeps the jobs now.  Raises UsageError if they go to Redis."""
    delivery = current_setup().delivery
    if not isinstance(delivery, Fake):
        raise UsageError(
            "no jobs are kept here; keep them with the fixture kiq_fake or kiq_inline, @pytest.mark.kiq('fake'), "
            "or `with kiqcluster.testing.fake():`"
        )
    return delivery


def _of_mode(method: Callable[Concatenate[Fake, P], R]) -> Callable[P, R]:
    """Return a function that calls the method on `current_fake()`."""

    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True
        return method(current_fake(), *args, **kwargs)

    call.__name__, call.__qualname__ = method.__name__, method.__name__
    call.__doc__ = method.__doc__
    shown = inspect.signature(method)
    call.__signature__ = shown.replace(parameters=list(shown.parameters.values())[1:])  # type: ignore[attr-defined]
    return call


enqueued = _of_mode(Fake.enqueued)
retries = _of_mode(Fake.retries)
dead = _of_mode(Fake.dead)
performed = _of_mode(Fake.performed)
assert_enqueued = _of_mode(Fake.assert_enqueued)
refute_enqueued = _of_mode(Fake.refute_enqueued)
drain = _of_mode(Fake.drain)
