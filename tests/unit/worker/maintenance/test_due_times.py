"""Due times: a process wakes for what it knows, and seldom in vain."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

import pytest

from kiqcluster.worker.maintenance.due_times import GATHER_SECONDS, MARGIN_SECONDS, SPREAD_SECONDS, DueTimes


@pytest.fixture
def times() -> DueTimes:
    return DueTimes(Random(1))


def test_nothing_known_is_never(times: DueTimes) -> None:
    times.begin(1)

    assert times.wake_at() == inf
    times.learn("schedule", inf, 0.0)
    assert times.wake_at() == inf
    assert times.take_due(1e12) == []


def test_a_process_alone_wakes_at_the_earliest_time(times: DueTimes) -> None:
    times.begin(1)
    times.learn("retry", 20.0, 0.0)
    times.learn("schedule", 10.0, 0.0)

    assert times.wake_at() == 10.0 + MARGIN_SECONDS


def test_sources_that_are_due_are_taken_once(times: DueTimes) -> None:
    times.begin(1)
    for key, at in (("retry", 10.0), ("schedule", 10.001), ("later", 11.0)):
        times.learn(key, at, 0.0)

    assert times.take_due(10.5) == ["retry", "schedule"]
    assert times.take_due(10.5) == []
    assert times.wake_at() == 11.0 + MARGIN_SECONDS


def test_a_poll_forgets_what_was_known_of_its_source(times: DueTimes) -> None:
    times.learn("schedule", 10.0, 0.0)
    times.learn("retry", 11.0, 0.0)

    times.forget("schedule")

    assert times.wake_at() == 11.0 + MARGIN_SECONDS


def test_a_poll_of_another_process_leaves_what_was_noted_since(times: DueTimes) -> None:
    """The other one knows what was there when it polled, and nothing of what was written afterwards."""
    times.learn("schedule", 10.0, 2.0)
    times.expect("retry", 11.0, 5.0)

    for key in ("schedule", "retry", "unknown"):
        times.forget(key, before=4.0)

    assert times.wake_at() == 11.0 + MARGIN_SECONDS


def test_an_entry_that_this_process_writes_counts_if_it_is_the_first(times: DueTimes) -> None:
    times.learn("schedule", 10.0, 0.0)
    times.expect("schedule", 12.0, 1.0)
    assert times.wake_at() == 10.0 + MARGIN_SECONDS

    times.expect("schedule", 8.0, 2.0)

    assert times.wake_at() == 8.0 + MARGIN_SECONDS


def test_a_fleet_wakes_within_the_spread_and_not_at_once(times: DueTimes) -> None:
    times.begin(50)
    times.learn("schedule", 10.0, 0.0)

    drawn = [times.wake_at() - 10.0 for _ in range(1_000)]

    assert 0.0 < min(drawn) < SPREAD_SECONDS / 10
    assert SPREAD_SECONDS * 0.9 < max(drawn) <= SPREAD_SECONDS + MARGIN_SECONDS
    assert len(set(drawn)) > 900


def test_entries_that_are_due_together_share_a_wake(times: DueTimes) -> None:
    times.begin(1)
    times.woke(10.0, in_vain=False)
    times.learn("schedule", 10.001, 0.0)

    assert times.wake_at() == 10.0 + GATHER_SECONDS


@pytest.mark.parametrize("processes", [1, 2, 1_000])
def test_between_two_polls_a_process_wakes_in_vain_a_few_times_at_most(processes: int) -> None:
    """Others are always faster, and something is always due."""
    poll_at, now, wakes = 10_000.0, 0.0, 0
    times = DueTimes(Random(processes))
    times.begin(processes)

    while True:
        times.learn("schedule", now, now)
        now = times.wake_at()
        if now >= poll_at:
            break
        assert times.take_due(now) == ["schedule"]
        times.woke(now, in_vain=True)
        wakes += 1

    assert wakes < 30


@pytest.mark.parametrize("end", [lambda times: times.begin(2), lambda times: times.woke(0.0, in_vain=False)])
def test_a_poll_ends_the_backing_off_and_so_does_a_wake_that_finds_something(
    times: DueTimes, end: Callable[[DueTimes], None]
) -> None:
    times.begin(2)
    for _ in range(8):
        times.woke(0.0, in_vain=True)
    times.learn("schedule", 10.0, 0.0)
    assert max(times.wake_at() for _ in range(100)) > 11.0

    end(times)
    times.learn("schedule", 10.0, 0.0)

    assert max(times.wake_at() for _ in range(100)) <= 10.0 + SPREAD_SECONDS + MARGIN_SECONDS


def test_many_that_know_the_same_times_are_quick_and_seldom_wake_in_vain() -> None:
    """Whoever wakes first moves the entry; all of them know the time of the next one."""
    fleet = [DueTimes(Random(seed)) for seed in range(40)]
    late, in_vain = [], 0
    for each in fleet:
        each.begin(len(fleet))
    for at in map(float, range(10, 60)):
        wakes = []
        for each in fleet:
            each.learn("schedule", at, 0.0)
            wakes.append((each.wake_at(), each))
        wakes.sort(key=lambda pair: pair[0])
        late.append(wakes[0][0] - at)
        for number, (moment, each) in enumerate(wakes):
            if moment < at + 1.0:  # else it learns of the next entry before it wakes for this one
                each.take_due(moment)
                each.woke(moment, in_vain=number > 0)
                in_vain += number > 0

    assert max(late) <= SPREAD_SECONDS + MARGIN_SECONDS
    assert in_vain <= 15 * len(fleet)
