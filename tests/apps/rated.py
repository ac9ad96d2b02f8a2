"""Jobs with a rate limit, by their option and inside of perform."""

from __future__ import annotations

from kiqcluster import job, limits
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note

LARGEST, SECONDS = 5, 0.5


def note_begin(word: str) -> None:
    seconds, microseconds = current_setup().current_store().call("TIME")
    note(word, int(seconds) + int(microseconds) / 1e6)


@job(rate_limit=limits.sliding_window(LARGEST, SECONDS))
def by_option(word: str) -> None:
    note_begin(word)


@job(retry=0)
def inside(word: str) -> None:
    with limits.sliding_window(LARGEST, SECONDS, name="shared"):
        note_begin(word)
