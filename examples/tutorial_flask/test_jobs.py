from kiqcluster.testing import assert_enqueued, drain
from shop.jobs import place_order, send_receipt


def test_an_order_gets_a_receipt(kiq_fake, capsys):
    place_order.perform_async(7)
    assert_enqueued(place_order, 7)

    drain()

    assert capsys.readouterr().out == "receipt for order 7\n"


def test_a_receipt_is_an_ordinary_function(capsys):
    send_receipt(8)

    assert capsys.readouterr().out == "receipt for order 8\n"
