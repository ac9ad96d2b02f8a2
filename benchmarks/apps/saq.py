"""The jobs in SAQ.  It has no bulk interface."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from saq import Queue

from benchmarks import ledger

DESCRIPTION = version("saq")

queue = Queue.from_url(os.environ["REDIS_URL"])


async def mark(_context: dict[str, Any], *, seconds: float) -> None:
    ledger.write("mark")
    await asyncio.sleep(seconds)


async def sleep(_context: dict[str, Any], *, seconds: float) -> None:
    await asyncio.sleep(seconds)


settings = {
    "queue": queue,
    "functions": [mark, sleep],
    "concurrency": int(os.environ.get("BENCH_CONCURRENCY", "10")),
}
LOOP = asyncio.new_event_loop()  # the pusher's; a worker has its own


def push(job: str, arguments: Sequence[Any]) -> None:
    push_many(job, [arguments])


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    async def push_all() -> None:
        for (seconds,) in argument_lists:
            await queue.enqueue(job, seconds=seconds, ttl=-1)  # no result is kept

    LOOP.run_until_complete(push_all())
