"""Clock: time in which its reader stood still does not count."""

from __future__ import annotations

import pytest

from kiqcluster.process.clock import MIN_STANDSTILL_SECONDS, RunningClock
from tests.kit import ManualClock

MAX_PAUSE_SECONDS = 1.0


@pytest.fixture
def source() -> ManualClock:
    return ManualClock(1_000.0)


@pytest.fixture
def clock(source: ManualClock) -> RunningClock:
    return RunningClock(MAX_PAUSE_SECONDS, source.monotonic)


def test_a_running_clock_goes_as_the_system_does_while_it_is_read(clock: RunningClock, source: ManualClock) -> None:
    began = clock.monotonic()

    for _ in range(10):
        source.time += MAX_PAUSE_SECONDS + MIN_STANDSTILL_SECONDS
        clock.monotonic()

    assert clock.monotonic() - began == pytest.approx(10 * (MAX_PAUSE_SECONDS + MIN_STANDSTILL_SECONDS))
    assert clock.stood_still == 0


def test_of_a_standstill_a_running_clock_counts_no_more_than_one_pause(
    clock: RunningClock, source: ManualClock
) -> None:
    began = clock.monotonic()

    source.time += 45.0

    assert clock.monotonic() - began == pytest.approx(MAX_PAUSE_SECONDS)
    assert clock.stood_still == pytest.approx(45.0 - MAX_PAUSE_SECONDS)
    source.time += 1.0
    assert clock.monotonic() - began == pytest.approx(MAX_PAUSE_SECONDS + 1.0)


def test_each_standstill_is_taken_once(clock: RunningClock, source: ManualClock) -> None:
    source.time += 45.0
    clock.monotonic()

    assert clock.take_standstill() == pytest.approx(45.0 - MAX_PAUSE_SECONDS)
    assert clock.take_standstill() == 0
