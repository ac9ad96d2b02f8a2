"""A shop with three jobs."""

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


@job(result_ttl=3600)
def welcome(user: str) -> str:
    note(f"welcome {user}")
    return user.title()


@job(retry=3)
def charge(order: int) -> None:
    pay(order)


@job(cron="*/2 * * * * *")
def report() -> None:
    note("report")
