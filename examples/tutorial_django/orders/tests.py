from django.test import TestCase

from kiqcluster import testing
from orders.jobs import pack


class PlaceTest(TestCase):
    def test_an_order_is_packed_once_it_is_stored(self):
        with testing.fake() as jobs:
            with self.captureOnCommitCallbacks() as callbacks:
                self.client.post("/orders/", {"book": "Emma"})
            self.assertEqual(jobs.enqueued(), [])

            for callback in callbacks:
                callback()

            jobs.assert_enqueued(pack, 1)
