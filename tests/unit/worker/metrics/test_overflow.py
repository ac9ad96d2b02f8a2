"""What the dead set drops is counted at once, and said once an hour."""

from __future__ import annotations

import pytest

from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.store.entry_moves import MAX_DROPPED, Dropped
from kiqcluster.worker.metrics.overflow import LOG_PERIOD_SECONDS, Overflow
from tests.kit import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def said() -> list[int]:
    return []


@pytest.fixture
def metrics() -> JobMetrics:
    return JobMetrics(1, list)


@pytest.fixture
def overflow(clock: ManualClock, said: list[int], metrics: JobMetrics) -> Overflow:
    events = Events()
    events.listen(lambda name, fields: said.append(fields["count"]) if name == "dead_set_overflows" else None)
    runtime = Runtime(Config(), Store("redis://nowhere.invalid"), Setup(), events, clock)
    return Overflow(runtime, metrics, lambda: said.append(-1))


def test_entries_that_were_too_many_are_said_at_once_and_then_once_an_hour(
    overflow: Overflow, clock: ManualClock, said: list[int]
) -> None:
    for count in (3, 1, 1):
        overflow.note(Dropped(0, count))
    assert said == [3]

    clock.time += LOG_PERIOD_SECONDS
    overflow.note(Dropped(0, 5))
    assert said == [3, 7]


def test_entries_that_were_too_old_are_counted_but_no_overflow(
    overflow: Overflow, said: list[int], metrics: JobMetrics
) -> None:
    overflow.note(Dropped(4, 0))

    assert said == []
    (row,) = [row for row in metrics.changed() if row.family.name == "sidekiq_dead_jobs_dropped"]
    assert row.values == [4, 0]
    assert not [row for row in metrics.changed() if row.family.name == "sidekiq_dead_jobs_dropped"]


def test_the_rest_of_a_slice_is_asked_for(overflow: Overflow, said: list[int]) -> None:
    overflow.note(Dropped(MAX_DROPPED, 0))

    assert said == [-1]
