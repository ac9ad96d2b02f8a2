"""The jobs in RQ: plain functions."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import rq
from redis import Redis

from benchmarks.apps import jobs

DESCRIPTION = rq.__version__

JOBS = {function.__name__: function for function in jobs.ALL}
queue = rq.Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))


def push(job: str, arguments: Sequence[Any]) -> None:
    queue.enqueue(JOBS[job], args=arguments, result_ttl=0)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    function = JOBS[job]
    queue.enqueue_many([rq.Queue.prepare_data(function, args=arguments, result_ttl=0) for arguments in argument_lists])
