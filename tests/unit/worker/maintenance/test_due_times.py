"""Due times: a process wakes for what it knows, and seldom in vain."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.worker.maintenance.due_times import (
    GATHER_SECONDS,
    MARGIN_SECONDS,
    MAX_SPREAD_SECONDS,
    SPREAD_SECONDS,
    DueTimes,
    gathered,
)
from kiqcluster.worker.maintenance.duties import longest_gap


@pytest.fixture
def times() -> DueTimes:
    """Those of a process that follows some sources."""
    times = DueTimes(Random(1))
    for key in ("retry", "schedule", "later"):
        times.follow(key, 0.0)
    return times


def test_nothing_known_is_never(times: DueTimes) -> None:
    times.begin(1)

    assert times.wake_at() == inf
    times.learn("schedule", inf)
    assert times.wake_at() == inf
    assert times.take_due(1e12) == []


def test_a_process_alone_wakes_at_the_earliest_time(times: DueTimes) -> None:
    times.begin(1)
    times.learn("retry", 20.0)
    times.learn("schedule", 10.0)

    assert times.wake_at() == 10.0 + MARGIN_SECONDS


def test_sources_that_are_due_are_taken_once(times: DueTimes) -> None:
    times.begin(1)
    for key, at in (("retry", 10.0), ("schedule", 10.001), ("later", 11.0)):
        times.learn(key, at)

    assert times.take_due(10.5) == ["retry", "schedule"]
    assert times.take_due(10.5) == []
    assert times.wake_at() == 11.0 + MARGIN_SECONDS


def test_a_poll_begins_anew_with_its_source(times: DueTimes) -> None:
    times.learn("schedule", 10.0)
    times.learn("retry", 11.0)

    times.follow("schedule", 1.0)

    assert times.wake_at() == 11.0 + MARGIN_SECONDS


def test_a_source_that_another_process_has_polled_is_left_to_it(times: DueTimes) -> None:
    times.learn("schedule", 10.0)
    times.follow("retry", 5.0)
    times.learn("retry", 11.0)

    for key in ("schedule", "retry", "unknown"):
        times.leave(key, polled_at=4.0)
        times.learn("unknown", 1.0)

    assert times.wake_at() == 11.0 + MARGIN_SECONDS


def test_what_this_process_writes_it_wakes_for_itself(times: DueTimes) -> None:
    """It has the smallest spread: perhaps nobody else knows of it."""
    times.begin(50)
    for _ in range(8):
        times.woke(0.0, in_vain=True)
    times.expect("schedule", 10.0)
    times.expect("schedule", 12.0)
    times.leave("schedule", polled_at=1e9)

    assert 10.0 < max(times.wake_at() for _ in range(100)) <= 10.0 + SPREAD_SECONDS + MARGIN_SECONDS
    assert times.take_due(10.0) == ["schedule"]
    assert times.wake_at() > 12.0


@given(st.floats(0, 1e9))
def test_entries_are_gathered_a_moment_later_and_never_before(at: float) -> None:
    assert -1e-6 <= gathered(at) - at <= GATHER_SECONDS + 1e-6


def test_a_fleet_wakes_within_the_spread_and_not_at_once(times: DueTimes) -> None:
    times.begin(50)
    times.learn("schedule", 10.0)

    drawn = [times.wake_at() - 10.0 for _ in range(1_000)]

    assert 0.0 < min(drawn) < SPREAD_SECONDS / 10
    assert SPREAD_SECONDS * 0.9 < max(drawn) <= SPREAD_SECONDS + MARGIN_SECONDS
    assert len(set(drawn)) > 900


def test_entries_that_are_due_together_share_a_wake(times: DueTimes) -> None:
    times.begin(1)
    times.woke(10.0, in_vain=False)
    times.learn("schedule", 10.001)

    assert times.wake_at() == 10.0 + GATHER_SECONDS


@pytest.mark.parametrize("processes", [1, 2, 1_000])
def test_between_two_looks_a_process_wakes_in_vain_some_dozens_of_times_at_most(processes: int) -> None:
    """Others are always faster, and something is always due."""
    look_at, now, wakes = longest_gap(5.0), 0.0, 0
    times = DueTimes(Random(processes))
    times.begin(processes)
    times.follow("schedule", 0.0)

    while True:
        times.learn("schedule", now)
        now = times.wake_at()
        if now >= look_at:
            break
        assert times.take_due(now) == ["schedule"]
        times.woke(now, in_vain=True)
        wakes += 1

    assert wakes < 80


@pytest.mark.parametrize("end", [lambda times: times.begin(2), lambda times: times.woke(0.0, in_vain=False)])
def test_a_look_ends_the_backing_off_and_so_does_a_wake_that_finds_something(
    times: DueTimes, end: Callable[[DueTimes], None]
) -> None:
    times.begin(2)
    for _ in range(8):
        times.woke(0.0, in_vain=True)
    times.learn("schedule", 10.0)
    assert 10.3 < max(times.wake_at() for _ in range(100)) <= 10.0 + MAX_SPREAD_SECONDS + MARGIN_SECONDS

    end(times)
    times.learn("schedule", 10.0)

    assert max(times.wake_at() for _ in range(100)) <= 10.0 + SPREAD_SECONDS + MARGIN_SECONDS


def test_those_that_know_the_same_times_are_quick() -> None:
    """Whoever wakes first moves the entry; all of them know the time of the next one."""
    fleet = [DueTimes(Random(seed)) for seed in range(3)]
    late = []
    for each in fleet:
        each.begin(len(fleet))
        each.follow("schedule", 0.0)
    for at in map(float, range(10, 60)):
        wakes = []
        for each in fleet:
            each.learn("schedule", at)
            wakes.append((each.wake_at(), each))
        wakes.sort(key=lambda pair: pair[0])
        late.append(wakes[0][0] - at)
        for number, (moment, each) in enumerate(wakes):
            each.take_due(moment)
            each.woke(moment, in_vain=number > 0)

    assert max(late) <= SPREAD_SECONDS + MARGIN_SECONDS
