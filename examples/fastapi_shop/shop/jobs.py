"""The jobs, and what each worker process opens for them; it imports this module, and not the web application."""

from __future__ import annotations

import asyncio

from kiqcluster import job, on
from shop.database import transaction
from shop.mail import Mailer

mailers: list[Mailer] = []  # of this worker process: one from startup to shutdown


@on("startup")
def open_mailer() -> None:
    mailers.append(Mailer())


@on("shutdown")
def close_mailer() -> None:
    mailers.pop().close()


def mail_of(order_id: int) -> str | None:
    with transaction() as database:
        row = database.execute("SELECT mail FROM orders WHERE id = ? AND receipt_sent = 0", [order_id]).fetchone()
        return row[0] if row else None


def mark_sent(order_id: int) -> None:
    with transaction() as database:
        database.execute("UPDATE orders SET receipt_sent = 1 WHERE id = ?", [order_id])


@job(queue="mailers", retry=5)
async def send_receipt(order_id: int) -> None:
    mail = await asyncio.to_thread(mail_of, order_id)  # SQLite blocks, and the loop must not wait
    if mail is not None:
        await mailers[0].send(mail, f"thank you for order {order_id}")
        await asyncio.to_thread(mark_sent, order_id)


@job(cron="*/15 * * * *")
def send_missing_receipts() -> None:
    """Enqueue what was lost: the web process may have died after the commit, before the push."""
    with transaction() as database:
        rows = database.execute("SELECT id FROM orders WHERE receipt_sent = 0").fetchall()
    send_receipt.perform_bulk([[order_id] for (order_id,) in rows])
