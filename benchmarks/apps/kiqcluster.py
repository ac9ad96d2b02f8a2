"""The jobs in kiqcluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kiqcluster
from benchmarks.apps import jobs
from kiqcluster.job import Enqueuer

DESCRIPTION = kiqcluster.__version__
JOBS: dict[str, Enqueuer[Any, None]] = {function.__name__: kiqcluster.job(function) for function in jobs.ALL}


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].perform_async(*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    JOBS[job].perform_bulk(argument_lists)
