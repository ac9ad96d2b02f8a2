"""A job for each feature, and one that uses them all.  What they do is written to the file that $NOTES names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import kiqcluster
from kiqcluster import current_job, job, limits
from kiqcluster.batches import Batch
from kiqcluster.iterable import IterableJob, sequence_enumerator

# What is noted when all have done their work, by how often at least.
EXPECTED = {
    "unique": 2, "in_lines": 4, "sliding": 4, "fixed": 4, "leaky": 4, "in_place": 4, "dead": 1, "first": 1, "second": 1,
    "result 5": 1, "row": 3, "batch done": 2, "item": 2, "tick": 1, "hangs": 1, "async": 1, "again": 2, "cancelled": 1,
    "rescheduled": 2,
}  # fmt: skip


def notes() -> list[str]:
    """Return the lines that jobs have noted, in order."""
    path = Path(os.environ["NOTES"])
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def note(*words: object) -> None:
    with Path(os.environ["NOTES"]).open("a", encoding="utf-8") as file:
        file.write(" ".join(map(str, words)) + "\n")


@job(deduplicate="until_and_while_executing")
def unique(number: int) -> None:
    note("unique")


@job(deduplicate="until_executed", reschedule_once=True)
def rescheduled() -> None:
    note("rescheduled")
    if notes().count("rescheduled") == 1:
        rescheduled.perform_async()  # while it runs


@job(concurrency_limit=1, concurrency_key=lambda number: number % 2)
def in_lines(number: int) -> None:
    note("in_lines")
    time.sleep(0.05)


@job(rate_limit=limits.sliding_window(2, 0.5))
def sliding(number: int) -> None:
    note("sliding")


@job(rate_limit=limits.fixed_window(2, 0.5))
def fixed(number: int) -> None:
    note("fixed")


@job(rate_limit=limits.leaky_bucket(1, 5))
def leaky(number: int) -> None:
    note("leaky")


@job
def in_place(number: int) -> None:
    with limits.concurrent(1, wait=10, name="in_place"):
        note("in_place")
        time.sleep(0.05)


@job(retry=0)
def dead() -> None:
    note("dead")
    raise ValueError


@job(retry=1, retry_in=lambda *_: 0.01)
def again() -> None:
    note("again")
    raise ValueError


@job
def first(number: int) -> int:
    note("first")
    return number


@job
def second(number: int) -> None:
    note("second")


@job(result_ttl=60)
def result(number: int) -> int:
    current_job().progress(1, 2)
    return number


@job
def row(number: int) -> None:
    current_job().log("x")
    note("row")


@job
def batch_done(identifier: str) -> None:
    note("batch done")


class Items(IterableJob):
    def build_enumerator(self, *, cursor: Any) -> Any:
        return sequence_enumerator([1, 2], cursor=cursor)

    def each_iteration(self, number: int) -> None:
        note("item")


@job
async def asynchronous() -> None:
    note("async")


@job(expires_in=0.001)
def expired() -> None:
    note("expired")


@job(timeout_hard=1, retry=0)
def hangs() -> None:
    note("hangs")
    time.sleep(30)


@job(cron="* * * * * *")
def tick() -> None:
    note("tick")


@job(retry=0)
def use_all_in_a_job() -> None:
    """Use every feature, as jobs and applications do."""
    use_all()
    note("started")


def use_all() -> None:
    """Push a job of each class, and wait for a result, in a worker or outside of one."""
    for number in range(4):
        for each in (in_lines, sliding, fixed, leaky, in_place):
            each.perform_async(number)
        unique.perform_async(number % 2)
    for one in (dead, again, asynchronous, expired, hangs, rescheduled):
        one.perform_async()
    unique.perform_in(0.01, 99)
    Items.perform_async()
    first.then(second).perform_async(1)
    batch = Batch.create("rows", row, [[1], [2]], on_complete=batch_done, history=True)
    with Batch.open("parent", on_success=batch_done) as parent:
        Batch.create("child", row, [[3]], parent=parent)
    batch.status()
    list(batch.jobs())
    if kiqcluster.cancel(in_lines.perform_in(1_000, 1)):
        note("cancelled")
    handle = result.enqueue(5)
    handle.status()
    note("result", handle.result(timeout=60))
