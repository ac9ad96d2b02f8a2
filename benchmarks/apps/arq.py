"""The jobs in arq, in an environment of its own: it needs an older redis-py.  It has no bulk interface."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings

from benchmarks import ledger

DESCRIPTION = version("arq")
REDIS = RedisSettings.from_dsn(os.environ["REDIS_URL"])


async def mark(_context: dict[str, Any], seconds: float) -> None:
    ledger.write("mark")
    await asyncio.sleep(seconds)


async def sleep(_context: dict[str, Any], seconds: float) -> None:
    await asyncio.sleep(seconds)


class WorkerSettings:
    functions = (mark, sleep)
    redis_settings = REDIS
    max_jobs = int(os.environ.get("BENCH_CONCURRENCY", "10"))
    poll_delay = 0.01  # seconds; by default half a second, which is all that it would show
    keep_result = 0


LOOP = asyncio.new_event_loop()  # the pusher's; a worker has its own
POOL: list[ArqRedis] = []


async def _push_all(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    if not POOL:
        POOL.append(await create_pool(REDIS))
    for arguments in argument_lists:
        await POOL[0].enqueue_job(job, *arguments)


def push(job: str, arguments: Sequence[Any]) -> None:
    push_many(job, [arguments])


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    LOOP.run_until_complete(_push_all(job, argument_lists))
