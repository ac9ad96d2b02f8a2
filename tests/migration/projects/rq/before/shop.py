"""A shop with three jobs."""

import os
from pathlib import Path


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def pay(order: int) -> None:
    """Refuse the first attempt, as a bank may do."""
    if f"refused {order}" not in Path(os.environ["LEDGER"]).read_text():
        note(f"refused {order}")
        raise ConnectionError("the bank does not answer")
    note(f"charged {order}")


def welcome(user: str) -> str:
    note(f"welcome {user}")
    return user.title()


def charge(order: int) -> None:
    pay(order)


def report() -> None:
    note("report")
