"""What the jobs do."""

from __future__ import annotations

import time

from benchmarks import ledger

__all__ = ["ALL", "burn", "mark", "mark_burn", "noop", "sleep", "stamp", "tick"]


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


def burn(steps: int) -> None:
    """Compute in Python alone: nothing in here lets another thread run."""
    number = 1
    for step in range(steps):
        number = (number * 31 + step) & 0xFFFFFFF


def mark_burn(steps: int) -> None:
    """The same, and say when."""
    ledger.write("mark")
    burn(steps)


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


ALL = (noop, mark, sleep, burn, mark_burn, stamp, tick)
