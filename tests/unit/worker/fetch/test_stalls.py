"""Which gaps between two looks count as a stall of the host."""

from __future__ import annotations

import pytest

from kiqcluster.worker.fetch.stalls import MIN_STALL_SECONDS, STALL_INTERVAL_SECONDS, StallDetector
from tests.kit import ManualClock

GAP = 3 * MIN_STALL_SECONDS


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now=100.0)


@pytest.fixture
def detector(clock: ManualClock) -> StallDetector:
    return StallDetector(clock)


def look(detector: StallDetector, clock: ManualClock, seconds: float, cpu: float = 0.0) -> bool:
    """Look again after some time; return whether a stall was found."""
    clock.time += seconds
    clock.used += cpu
    detector.check(clock.time)
    return detector.over_at == clock.time


def test_the_first_look_finds_none(detector: StallDetector, clock: ManualClock) -> None:
    assert not look(detector, clock, GAP)


def test_a_late_look_without_cpu_time_is_a_stall(detector: StallDetector, clock: ManualClock) -> None:
    detector.record(clock.time)

    assert look(detector, clock, GAP)


@pytest.mark.parametrize(("seconds", "cpu"), [(MIN_STALL_SECONDS / 2, 0.0), (GAP, GAP), (GAP, 0.6 * GAP)])
def test_a_look_in_time_and_a_busy_process_are_none(
    detector: StallDetector, clock: ManualClock, seconds: float, cpu: float
) -> None:
    detector.record(clock.time)

    assert not look(detector, clock, seconds, cpu)


def test_stalls_that_follow_one_another_count_once(detector: StallDetector, clock: ManualClock) -> None:
    detector.record(clock.time)

    found = [look(detector, clock, GAP) for _ in range(5)]

    assert found == [True, False, False, False, False]
    clock.time += STALL_INTERVAL_SECONDS
    assert look(detector, clock, GAP)
