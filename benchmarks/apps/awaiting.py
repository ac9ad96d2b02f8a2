"""The jobs in kiqcluster, as coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import kiqcluster
from benchmarks import ledger

DESCRIPTION = kiqcluster.__version__


@kiqcluster.job
async def mark(seconds: float) -> None:
    ledger.write("mark")
    await asyncio.sleep(seconds)


@kiqcluster.job
async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


JOBS = {each.definition.name: each for each in (mark, sleep)}


def push(job: str, arguments: Sequence[Any]) -> None:
    JOBS[job].perform_async(*arguments)


def push_many(job: str, argument_lists: Sequence[Sequence[Any]]) -> None:
    JOBS[job].perform_bulk(argument_lists)
