"""The frozen clock: kiqcluster goes by it, durations do not, and the real one comes back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.errors import InvalidPush
from kiqcluster.process.clock import SystemClock
from kiqcluster.testing import enqueued, fake, frozen_clock


def note(n: int) -> None: ...


def test_it_stands_still_until_it_is_moved() -> None:
    with frozen_clock(1_000.0) as clock:
        assert (clock.now(), SystemClock().now()) == (1_000.0, 1_000.0)

        clock.move(1.5)
        clock.move(timedelta(minutes=1))
        assert SystemClock.now() == 1_061.5

        clock.set(datetime(2030, 1, 1, tzinfo=UTC))
        assert SystemClock.now() == 1_893_456_000.0


def test_it_begins_now_unless_told() -> None:
    with frozen_clock() as clock:
        assert abs(clock.now() - time.time()) < 5


def test_the_real_one_comes_back_however_deep_it_was() -> None:
    real = SystemClock.now

    with pytest.raises(ZeroDivisionError), frozen_clock(1.0):
        with frozen_clock(2.0):
            assert SystemClock.now() == 2.0
        assert SystemClock.now() == 1.0
        raise ZeroDivisionError

    assert SystemClock.now is real


def test_a_tool_that_replaces_python_s_time_stops_it_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """As freezegun does: it replaces what modules have, and knows nothing of names that a class has bound before."""
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)

    with using_registry(Registry()), fake() as jobs:
        job(note).perform_in(60, 1)

        jobs.assert_enqueued("note", 1, at=2_000_000_060.0)


def test_durations_go_on() -> None:
    with frozen_clock(1.0):
        assert SystemClock.monotonic is time.monotonic


def test_a_datetime_without_a_zone_is_refused() -> None:
    with frozen_clock() as clock, pytest.raises(InvalidPush, match="no time zone"):
        clock.set(datetime.fromisoformat("2030-01-01"))


@pytest.mark.usefixtures("setup")
def test_jobs_bear_its_time() -> None:
    @job
    def welcome() -> None: ...

    with frozen_clock(1_893_456_000.0) as clock, fake():
        welcome.perform_async()
        clock.move(10)
        welcome.perform_in(60)

        first, second = enqueued()
        assert (first.created_at, first.enqueued_at, first.at) == (1_893_456_000.0, 1_893_456_000.0, None)
        assert (second.created_at, second.at) == (1_893_456_010.0, 1_893_456_070.0)
