"""Typed arguments: a Ruby job reads what a dataclass of Python became, and Python gets one from a hash of Ruby."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry, using_registry
from tests.apps.typed import Currency, Line, Order
from tests.kit import wait_until

pytestmark = pytest.mark.ruby

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
ORDER = Order(7, AT, Currency.CHF, [Line("a", Decimal("1.50"), 2), Line("b", Decimal("0.1"))])


@pytest.fixture
def read_order() -> Any:
    with using_registry(Registry()):

        @job(name="ReadOrder", queue="ruby")
        def read_order(order: Order, due: date) -> None: ...

    return read_order


@pytest.mark.usefixtures("setup", "ruby_server")
def test_ruby_reads_what_a_dataclass_became(stage: Any, read_order: Any) -> None:
    jid = read_order.perform_async(ORDER, date(2026, 12, 31))

    assert stage.echo_of(jid)["args"] == [7, int(AT.timestamp()), "CHF", "3.1", 365]


@pytest.mark.parametrize(
    "placed_at", ["2026-11-20T12:00:00Z", "2026-11-20T12:00:00.000Z", "2026-11-20T13:00:00.000000+01:00"]
)
def test_python_gets_a_dataclass_from_a_hash(stage: Any, ruby_client: Any, placed_at: str) -> None:
    stage.run_cluster("default", "-c", "1", app="tests.apps.typed")
    lines = [{"article": "a", "price": "1.50", "count": 2}, {"article": "b", "price": 0.1, "unknown_to_python": True}]
    order = {"id": 7, "placed_at": placed_at, "currency": "CHF", "lines": lines}

    ruby_client.push({"class": "Typed::SendInvoice", "args": [order, "2026-12-31"]})

    wait_until(lambda: stage.store.call("LLEN", "got"), "the job to run")
    (line,) = stage.store.call("LRANGE", "got", 0, -1)
    assert line.decode().endswith("datetime.date(2026, 12, 31))")
    assert "Decimal('1.50'), count=2), Line(article='b', price=Decimal('0.1'), count=1)]" in line.decode()
