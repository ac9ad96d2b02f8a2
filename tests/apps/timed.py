"""Jobs with time limits."""

from __future__ import annotations

import time

from kiqcluster import job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import hold_interpreter, note, record, stubborn

__all__ = ["deaf", "endless", "record", "stubborn"]


@job(timeout_hard=0.5, retry=3)
def endless(word: str) -> None:
    """Runs until the list `release` has something for it."""
    note(f"began {word}")
    while not current_setup().current_store().call("LLEN", "release"):
        time.sleep(0.01)
    note(f"ended {word}")


@job(timeout_hard=0.5, retry=0)
def deaf(word: str) -> None:
    """Holds the interpreter for ever."""
    hold_interpreter(word)
