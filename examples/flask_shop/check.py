"""The check of this example (examples/README.md)."""

from __future__ import annotations

import json

from examples.web_check import check, request

orders: list[int] = []


def order(address: str) -> bool:
    """Place an order once; return whether its receipt has been sent."""
    if not orders:
        orders.append(json.loads(request(f"{address}/orders", mail="ann@example.com"))["order"])
    return bool(json.loads(request(f"{address}/orders/{orders[0]}"))["receipt_sent"])


if __name__ == "__main__":
    raise SystemExit(
        check(
            tests=["pytest", "-p", "no:cacheprovider"],
            workers=["flask", "--app", "shop", "kiqcluster"],
            web=lambda port: ["flask", "--app", "shop", "run", "--port", str(port)],
            order=order,
        )
    )
