"""Jobs of chains.  Each notes its runs to the list `ledger`, with what tells one push of it from another."""

from __future__ import annotations

import asyncio
import time

from kiqcluster import current_job, job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note

FAILS_AT_FIRST_EVERY = 5  # chains whose second job fails at its first try


@job(namespace="chains", max_retries_after_interruption=-1)
def begin(number: int) -> int:
    told("begin", number)
    time.sleep(0.005)
    return number


@job(namespace="chains", retry=5, retry_in=lambda *_: 0.05, max_retries_after_interruption=-1)
async def double(number: int, factor: int) -> int:
    told("double", number)
    await asyncio.sleep(0.005)
    if number % FAILS_AT_FIRST_EVERY == 0 and current_setup().current_store().call("SADD", "failed", number):
        raise ValueError("not yet")
    return number * factor


@job(namespace="chains", queue="ends", result_ttl=3600, max_retries_after_interruption=-1)
def end(number: int) -> str:
    told("end", number)
    return f"number {number}"


CHAIN = begin.then(double, 2).then(end)


def told(word: str, number: int) -> None:
    running = current_job()
    assert running is not None
    note(word, str(number), running.jid, str(running.payload["enqueued_at"]), str(running.payload.get("retry_count")))
