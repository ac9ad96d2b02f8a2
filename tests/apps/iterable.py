"""Iterable jobs that tests stop, kill and cancel.

Each notes the items that it has done: `did <word> <item>`.  It waits at items that the list `release` says nothing of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from kiqcluster import current_job
from kiqcluster.iterable import IterableJob, loop, sequence_enumerator
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note, record

__all__ = ["AsyncSteps", "Failing", "Steps", "Turns", "record"]

Numbers = Iterator[tuple[int, int]]
SECONDS_OF_A_STEP = 0.01
loop.SAVE_SECONDS = 0.2  # so that tests need not wait for 5 s


def is_released(word: str) -> bool:
    return bool(current_setup().current_store().call("SISMEMBER", "released", word))


class Noting(IterableJob, retry=3):
    """Notes its hooks."""

    def on_start(self) -> None:
        note("start", self.arguments[0])

    def on_resume(self) -> None:
        note("resume", self.arguments[0], self.cursor)

    def on_stop(self) -> None:
        note("stop", self.arguments[0])

    def on_cancel(self) -> None:
        note("cancel", self.arguments[0], self.cursor)

    def on_complete(self) -> None:
        note("complete", self.arguments[0])


class Steps(Noting, max_retries_after_interruption=-1):
    """Numbers, one after the other, each in a little while; at `gate` it waits, without a stop in the way."""

    def build_enumerator(
        self, word: str, count: int, gate: int = -1, *, cursor: int | None
    ) -> Iterator[tuple[int, int]]:
        return sequence_enumerator(range(count), cursor=cursor)

    def each_iteration(self, number: int, word: str, count: int, gate: int = -1) -> None:
        running = current_job()
        assert running is not None
        if number == gate:
            note("gate", word)
        while number == gate and not is_released(word) and not running.stopping:
            time.sleep(0.005)
        time.sleep(SECONDS_OF_A_STEP)
        note("did", word, number)


class Failing(Noting):
    """Fails at an item until it is released; retried at once."""

    def retry_in(self, count: int, error: Exception, payload: object) -> float:
        return 0.01

    def build_enumerator(self, word: str, at: int, *, cursor: int | None) -> Iterator[tuple[int, int]]:
        return sequence_enumerator(range(5), cursor=cursor)

    def each_iteration(self, number: int, word: str, at: int) -> None:
        if number == at and not is_released(word):
            current_setup().current_store().call("SADD", "released", word)
            raise ValueError(word)
        note("did", word, number)


class Turns(Steps, max_iteration_runtime=0.05):
    """Lets others of its queue go first."""


class AsyncSteps(Noting, max_retries_after_interruption=-1):
    """The same on the event loop."""

    def build_enumerator(
        self, word: str, count: int, gate: int = -1, *, cursor: int | None
    ) -> Iterator[tuple[int, int]]:
        return sequence_enumerator(range(count), cursor=cursor)

    async def each_iteration(self, number: int, word: str, count: int, gate: int = -1) -> None:
        running = current_job()
        assert running is not None
        if number == gate:
            await asyncio.to_thread(note, "gate", word)
        while number == gate and not await asyncio.to_thread(is_released, word) and not running.stopping:
            await asyncio.sleep(0.005)
        await asyncio.sleep(SECONDS_OF_A_STEP)
        await asyncio.to_thread(note, "did", word, number)
