"""Jobs that tests/chaos/test_cancel.py cancels: in threads and on the event loop; they fail, have limits, hold locks.

Each asks every few milliseconds whether it was cancelled; async ones do not ask.  None is given up because of kills.
"""

from __future__ import annotations

import asyncio
import time
from typing import TypedDict

from kiqcluster import current_job, job
from tests.chaos.ledger import noted

STEP_SECONDS = 0.005
PLACES = 2  # of the limited jobs


class Always(TypedDict):
    """Options of all of them."""

    max_retries_after_interruption: int


ALWAYS: Always = {"max_retries_after_interruption": -1}


def take(milliseconds: float) -> None:
    """Take so long, and ask meanwhile."""
    running = current_job()
    assert running is not None
    until = time.monotonic() + milliseconds / 1_000
    while time.monotonic() < until:
        running.check_cancelled()
        time.sleep(STEP_SECONDS)


@job(name="cancelled::plain", **ALWAYS)
def plain(milliseconds: float) -> None:
    with noted():
        take(milliseconds)


@job(name="cancelled::deaf", **ALWAYS)
def deaf(milliseconds: float) -> None:
    """Does not ask, and returns."""
    with noted():
        time.sleep(milliseconds / 1_000)


@job(name="cancelled::asynchronous", **ALWAYS)
async def asynchronous(milliseconds: float) -> None:
    with noted():
        await asyncio.sleep(milliseconds / 1_000)


@job(name="cancelled::limited", concurrency_limit=PLACES, **ALWAYS)
def limited(milliseconds: float) -> None:
    """Waits in a line for one of few places."""
    with noted():
        take(milliseconds)


@job(name="cancelled::locked", deduplicate="until_executed", **ALWAYS)
def locked(_key: str, milliseconds: float) -> None:
    """Holds a lock from its push to its end."""
    with noted():
        take(milliseconds)


@job(name="cancelled::flaky", retry=5, retry_in=lambda *_: 0.3, **ALWAYS)
def flaky(milliseconds: float) -> None:
    """Fails at its first try, and waits for some seconds, as chance has it."""
    running = current_job()
    assert running is not None
    with noted():
        take(milliseconds)
        if "retry_count" not in running.payload:
            raise ValueError("not yet")


@job(name="cancelled::doomed", retry=0, **ALWAYS)
def doomed(milliseconds: float) -> None:
    """Dies."""
    with noted():
        take(milliseconds)
        raise ValueError("never")
