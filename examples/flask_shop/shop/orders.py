"""The routes."""

from __future__ import annotations

from flask import Blueprint, request

from shop.database import connection
from shop.jobs import send_receipt

blueprint = Blueprint("orders", __name__)


@blueprint.post("/orders")
def create() -> tuple[dict[str, int], int]:
    with connection() as database:
        order_id = database.execute("INSERT INTO orders (mail) VALUES (?)", [request.form["mail"]]).lastrowid
    send_receipt.perform_async(order_id)  # after the commit: a worker may be quicker than this request
    return {"order": order_id}, 201


@blueprint.get("/orders/<int:order_id>")
def show(order_id: int) -> tuple[dict[str, bool], int]:
    row = connection().execute("SELECT receipt_sent FROM orders WHERE id = ?", [order_id]).fetchone()
    return ({"receipt_sent": bool(row[0])}, 200) if row else ({}, 404)
