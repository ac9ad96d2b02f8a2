"""The shop without the layer, under the same names."""

from os import environ
from pathlib import Path
from typing import Any

from kiqcluster import KILL, job


def note(line: str) -> None:
    with Path(environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def pay(order: int) -> None:
    """Refuse the first attempt, as a bank may do."""
    if f"refused {order}" not in Path(environ["LEDGER"]).read_text():
        note(f"refused {order}")
        raise ConnectionError("the bank does not answer")
    note(f"charged {order}")


@job(name="shop.welcome", retry=0, result_ttl=86_400)
def welcome(user: str) -> str:
    note(f"welcome {user}")
    return user.title()


def after(_count: int, error: BaseException, _payload: Any) -> Any:
    return 1 if isinstance(error, ConnectionError) else KILL


@job(name="shop.charge", retry=3, retry_in=after)
def charge(order: int) -> None:
    pay(order)


@job(name="shop.report")
def report() -> None:
    note("report")
