"""The jobs in Huey.  It has no bulk interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from huey import RedisHuey

from benchmarks.apps import jobs

DESCRIPTION = version("huey")

huey = RedisHuey("benchmarks", url=os.environ["REDIS_URL"], results=False)
JOBS = {function.__name__: huey.task()(function) for function in jobs.ALL}


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job](*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    for arguments in argument_lists:
        push(job, arguments)
