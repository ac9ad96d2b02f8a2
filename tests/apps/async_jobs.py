"""Async jobs for process tests.  What they do is written to the list `ledger`, as with those of basic.py."""

from __future__ import annotations

import asyncio
import os
import sys
import time

from kiqcluster import current_job, job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import nap, note, record, stubborn

__all__ = ["nap", "record", "stubborn"]


async def anote(*words: object) -> None:
    await asyncio.to_thread(note, *words)


def name_of_job() -> str:
    context = current_job()
    return "no job" if context is None else f"{context.name} {context.jid}"


async def released() -> None:
    """Wait until the list `release` has something."""
    while not await asyncio.to_thread(current_setup().current_store().call, "LLEN", "release"):
        await asyncio.sleep(0.02)


@job()
async def wait(word: str) -> None:
    """Wait for the release, and say how it ends."""
    await anote("began", word)
    try:
        await released()
    except asyncio.CancelledError:
        note("cancelled", word)
        raise
    await anote("ended", word)


@job()
async def count(word: str) -> None:
    """Wait in silence, for thousands of them: the ledger gets one line of each."""
    Waiting.number += 1
    if Waiting.number == Waiting.wanted():
        await anote("all wait")
    await released()
    await anote("ran", word)


class Waiting:
    number = 0

    @staticmethod
    def wanted() -> int:
        return int(os.environ.get("KIQ_TEST_WAITING", "0"))


@job()
async def pause(seconds: float, word: str) -> None:
    await asyncio.sleep(seconds)
    await anote("ran", word)


@job(retry=3)
async def fail(word: str) -> None:
    await asyncio.sleep(0)
    raise ValueError(word)


@job()
async def tell(word: str) -> None:
    """Say which job it is, before and after it has waited, in a task of its own as well."""
    before = name_of_job()
    await asyncio.sleep(0.01)

    async def inside() -> str:
        await asyncio.sleep(0)
        return name_of_job()

    await anote(word, before, name_of_job(), await asyncio.create_task(inside()))


@job(timeout=0.2)
async def too_long(word: str) -> None:
    try:
        await asyncio.sleep(600)
    finally:
        note("cleaned up", word)


@job(timeout_hard=0.5, retry=1)
async def holds_loop(word: str) -> None:
    note("began", word)
    time.sleep(600)


@job()
async def block(seconds: float) -> None:
    time.sleep(seconds)


@job(retry=0)
async def leave(word: str) -> None:
    """Call sys.exit, in a task of its own as well."""

    async def inside() -> None:
        sys.exit(3)

    task = asyncio.create_task(inside())
    await asyncio.wait([task], timeout=0.05)
    sys.exit(3)


@job()
async def fork(word: str) -> None:
    """The child goes on as if it was the worker."""
    pid = os.fork()
    await asyncio.sleep(0)
    if pid == 0:
        note("the child of", word, "runs our code")
        return
    os.waitpid(pid, 0)
    await anote("ran", word)


@job(retry=False)
async def kill(word: str) -> None:
    await anote("kills", word)
    os.abort()
