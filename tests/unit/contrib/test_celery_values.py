"""Values of options and settings of Celery: those that are converted, and those that are refused by their own name."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import Celery, Unsupported, shared_task
from kiqcluster.contrib.celery.declare import rate_limit
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import Fake, drain, enqueued, fake, frozen_clock, retries

HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _in_memory(registry: Registry, setup: Setup, kiq_fake: Fake) -> Iterator[None]:
    with fake():
        yield


def _charge() -> None: ...


def declared(**options: Any) -> Any:
    return shared_task(name="charge", **options)(_charge)


@pytest.mark.parametrize("value", [HOUR, 3_600, 3_600.0])
def test_results_expire_after_seconds_or_a_timedelta(value: Any) -> None:
    app = Celery("shop")
    app.conf.result_expires = value

    task = app.task(_charge)

    assert task.definition.local["result_ttl"] == 3_600


@pytest.mark.parametrize("value", [0, None, 1.5, -1, timedelta(0), timedelta(milliseconds=1_500), "60", True])
def test_results_that_never_expire_are_refused_where_they_are_set(value: Any) -> None:
    with pytest.raises(Unsupported, match=r"shop\.conf: result_expires = .* always expire here"):
        Celery("shop").conf.result_expires = value


@pytest.mark.parametrize(
    ("rate", "starts", "seconds"),
    [("1.5/s", 1, 1 / 1.5), ("2.5/m", 2, 48), (2.5, 2, 0.8), ("0.5/s", 1, 2), ("90/h", 90, 3_600)],
)
def test_a_fraction_of_a_rate_is_in_its_window(rate: Any, starts: int, seconds: float) -> None:
    limit = declared(rate_limit=rate).definition.local["rate_limit"]

    assert (limit.kind, limit.largest, limit.seconds) == ("sliding_window", starts, pytest.approx(seconds))


@pytest.mark.parametrize("rate", ["0", "0/m", 0, 0.0, "", None])
def test_a_rate_of_0_is_no_limit(rate: Any) -> None:
    assert "rate_limit" not in declared(rate_limit=rate).definition.local
    assert rate_limit("charge", rate) is None


def test_delays_may_be_timedeltas() -> None:
    task = declared(
        default_retry_delay=timedelta(seconds=5),
        autoretry_for=[LookupError],
        retry_kwargs={"countdown": timedelta(seconds=6)},
        retry_backoff_max=timedelta(seconds=7),
        time_limit=HOUR,
        soft_time_limit=timedelta(minutes=30),
        expires=2 * HOUR,
    )

    assert task.default_retry_delay == 5
    assert task.definition.retry_in(0, LookupError(), {}) == 6
    assert task.definition.local["timeout_hard"] == 3_600
    assert task.definition.local["timeout"] == 1_800
    assert task.definition.options["expires_in"] == 7_200


def test_so_may_those_of_a_call_and_of_a_retry() -> None:
    @shared_task(bind=True)
    def flaky(self: Any) -> None:
        self.retry(countdown=timedelta(seconds=90))

    with frozen_clock(datetime(2030, 1, 1, tzinfo=UTC)) as clock:
        flaky.apply_async(countdown=timedelta(seconds=60), expires=timedelta(seconds=90), queue="later")
        (job,) = enqueued()
        assert (job.at, job.payload["expiry"]) == (clock.now() + 60, clock.now() + 90)
        flaky.delay()
        drain(raise_errors=False)
        (again,) = retries()
        assert (again.at or 0) - clock.now() == pytest.approx(90, abs=0.01)


@pytest.mark.parametrize(
    "options",
    [
        {"default_retry_delay": "5"},
        {"default_retry_delay": None},
        {"autoretry_for": ValueError},
        {"autoretry_for": ("ValueError",)},
        {"dont_autoretry_for": KeyError},
        {"retry_kwargs": 5},
        {"retry_backoff_max": None},
        {"retry_backoff": "yes"},
        {"max_retries": "3"},
        {"max_retries": -1},
        {"time_limit": "60"},
        {"time_limit": 0},
        {"soft_time_limit": -1},
        {"soft_time_limit": 60, "time_limit": 60},
        {"expires": datetime(2030, 1, 1, tzinfo=UTC)},
        {"queue": "two words"},
        {"rate_limit": ["10/m"]},
        {"rate_limit": True},
        {"name": 5},
        {"default_retry_delay": 10**400},
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_the_task_and_the_option(options: dict[str, Any]) -> None:
    option = next(iter(options))

    with pytest.raises(Unsupported, match=f"{options.get('name', '_charge')}: {option}"):
        shared_task(**{"autoretry_for": (LookupError,), **options})(_charge)


@pytest.mark.parametrize(
    "options",
    [{"countdown": "5"}, {"countdown": True}, {"eta": 5}, {"expires": "2030-01-01"}, {"queue": 5}, {"task_id": 5}],
)
def test_so_is_a_value_of_a_call(options: dict[str, Any]) -> None:
    task = declared()

    with pytest.raises(Unsupported, match=f"charge: {next(iter(options))} = "):
        task.apply_async(**options)
    assert enqueued() == []


@pytest.mark.parametrize("order", [("broker_url", "result_backend"), ("result_backend", "broker_url")])
def test_a_second_redis_is_refused_in_either_order(order: tuple[str, str]) -> None:
    app = Celery("shop")
    app.conf.update({order[0]: "redis://one.example/0"})

    with pytest.raises(Unsupported, match="Redis of the jobs"):
        app.conf.update({order[1]: "redis://two.example/0"})
