"""What the jobs do."""

from __future__ import annotations

import time

from benchmarks import ledger

__all__ = ["ALL", "mark", "noop", "sleep", "stamp", "tick"]


def noop() -> None:
    """Nothing: what is measured is everything around it."""


def mark(seconds: float = 0.0) -> None:
    """Do what the jobs around it do, and say when: by these their rate is known."""
    ledger.write("mark")
    if seconds:
        time.sleep(seconds)


def sleep(seconds: float) -> None:
    """Wait, as for a database."""
    time.sleep(seconds)


def stamp(sent: float, seconds: float = 0.0) -> None:
    """Say when it starts, and when it was sent; then take a while."""
    ledger.write("stamp", sent)
    if seconds:
        time.sleep(seconds)


def tick(number: int, seconds: float) -> None:
    """Take a while, and say when it starts and ends."""
    ledger.write("start", number)
    time.sleep(seconds)
    ledger.write("end", number)


ALL = (noop, mark, sleep, stamp, tick)
