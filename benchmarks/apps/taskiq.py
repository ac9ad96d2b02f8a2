"""The jobs in taskiq, as coroutines; on a stream, so that they are acknowledged.  It has no bulk interface."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from taskiq_redis import RedisStreamBroker

from benchmarks import ledger
from benchmarks.apps import jobs

DESCRIPTION = f"{version('taskiq')}, taskiq-redis {version('taskiq-redis')}"

# "0": also what was enqueued before the first worker came.
broker = RedisStreamBroker(os.environ["REDIS_URL"], consumer_id="0")


async def noop() -> None:
    jobs.noop()


async def mark(seconds: float = 0.0) -> None:
    jobs.mark()
    if seconds:
        await asyncio.sleep(seconds)


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def stamp(sent: float) -> None:
    jobs.stamp(sent)


async def tick(number: int, seconds: float) -> None:
    ledger.write("start", number)
    await asyncio.sleep(seconds)
    ledger.write("end", number)


JOBS = {function.__name__: broker.task(function) for function in (noop, mark, sleep, stamp, tick)}
LOOP = asyncio.new_event_loop()  # the pusher's; a worker has its own


def push(job: str, arguments: Sequence[Any]) -> None:
    LOOP.run_until_complete(JOBS[job].kiq(*arguments))


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    async def push_all() -> None:
        for arguments in argument_lists:
            await JOBS[job].kiq(*arguments)

    LOOP.run_until_complete(push_all())
