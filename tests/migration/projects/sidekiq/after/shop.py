"""A shop with three jobs, under the names of the Ruby classes."""

import os
from pathlib import Path

from kiqcluster import job


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def pay(order: int) -> None:
    """Refuse the first attempt, as a bank may do."""
    if f"refused {order}" not in Path(os.environ["LEDGER"]).read_text():
        note(f"refused {order}")
        raise ConnectionError("the bank does not answer")
    note(f"charged {order}")


@job(name="Welcome")
def welcome(user: str) -> None:
    note(f"welcome {user}")


@job(name="Charge", retry=3, retry_in=lambda _count, _error, _payload: 1)
def charge(order: int) -> None:
    pay(order)


@job(name="Report", cron="*/2 * * * * *")
def report() -> None:
    note("report")
