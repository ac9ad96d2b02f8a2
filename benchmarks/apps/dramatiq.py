"""The jobs in Dramatiq.  It has no bulk interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.apps import jobs

DESCRIPTION = dramatiq.__version__

dramatiq.set_broker(RedisBroker(url=os.environ["REDIS_URL"]))
JOBS = {function.__name__: dramatiq.actor(function) for function in jobs.ALL}


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].send(*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    for arguments in argument_lists:
        push(job, arguments)
