"""Jobs of batches.  What a callback was told is written to the list `ledger`."""

from __future__ import annotations

import time

from kiqcluster import current_job, job
from kiqcluster.batches import NormalFailure, current_batch
from tests.apps.basic import note

FAILED_EVERY, DEAD_EVERY = 7, 11  # rows that fail, and those that die


@job(namespace="batches", retry=2, retry_in=lambda *_: 0.1, max_retries_after_interruption=-1)
def handle_row(number: int) -> None:
    """Takes a moment; some rows fail, some are errors at each try."""
    running = current_job()
    assert running is not None
    running.log(f"row {number}")
    time.sleep(0.01)
    if number % DEAD_EVERY == 0:
        raise ValueError(f"row {number} cannot be read")
    if number % FAILED_EVERY == 0:
        raise NormalFailure(f"row {number} has no name")


@job(namespace="batches", max_retries_after_interruption=-1)
def split(numbers: list[int]) -> None:
    """Adds a job for each number, in one step; another try finds that it is done."""
    batch = current_batch()
    assert batch is not None
    if batch.status().total == 1:
        batch.add(handle_row, [[number] for number in numbers])


@job(namespace="batches", queue="callbacks")
def completed(batch: str) -> None:
    told("completed", batch)


@job(namespace="batches", queue="callbacks")
def succeeded(batch: str) -> None:
    told("succeeded", batch)


@job(namespace="batches", queue="callbacks")
def died(batch: str) -> None:
    told("died", batch)


def told(word: str, batch: str) -> None:
    """Note a callback with what tells one push of it from another, not one run."""
    running = current_job()
    assert running is not None
    note(word, batch, running.jid, running.payload["enqueued_at"])
