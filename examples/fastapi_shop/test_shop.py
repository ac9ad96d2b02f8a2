"""Tests of the shop; no Redis is needed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from shop import jobs
from shop.database import transaction
from shop.jobs import send_missing_receipts, send_receipt
from shop.main import app, receipts

from kiqcluster.testing import Fake, assert_enqueued, drain, enqueued


@pytest.fixture(autouse=True)
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have a database of the test's own, and what a worker process opens."""
    monkeypatch.setenv("SHOP_DATABASE", str(tmp_path / "shop.sqlite3"))
    jobs.open_mailer()
    yield
    jobs.close_mailer()


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:  # with: the lifespan runs
        yield client


def test_an_order_is_answered_by_a_receipt(client: TestClient, kiq_fake: Fake) -> None:
    order = client.post("/orders", data={"mail": "ann@example.com"}, headers={"X-Request-ID": "r-1"}).json()["order"]

    job = assert_enqueued(send_receipt, order, queue="mailers")
    assert job.payload["correlation_id"] == "r-1"
    assert client.get(f"/orders/{order}").json() == {"receipt_sent": False}

    drain()

    assert client.get(f"/orders/{order}").json() == {"receipt_sent": True}


def test_a_test_may_replace_what_enqueues(client: TestClient, kiq_fake: Fake) -> None:
    asked = []

    async def note(order_id: int) -> None:
        asked.append(order_id)

    app.dependency_overrides[receipts] = lambda: note
    try:
        client.post("/orders", data={"mail": "ann@example.com"})
    finally:
        app.dependency_overrides.clear()

    assert asked == [1]
    assert enqueued() == []


def test_a_receipt_that_was_never_enqueued_is_found(kiq_fake: Fake) -> None:
    with transaction() as database:
        database.execute("INSERT INTO orders (mail) VALUES ('bob@example.com')")

    send_missing_receipts.perform_inline()

    assert [job.args for job in enqueued(send_receipt)] == [[1]]
