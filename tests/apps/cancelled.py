"""Jobs that tests cancel."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from kiqcluster import Interrupted, Job, current_job, job
from tests.apps.basic import note, record, stubborn

__all__ = ["EarlyTold", "heedless", "patient", "record", "shielded", "stubborn", "waiting"]


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


class EarlyTold(Job):
    """Is told before it comes to the event loop, on which it would wait."""

    def __init__(self) -> None:
        wait_cancelled("early")

    async def perform(self) -> None:
        note("performs", "early")
        await asyncio.sleep(60)


@job(retry=5)
async def shielded(word: str) -> None:
    """The same, and takes no notice of the first time that it is cancelled."""
    note("began", word)
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    note("told", word)
    await asyncio.sleep(0.05)
    note("ended", word)
