"""Typed arguments in tests of an application: assertions take values or their JSON, and jobs run with values."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

from kiqcluster import Client, job
from kiqcluster.errors import InvalidArguments, MisfitArguments
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Retry
from kiqcluster.testing import Fake, fake, inline
from tests.apps.typed import AT, ORDER, STORED, Order


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def send(setup: Setup, ran: list[Any]) -> Any:
    @job
    def send(order: Order, due: date | None = None) -> Order:
        ran.append((order, due))
        return order

    return send


@pytest.fixture
def total(setup: Setup, ran: list[Any]) -> Any:
    @job
    async def total(order: Order, due: date) -> None:
        ran.append((order, due))

    return total


@pytest.fixture
def jobs(setup: Setup) -> Iterator[Fake]:
    with fake() as jobs:
        yield jobs


def test_assertions_take_values_and_their_json(send: Any, jobs: Fake) -> None:
    send.perform_async(ORDER, date(2026, 12, 1))

    jobs.assert_enqueued(send, ORDER, date(2026, 12, 1))
    jobs.assert_enqueued(send, STORED, "2026-12-01")
    jobs.refute_enqueued(send, ORDER)
    jobs.refute_enqueued(send, Order(8, AT), None)
    (enqueued,) = jobs.enqueued(send)
    assert enqueued.args == [STORED, "2026-12-01"]
    with pytest.raises(AssertionError, match="Order"):
        jobs.assert_enqueued(send, Order(8, AT))


def test_an_assertion_that_no_job_could_meet_is_refused(send: Any, jobs: Fake) -> None:
    send.perform_async(ORDER)

    with pytest.raises(InvalidArguments, match="due: invalid RFC3339 encoded date"):
        jobs.assert_enqueued(send, ORDER, "soon")


def test_drained_jobs_get_values(send: Any, ran: list[Any], jobs: Fake) -> None:
    send.perform_bulk([[ORDER], [STORED, date(2026, 12, 1)]])

    jobs.drain()

    assert ran == [(ORDER, None), (ORDER, date(2026, 12, 1))]


def test_inline_jobs_get_values(send: Any, ran: list[Any]) -> None:
    with inline():
        send.perform_async(ORDER)

    assert ran == [(ORDER, None)]


def test_a_chain_passes_values_on(send: Any, total: Any, ran: list[Any], jobs: Fake) -> None:
    send.then(total, date(2026, 12, 1)).perform_async(ORDER)
    send.then(total, date(2026, 12, 2)).perform_inline(ORDER)

    jobs.drain()

    assert ran[:2] == [(ORDER, None), (ORDER, date(2026, 12, 2))], "inline"
    assert ran[2:] == [(ORDER, None), (ORDER, date(2026, 12, 1))], "drained"


def test_a_chain_refuses_what_does_not_fit_when_it_is_made(send: Any, total: Any) -> None:
    with pytest.raises(InvalidArguments, match="due: expected date, got int"):
        send.then(total, 5)


def test_a_payload_by_hand_that_does_not_fit_fails_with_its_path(send: Any, ran: list[Any], jobs: Fake) -> None:
    for order in ({**STORED, "lines": [{"article": "a", "price": []}]}, STORED):
        Client().push({"class": "by_hand", "args": [order], "retry": 3})

    @job(name="by_hand", retry=3)
    def by_hand(order: Order) -> None:
        ran.append(order)

    with pytest.raises(MisfitArguments, match=r"order\.lines\[0\]\.price: expected decimal, got array"):
        jobs.drain()
    assert isinstance(jobs.performed()[0].outcome, Retry), "another release may take it"


def test_a_row_of_a_database_is_refused_wherever_it_is(send: Any, setup: Setup) -> None:
    class User:
        _meta, pk = None, 7

    @job
    def greet(user: Any) -> None: ...

    for mode in ("raise", "warn", "off"):
        setup.config = setup.current_config().__class__(strict_args=mode)  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match=r"\[0\]\['by'\] is of type .*User, .*pass value\.pk"):
            greet.perform_async({"by": User()})
        with pytest.raises(InvalidArguments, match=r"order: it is of type .*User, .*pass value\.pk"):
            send.perform_async(User())
