"""Waiting: waits for a state with a deadline, never for a fixed time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from kiqcluster.process.clock import SystemClock

__all__ = ["DEFAULT_TIMEOUT_SECONDS", "NEVER_SET", "POLL_SECONDS", "wait_until"]

T = TypeVar("T")
DEFAULT_TIMEOUT_SECONDS = 20.0  # for a state that should take a fraction of a second
POLL_SECONDS = 0.01  # between checks
NEVER_SET = threading.Event()  # waiting for it delays the next check


def wait_until(condition: Callable[[], T], what: str, seconds: float = DEFAULT_TIMEOUT_SECONDS) -> T:
    """Return the condition's first truthy value; raise AssertionError with `what` when the deadline has passed."""
    __tracebackhide__ = True
    deadline = SystemClock.monotonic() + seconds
    while not (value := condition()):
        if SystemClock.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for: {what}")
        NEVER_SET.wait(POLL_SECONDS)
    return value
