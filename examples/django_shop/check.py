"""The check of this example (examples/README.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from examples.web_check import check, request

MAILS = Path("mails")  # beside the application of that name, which has no .log files
orders: list[int] = []


def order(address: str) -> bool:
    """Place an order once; return whether its receipt has been sent."""
    if not orders:
        orders.append(json.loads(request(f"{address}/orders/", email="ann@example.com"))["order"])
    return any(f"Order {orders[0]}" in path.read_text() for path in MAILS.glob("*.log"))


if __name__ == "__main__":
    subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity", "0"], check=True)
    raise SystemExit(
        check(
            tests=["manage", "test"],
            workers=["manage", "kiqcluster"],
            web=lambda port: ["manage", "runserver", "--noreload", str(port)],
            order=order,
        )
    )
