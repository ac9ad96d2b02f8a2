"""An iterable job that sees no stop."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kiqcluster.iterable import IterableJob, sequence_enumerator
from tests.apps.basic import note

SECONDS = 600


class Stubborn(IterableJob):
    """Its third item takes very long."""

    def build_enumerator(self, word: str, *, cursor: int | None) -> Iterator[tuple[int, int]]:
        return sequence_enumerator(range(5), cursor=cursor)

    def each_iteration(self, number: int, word: str) -> None:
        if number == 2:
            note("gate", word)
            time.sleep(SECONDS)
