"""The web application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Form, HTTPException

from kiqcluster import application_context, current_setup
from shop.database import transaction
from shop.jobs import send_receipt

Scope, Receive, Send = dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close the connections to Redis at the end; they are opened at the first push."""
    yield
    current_setup().current_store().close()


class RequestContext:
    """ASGI middleware: the jobs that a request enqueues have its id."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        with application_context(correlation_id=request_id, caller_id=f"{scope['method']} {scope['path']}"):
            await self.app(scope, receive, send)


async def enqueue_receipt(order_id: int) -> None:
    await send_receipt.aenqueue(order_id)


def receipts() -> Callable[[int], Awaitable[None]]:
    """The dependency that enqueues receipts; tests override it."""
    return enqueue_receipt


app = FastAPI(lifespan=lifespan)
app.add_middleware(RequestContext)


@app.post("/orders", status_code=201)
async def create(
    mail: Annotated[str, Form()], send: Annotated[Callable[[int], Awaitable[None]], Depends(receipts)]
) -> dict[str, int]:
    order_id = await asyncio.to_thread(insert, mail)
    await send(order_id)  # after the commit: a worker may be quicker than this request
    return {"order": order_id}


@app.get("/orders/{order_id}")
def show(order_id: int) -> dict[str, bool]:
    with transaction() as database:
        row = database.execute("SELECT receipt_sent FROM orders WHERE id = ?", [order_id]).fetchone()
    if row is None:
        raise HTTPException(404)
    return {"receipt_sent": bool(row[0])}


def insert(mail: str) -> int:
    with transaction() as database:
        return database.execute("INSERT INTO orders (mail) VALUES (?)", [mail]).lastrowid or 0
