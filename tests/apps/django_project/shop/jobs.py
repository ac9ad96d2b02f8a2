"""Jobs of kiqcluster."""

from __future__ import annotations

from django.db import connections

from kiqcluster import Job, current_job


class Invoice(Job, queue="billing"):
    def perform(self, order_id: int) -> None:
        print(f"invoice {order_id}")


class Committed(Job, enqueue_on_commit=True):
    def perform(self, order_id: int) -> None: ...


class OfOrders(Job, enqueue_on_commit="orders"):
    def perform(self, order_id: int) -> None: ...


class Count(Job, result_ttl=60):
    """Asks the database, and says how many connections its thread had before."""

    def perform(self) -> list[bool]:
        before = [each.connection is not None for each in connections.all(initialized_only=True)]
        with connections["default"].cursor() as cursor:
            cursor.execute("SELECT 1")
        assert current_job() is not None
        return before
