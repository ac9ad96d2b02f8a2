"""The web application."""

from flask import Flask

from shop.jobs import send_receipt

app = Flask(__name__)


@app.post("/orders/<int:order_id>")
def order(order_id: int) -> str:
    send_receipt.perform_async(order_id)
    return f"order {order_id} is placed\n"
