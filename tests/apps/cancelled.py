"""Jobs that tests cancel."""

from __future__ import annotations

import asyncio
import time

from kiqcluster import Interrupted, current_job, job
from tests.apps.basic import note, record, stubborn

__all__ = ["heedless", "patient", "record", "stubborn", "waiting"]


def wait_cancelled(word: str) -> None:
    """Wait until the job is told; until the list `release` has something for it otherwise."""
    running = current_job()
    assert running is not None
    note("began", word)
    while not running.cancelled:
        time.sleep(0.002)


@job(retry=5)
def patient(word: str) -> None:
    """Ends where it asks."""
    wait_cancelled(word)
    note("told", word)
    running = current_job()
    assert running is not None
    running.check_cancelled()


@job(retry=5)
def heedless(word: str) -> None:
    """Fails, gives way or returns once it is told, by its argument."""
    wait_cancelled(word)
    if word == "fails":
        raise ValueError(word)
    if word == "gives_way":
        raise Interrupted


@job(retry=5)
async def waiting(word: str) -> None:
    """Waits on the event loop, and asks nothing."""
    note("began", word)
    await asyncio.sleep(60)
    note("ended", word)
