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
FACTORS = (1, 1, 2, 4)  # of that, before the second check, the third…; the last one before all that follow
MIN_CHECKS = 200  # before giving up: on a busy machine seconds may pass in which nobody does anything
GRACE_SECONDS = 60.0  # that these may take beyond the deadline, where a check itself takes long
NEVER_SET = threading.Event()  # waiting for it delays the next check


def wait_until(condition: Callable[[], T], what: str, seconds: float = DEFAULT_TIMEOUT_SECONDS) -> T:
    """Return the condition's first truthy value; raise AssertionError with `what` when the deadline has passed.

    It gives up only once the condition was checked MIN_CHECKS times as well, or GRACE_SECONDS later.
    """
    __tracebackhide__ = True
    deadline = SystemClock.monotonic() + seconds
    checks = 0
    while not (value := condition()):
        checks += 1
        late = SystemClock.monotonic() - deadline
        if late >= 0 and (checks >= MIN_CHECKS or late >= GRACE_SECONDS):
            raise AssertionError(f"waited {seconds:g} s in vain for: {what}")
        NEVER_SET.wait(POLL_SECONDS * FACTORS[min(checks, len(FACTORS)) - 1])
    return value
