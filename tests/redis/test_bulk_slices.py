"""How large the slices of a bulk action are: that follows what Redis takes for one, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kiqcluster import Push
from kiqcluster.api import DeadSet, JobRecord
from kiqcluster.api.bulk import Selection, ask, start
from kiqcluster.api.bulk import sources as sources_module
from kiqcluster.api.bulk.runner import FIRST_BATCH, MAX_BATCH, MIN_BATCH, SLOW_SECONDS, BulkRun
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import ManualClock
from tests.stored_jobs import NOW, fill_set

COUNT = 3_000


@pytest.fixture
def slices(store: Store, setup: Setup, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """Retry all dead jobs; return how many entries each script has moved.

    seconds_of_redis, seconds_of_planning: by the clock of the run, of a script and of each job that is planned.
    """
    moved: list[int] = []

    def run(seconds_of_redis: float = 0.0, seconds_of_planning: float = 0.0) -> list[int]:
        clock = ManualClock(NOW)
        move_bulk = sources_module.move_bulk

        def timed(store: Store, key: str, moves: Any, *rest: Any) -> Any:
            moved.append(len(moves))
            clock.time += seconds_of_redis
            return move_bulk(store, key, moves, *rest)

        def planned(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            clock.time += seconds_of_planning
            return proceed()

        monkeypatch.setattr(sources_module, "move_bulk", timed)
        setup.client_middleware.add(planned)
        fill_set(store, "dead", range(COUNT), 1.0)
        identifier = ask(store, DeadSet, "retry", Selection(), clock=clock)
        assert start(store, identifier, clock)
        BulkRun(store, identifier, clock, None, are_arguments_json=True).run()
        assert sum(moved) == COUNT
        return moved

    return run


def test_slices_grow_while_redis_is_quick(slices: Callable[..., list[int]]) -> None:
    found = slices()

    assert found[0] == FIRST_BATCH
    assert max(found) == MAX_BATCH
    assert all(one <= other for one, other in pairwise(found[:-1]))


def test_slices_shrink_while_redis_is_slow(slices: Callable[..., list[int]]) -> None:
    found = slices(seconds_of_redis=2 * SLOW_SECONDS)

    assert min(found[:-1]) == MIN_BATCH
    assert all(one >= other for one, other in pairwise(found[:-1]))


def test_slow_middleware_makes_no_slice_smaller(slices: Callable[..., list[int]]) -> None:
    found = slices(seconds_of_planning=SLOW_SECONDS / 10)

    assert max(found) == MAX_BATCH


def test_a_count_leaves_as_much_time_to_other_threads_as_it_computes(store: Store, setup: Setup) -> None:
    clock, pauses = ManualClock(NOW), list[float]()

    class Pausing(BulkRun):
        def pause(self, seconds: float) -> bool:
            pauses.append(seconds)
            return super().pause(0.0)

    def computed(record: JobRecord) -> str:
        clock.used += 0.001
        return "text"

    fill_set(store, "dead", range(COUNT), 1.0)
    identifier = ask(store, DeadSet, "retry", Selection(arguments="text"), clock=clock)

    Pausing(store, identifier, clock, computed, are_arguments_json=False).run()

    assert sum(pauses) >= 0.001 * (COUNT - MAX_BATCH)  # but for the last slice
