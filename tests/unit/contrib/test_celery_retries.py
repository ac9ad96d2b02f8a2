"""Retries of a task that another process has pushed, and numbers that are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster import Client
from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import Celery, Unsupported, shared_task
from kiqcluster.contrib.celery.declare import Retries, rate_limit
from kiqcluster.errors import KiqError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import KILL
from kiqcluster.testing import Fake, dead, drain, enqueued, fake, retries

BEYOND = [float("nan"), float("inf"), float("-inf")]


def _charge() -> None: ...


@pytest.fixture(autouse=True)
def _in_memory(registry: Registry, setup: Setup, kiq_fake: Fake) -> Iterator[None]:
    with fake():
        yield


@pytest.mark.parametrize(("most", "runs"), [(0, 1), (2, 3)])
@pytest.mark.parametrize("option", ["max_retries", "retry_kwargs"])
def test_a_task_pushed_where_it_is_not_declared_has_its_own_number(option: str, most: int, runs: int) -> None:
    ran: list[int] = []
    Celery("web").send_task("charge", [7])
    Client().push({"class": "charge", "args": [7], "retry": True})  # as Ruby does
    assert [job.payload["retry"] for job in enqueued()] == [True, True]
    options: dict[str, Any] = {option: most if option == "max_retries" else {"max_retries": most}}

    @shared_task(name="charge", autoretry_for=(LookupError,), **options)
    def charge(order: int) -> None:
        ran.append(order)
        raise LookupError("no such order")

    for _ in range(5):
        drain(retries=True, raise_errors=False)

    assert len(ran) == 2 * runs
    assert len(dead()) == 2
    assert retries() == []


def test_an_error_that_lies_about_its_class_is_retried_by_its_type() -> None:
    class Lying(LookupError):
        __class__ = property(lambda _: 1 // 0)  # type: ignore[assignment]

    assert Retries(retried=(LookupError,), excepted=(KeyError,), seconds=9).retry_in(0, Lying()) == 9
    assert Retries(retried=(KeyError,), seconds=9).retry_in(0, Lying()) is KILL


def test_no_limit_stays_none() -> None:
    without = Retries(max_retries=None, retried=(LookupError,), seconds=9)

    assert without.retry_in(10_000, LookupError()) == 9
    assert Retries(max_retries=2, retried=(LookupError,), seconds=9).retry_in(1, LookupError()) == 9
    assert Retries(max_retries=2, retried=(LookupError,), seconds=9).retry_in(2, LookupError()) is KILL


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "nan/m", "inf/h", "1e999/s", "1e-320/h", *BEYOND])
def test_a_rate_that_is_no_number_is_refused(text: Any) -> None:
    with pytest.raises(Unsupported, match="it takes a text such as '10/m'"):
        rate_limit("charge", text)


@pytest.mark.parametrize("value", BEYOND)
@pytest.mark.parametrize(
    "option", ["default_retry_delay", "retry_backoff", "retry_backoff_max", "time_limit", "soft_time_limit", "expires"]
)
def test_so_is_any_other_option(option: str, value: float) -> None:
    options: dict[str, Any] = {option: value}

    with pytest.raises(Unsupported, match=rf"{option} = .* takes a finite number"):
        shared_task(name="charge", autoretry_for=(LookupError,), **options)(_charge)


@pytest.mark.parametrize("value", BEYOND)
def test_so_is_the_countdown_of_retries(value: float) -> None:
    with pytest.raises(Unsupported, match=r"countdown.* takes a finite number"):
        shared_task(name="charge", autoretry_for=(LookupError,), retry_kwargs={"countdown": value})(_charge)


@pytest.mark.parametrize("value", BEYOND)
@pytest.mark.parametrize("option", ["countdown", "expires"])
def test_so_is_an_option_of_a_push(option: str, value: float) -> None:
    options: dict[str, Any] = {option: value}
    task = shared_task(name="charge")(_charge)

    with pytest.raises(KiqError):
        task.apply_async(**options)
    assert enqueued() == []
