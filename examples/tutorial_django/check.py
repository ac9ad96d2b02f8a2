"""The check of this example (examples/README.md)."""

from __future__ import annotations

import subprocess
import sys

from examples.web_check import WORKERS_LOG, check, request

is_placed: list[bool] = []


def order(address: str) -> bool:
    """Place an order once; return whether it is packed."""
    if not is_placed:
        is_placed.append("placed" in request(f"{address}/orders/", book="Emma"))
    return "Emma is packed" in WORKERS_LOG.read_text()


if __name__ == "__main__":
    subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity", "0"], check=True)
    raise SystemExit(
        check(
            tests=["manage", "test"],
            workers=["manage", "kiqcluster", "mailers", "default"],
            web=lambda port: ["manage", "runserver", "--noreload", str(port)],
            order=order,
        )
    )
