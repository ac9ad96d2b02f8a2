"""Clocks that are wrong, step, or change their date: nothing runs early, twice or never, and nothing is thrown away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import pytest

from kiqcluster.api.records import JobRecord
from kiqcluster.process.config import Config
from kiqcluster.process.durations import due_at
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.keys import Keys, utc_date
from kiqcluster.sidekiq.outcome import Dead, Done
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.maintenance.poller import Poller
from kiqcluster.worker.run.retry import plan
from tests.kit import ManualClock

ME = Member("host:1:aaaaaaaaaaaa", 1, "boot ns 1 2.00")
DAY_SECONDS = 86_400.0
NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC).timestamp()


@pytest.fixture
def engine(store: Store) -> Engine:
    engine = Engine(store, DeadSetLimits(100, 30 * DAY_SECONDS))
    engine.join(ME)
    return engine


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(time.time())


@pytest.fixture
def poller(store: Store, setup: Setup, engine: Engine, clock: ManualClock) -> Poller:
    return Poller(Runtime(Config(), store, setup, Events(), clock), engine, lambda name, error: None)


@pytest.fixture(params=["UTC", "Europe/Berlin", "Pacific/Kiritimati", "America/St_Johns"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The zone of this process."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def scheduled(store: Store, name: str, at: float) -> None:
    store.call("ZADD", store.keys.schedule, at, json.dumps({"class": "X", "queue": "q", "args": [], "jid": name}))


def settle(engine: Engine, store: Store, outcome: Done | Dead, now: float, call: int = 1) -> None:
    store.call("LPUSH", "queue:q", "{}")
    with store.borrowed() as connection:
        _, reserved = engine.exchange(connection, ME, call, {"q": (1, 1)}, [], now)
        assert reserved is not None
        engine.settle(connection, [Settlement(reserved.units[0], outcome)], now)


@pytest.mark.parametrize("ahead", [60.0, DAY_SECONDS, 400 * DAY_SECONDS])
def test_a_poller_whose_clock_is_ahead_runs_nothing_early_and_what_is_due_once(
    poller: Poller, store: Store, clock: ManualClock, ahead: float
) -> None:
    scheduled(store, "due", clock.time - 1)
    scheduled(store, "later", clock.time + 50)
    scheduled(store, "much later", clock.time + DAY_SECONDS / 2)
    clock.time += ahead

    assert [poller.poll(), poller.poll()] == [1, 0]

    (pushed,) = store.call("LRANGE", "queue:q", 0, -1)
    assert abs(json.loads(pushed)["enqueued_at"] - time.time()) < 30
    assert store.call("ZCARD", store.keys.schedule) == 2


def test_a_clock_that_steps_back_and_forth_moves_each_entry_once(
    poller: Poller, store: Store, clock: ManualClock
) -> None:
    scheduled(store, "a", clock.time - 5)
    moved = []
    for step in (-3_600.0, 0.0, 3_590.0, 20.0, -20.0, 20.0):
        clock.time += step
        moved.append(poller.poll())

    assert sum(moved) == 1
    assert store.call("LLEN", "queue:q") == 1


def test_a_worker_whose_clock_is_years_ahead_empties_no_dead_set(engine: Engine, store: Store) -> None:
    now = time.time()
    store.call("ZADD", store.keys.dead, now - 29 * DAY_SECONDS, "kept", now - 31 * DAY_SECONDS, "too old")

    settle(engine, store, Dead(b"wrong", now + 1_000 * DAY_SECONDS), now + 1_000 * DAY_SECONDS)

    assert store.call("ZRANGE", store.keys.dead, 0, -1) == [b"kept", b"wrong"]


def test_the_days_of_the_statistics_are_utc_also_at_the_years_end(engine: Engine, store: Store, zone: str) -> None:
    settle(engine, store, Done(), NEW_YEAR - 0.001, call=1)
    settle(engine, store, Done(), NEW_YEAR, call=2)

    assert (utc_date(NEW_YEAR - 0.001), utc_date(NEW_YEAR)) == ("2026-12-31", "2027-01-01")
    assert store.call("GET", store.keys.processed_on("2026-12-31")) == b"1"
    assert store.call("GET", store.keys.processed_on("2027-01-01")) == b"1"


def test_minutes_of_executions_are_utc_and_have_names_of_their_own_across_the_year() -> None:
    keys, last = Keys(), datetime.fromtimestamp(NEW_YEAR - 1, UTC)
    minutes = [last + timedelta(minutes=number) for number in range(-60, 60)]

    for form in (keys.executions, keys.executions_7):
        assert len({form(at) for at in minutes}) == len(minutes)
    assert keys.executions(last) == "j|261231|23:59"


def test_an_hour_that_comes_twice_is_told_apart_by_its_zone() -> None:
    summer, winter = timezone(timedelta(hours=2)), timezone(timedelta(hours=1))

    first = due_at(datetime(2026, 10, 25, 2, 30, tzinfo=summer), 0.0)
    second = due_at(datetime(2026, 10, 25, 2, 30, tzinfo=winter), 0.0)

    assert second - first == 3_600


def test_a_job_that_comes_from_a_clock_ahead_has_waited_for_no_time() -> None:
    assert JobRecord(b'{"class":"X","args":[],"enqueued_at":2000.5}').latency(1_000.0) == 0.0


def test_a_first_failure_in_the_future_neither_ends_nor_prolongs_the_retries_wrongly() -> None:
    payload = {"class": "X", "retry_for": 60, "failed_at": 5_000.0, "retry_count": 0}

    stepped_back = plan(payload, "q", ValueError("x"), True, 25, 1_000.0)
    later = plan(payload, "q", ValueError("x"), True, 25, 5_061.0)

    assert (stepped_back.exhausted, later.exhausted) == (False, True)
