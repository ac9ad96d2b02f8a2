"""Jobs of classes that are routed to different shards: each notes its end in a file, which no Redis can lose."""

from __future__ import annotations

import os
import time

from kiqcluster import job

LEDGER = "SHARDS_LEDGER"  # of the environment: path of the file
RETRY_SECONDS = 0.05


def note(name: str, word: str, seconds: float) -> None:
    """Run for a while, then write a line: the class, the job, and the slot that ran it."""
    time.sleep(seconds)
    line = f"{name} {word} {os.environ['KIQ_SLOT']}\n"
    descriptor = os.open(os.environ[LEDGER], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(descriptor, line.encode())
    os.close(descriptor)


@job(tags=["far"])
def far(word: str, seconds: float) -> None:
    """Is routed to another shard."""
    note("far", word, seconds)


@job(tags=["near"], queue="near", retry_in=lambda *_: RETRY_SECONDS)
def near(word: str, seconds: float) -> None:
    """Stays in the default shard, and pushes a job to the other one."""
    far.perform_async(f"{word}-child", seconds)
    note("near", word, seconds)


@job(tags=["moved"], queue="moved")
def moved(word: str, seconds: float) -> None:
    """Is in the default shard until a rule moves it."""
    note("moved", word, seconds)
