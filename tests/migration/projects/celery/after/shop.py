"""A shop with three tasks."""

import os
from pathlib import Path
from typing import Any

from kiqcluster.contrib.celery import Celery

app = Celery("shop", broker=os.environ["REDIS_URL"], backend=os.environ["REDIS_URL"])


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def pay(order: int) -> None:
    """Refuse the first attempt, as a bank may do."""
    if f"refused {order}" not in Path(os.environ["LEDGER"]).read_text():
        note(f"refused {order}")
        raise ConnectionError("the bank does not answer")
    note(f"charged {order}")


@app.task
def welcome(user: str) -> str:
    note(f"welcome {user}")
    return user.title()


@app.task(bind=True, max_retries=3, default_retry_delay=1)
def charge(self: Any, order: int) -> None:
    try:
        pay(order)
    except ConnectionError as error:
        self.retry(exc=error)


@app.task
def report() -> None:
    note("report")
