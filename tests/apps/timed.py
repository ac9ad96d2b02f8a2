"""Jobs with time limits."""

from __future__ import annotations

import re
import time

from kiqcluster import job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note, record, stubborn

__all__ = ["asking", "deaf", "endless", "hog", "record", "stubborn"]


@job(timeout_hard=0.5, retry=3)
def endless(word: str) -> None:
    """Runs until the list `release` has something for it."""
    note(f"began {word}")
    while not current_setup().current_store().call("LLEN", "release"):
        time.sleep(0.01)
    note(f"ended {word}")


def hang(*_: object) -> None:
    note("asked")
    while not current_setup().current_store().call("LLEN", "answer"):
        time.sleep(0.01)


@job(timeout_hard=0.5, retry=3, retry_in=hang)
def asking(word: str) -> None:
    """Runs for ever, and its hook as well until the list `answer` has something for it."""
    note(f"began {word}")
    while True:
        time.sleep(0.01)


@job(timeout_hard=0.5, retry=0)
def deaf(word: str) -> None:
    """Holds the interpreter for ever."""
    note(f"holds {word}")
    calculate()


@job()
def hog(word: str) -> None:
    """Holds the interpreter for ever, the first time; then it runs until the list `release` has something for it."""
    note(f"holds {word}")
    if current_setup().current_store().call("INCR", "hogs") == 1:
        calculate()
    while not current_setup().current_store().call("LLEN", "release"):
        time.sleep(0.01)


def calculate() -> None:
    """Calculate for years within the library of regular expressions, which keeps the interpreter."""
    re.match(r"(a+)+$", "a" * 60 + "b")
