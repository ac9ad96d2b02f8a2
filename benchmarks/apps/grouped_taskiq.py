"""No-op jobs in taskiq, plain ones and those whose results are kept: it has no groups, so a caller waits for those."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from taskiq_redis import RedisAsyncResultBackend

from benchmarks.apps.taskiq import DESCRIPTION, JOBS, LOOP, broker

__all__ = ["DESCRIPTION", "broker", "push", "push_many"]

if os.environ.get("BENCH_RESULTS"):
    broker.with_result_backend(RedisAsyncResultBackend(os.environ["REDIS_URL"], result_ex_time=3_600))


async def plain() -> None:
    pass


JOBS["plain"] = JOBS["grouped"] = broker.task(plain)


def push(job: str, arguments: Sequence[Any]) -> None:
    LOOP.run_until_complete(JOBS[job].kiq(*arguments))


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    async def push_all() -> None:
        for arguments in argument_lists:
            await JOBS[job].kiq(*arguments)

    LOOP.run_until_complete(push_all())
