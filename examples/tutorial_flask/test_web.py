from kiqcluster.testing import assert_enqueued
from shop.jobs import send_receipt
from shop.web import app


def test_an_order_gets_a_receipt(kiq_fake):
    assert app.test_client().post("/orders/12").status_code == 200

    assert_enqueued(send_receipt, 12, queue="mailers")
