"""Tests of the shop; no Redis is needed."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient
from shop import create_app
from shop.database import connection
from shop.jobs import send_missing_receipts, send_receipt

from kiqcluster.testing import Fake, assert_enqueued, drain, enqueued


@pytest.fixture
def client(tmp_path: Path) -> FlaskClient:
    return create_app({"TESTING": True, "DATABASE": str(tmp_path / "shop.sqlite3")}).test_client()


def test_an_order_is_answered_by_a_receipt(client: FlaskClient, kiq_fake: Fake) -> None:
    order = client.post("/orders", data={"mail": "ann@example.com"}, headers={"X-Request-ID": "r-1"}).json["order"]

    job = assert_enqueued(send_receipt, order, queue="mailers")
    assert job.payload["correlation_id"] == "r-1"
    assert job.payload["meta.caller_id"] == "POST orders.create"
    assert client.get(f"/orders/{order}").json == {"receipt_sent": False}

    drain()

    assert client.get(f"/orders/{order}").json == {"receipt_sent": True}


def test_a_receipt_that_was_never_enqueued_is_found(client: FlaskClient, kiq_fake: Fake) -> None:
    with client.application.app_context(), connection() as database:
        database.execute("INSERT INTO orders (mail) VALUES ('bob@example.com')")

    send_missing_receipts.perform_inline()

    assert [job.args for job in enqueued(send_receipt)] == [[1]]
