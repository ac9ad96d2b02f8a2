"""The jobs: each runs in an application context of its own."""

from __future__ import annotations

from flask import current_app

from kiqcluster import job
from shop.database import connection


@job(queue="mailers", retry=5)
def send_receipt(order_id: int) -> None:
    with connection() as database:
        row = database.execute("SELECT mail, receipt_sent FROM orders WHERE id = ?", [order_id]).fetchone()
        if row is None or row[1]:
            return
        current_app.logger.warning("receipt of order %d to %s", order_id, row[0])
        database.execute("UPDATE orders SET receipt_sent = 1 WHERE id = ?", [order_id])


@job(cron="*/15 * * * *")
def send_missing_receipts() -> None:
    """Enqueue what was lost: the web process may have died after the commit, before the push."""
    rows = connection().execute("SELECT id FROM orders WHERE receipt_sent = 0").fetchall()
    send_receipt.perform_bulk([[order_id] for (order_id,) in rows])
