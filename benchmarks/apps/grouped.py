"""No-op jobs in kiqcluster, plain ones and those of a batch: each bulk push of `grouped` is a batch with a callback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import kiqcluster
from benchmarks.apps.kiqcluster import DESCRIPTION, JOBS
from kiqcluster.batches import Batch

__all__ = ["DESCRIPTION", "push", "push_many"]


@kiqcluster.job
def plain() -> None:
    pass


@kiqcluster.job
def completed(batch: str) -> None:
    pass


JOBS["plain"] = plain


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].perform_async(*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    if job == "grouped":
        Batch.create("benchmark", plain, argument_lists, on_complete=completed)
    else:
        JOBS[job].perform_bulk(argument_lists)
