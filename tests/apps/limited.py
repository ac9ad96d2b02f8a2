"""Jobs of which two run at once, by a feature of the test's own: a begin row that enters a set or parks.

No test may import this: the features in force would be replaced for all tests of its process.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from kiqcluster import Run, job
from kiqcluster.application.registry import Definition
from kiqcluster.features.hooks.job_end import JobEnd
from kiqcluster.features.stacks import STACKS, Stacks
from kiqcluster.sidekiq.outcome import Effect
from tests.apps.basic import note
from tests.apps.counting import counted
from tests.apps.limited_places import MAX_RUNNING_JOBS, SLOTS


class TwoAtOnce:
    """Its server half."""

    name = "two_at_once"
    keys: frozenset[str] = frozenset()

    def is_used_by(self, definition: Definition) -> bool:
        return definition.name == "limited"

    def on_begin(self, run: Run) -> Iterable[Effect]:
        return [Effect("enter", SLOTS, (MAX_RUNNING_JOBS, "park"))]

    def on_end(self, end: JobEnd) -> Iterable[Effect]:
        return []

    def on_end_failed(self, end: JobEnd, error: BaseException) -> Iterable[Effect]:
        return []


STACKS.value = Stacks(server=(TwoAtOnce(),))


@job()
def limited(word: str) -> None:
    """Notes how many run, itself among them."""
    with counted("limited") as running:
        note("began", word, running)
        time.sleep(0.02)
    note("ended", word)
