"""The jobs in Celery.  It has no bulk interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import celery

from benchmarks.apps import jobs

DESCRIPTION = f"{celery.__version__}, kombu {version('kombu')}"

app = celery.Celery("benchmarks", broker=os.environ["REDIS_URL"])
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True)
JOBS = {function.__name__: app.task(function) for function in jobs.ALL}


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].apply_async(arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    for arguments in argument_lists:
        push(job, arguments)
