from fastapi.testclient import TestClient

from kiqcluster.testing import assert_enqueued
from shop.jobs import send_receipt
from shop.web import app


def test_an_order_gets_a_receipt(kiq_fake):
    assert TestClient(app).post("/orders/22").status_code == 200

    assert_enqueued(send_receipt, 22, queue="mailers")
