"""Jobs with a rate limit, by their option and inside of perform."""

from __future__ import annotations

import time

from kiqcluster import job, limits
from kiqcluster.process.runtime import current_setup
from tests.apps import counting
from tests.apps.basic import note

LARGEST, SECONDS = 5, 0.5
DOOR = limits.concurrent(1, wait=0.2, delay=0.3, name="door")


def note_begin(word: str) -> None:
    seconds, microseconds = current_setup().current_store().call("TIME")
    note(word, int(seconds) + int(microseconds) / 1e6)


@job(rate_limit=limits.sliding_window(LARGEST, SECONDS))
def by_option(word: str) -> None:
    note_begin(word)


@job(rate_limit=limits.fixed_window(LARGEST, SECONDS))
def in_window(word: str) -> None:
    note_begin(word)


@job(rate_limit=limits.leaky_bucket(LARGEST, LARGEST / SECONDS))
def leaking(word: str) -> None:
    note_begin(word)


@job(retry=0)
def in_block(word: str) -> None:
    with limits.sliding_window(LARGEST, SECONDS, name="shared"):
        note_begin(word)


@job(retry=0)
def within(word: str) -> None:
    """One at a time is within; the list `release` lets it leave.  It does not end before the list `end` lets it."""
    with DOOR:
        note("began", word)
        hold_until("release")
    note("left", word)
    hold_until("end")
    note("ended", word)


@job(rate_limit=limits.concurrent(2, delay=0.1))
def counted(word: str) -> None:
    """Notes how many run, itself among them."""
    with counting.counted("counted") as running:
        note("began", word, running)
        time.sleep(0.005)
    note("ended", word)


def hold_until(key: str) -> None:
    while not current_setup().current_store().call("LLEN", key):
        time.sleep(0.01)
