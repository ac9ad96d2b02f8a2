"""The web application."""

from fastapi import FastAPI

from shop.jobs import send_receipt

app = FastAPI()


@app.post("/orders/{order_id}")
async def order(order_id: int) -> str:
    await send_receipt.aenqueue(order_id)
    return f"order {order_id} is placed"
