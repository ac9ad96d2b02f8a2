"""Tests: python manage.py test."""

from django.test import TestCase
from mails.jobs import Receipt
from orders.models import Order
from orders.tasks import charge

from kiqcluster import testing


class PlaceOrder(TestCase):
    def setUp(self):
        self.jobs = self.enterContext(testing.fake())  # they stay in memory

    def test_an_order_is_charged_once_it_is_stored(self):
        with self.captureOnCommitCallbacks() as callbacks:
            response = self.client.post("/orders/", {"email": "ada@example.com"})
        self.assertEqual(self.jobs.enqueued(), [])

        for callback in callbacks:
            callback()

        self.jobs.assert_enqueued("orders.tasks.charge", response.json()["order"])

    def test_a_charged_order_has_a_receipt(self):
        with self.captureOnCommitCallbacks(execute=True):
            result = charge.enqueue(Order.objects.create(email="ada@example.com").pk)

        with self.captureOnCommitCallbacks(execute=True):
            self.jobs.drain("default")

        self.assertEqual(charge.get_result(result.id).return_value, "ada@example.com")
        self.jobs.assert_enqueued(Receipt, 1, "ada@example.com", queue="mails")
