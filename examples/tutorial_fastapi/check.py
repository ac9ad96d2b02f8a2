"""The check of this example (examples/README.md)."""

from __future__ import annotations

from examples.web_check import WORKERS_LOG, check, request

is_placed: list[bool] = []


def order(address: str) -> bool:
    """Place an order once; return whether its receipt has been printed."""
    if not is_placed:
        is_placed.append("placed" in request(f"{address}/orders/21", book="Emma"))
    return "receipt for order 21" in WORKERS_LOG.read_text()


if __name__ == "__main__":
    raise SystemExit(
        check(
            tests=["pytest", "-p", "no:cacheprovider"],
            workers=["kiqcluster"],
            web=lambda port: ["uvicorn", "--port", str(port), "shop.web:app"],
            order=order,
        )
    )
