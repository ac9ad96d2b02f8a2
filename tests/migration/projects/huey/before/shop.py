"""A shop with three tasks."""

import os
from pathlib import Path

from huey import RedisHuey, crontab

huey = RedisHuey("shop", url=os.environ["REDIS_URL"])


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def pay(order: int) -> None:
    """Refuse the first attempt, as a bank may do."""
    if f"refused {order}" not in Path(os.environ["LEDGER"]).read_text():
        note(f"refused {order}")
        raise ConnectionError("the bank does not answer")
    note(f"charged {order}")


@huey.task()
def welcome(user: str) -> str:
    note(f"welcome {user}")
    return user.title()


@huey.task(retries=3, retry_delay=1)
def charge(order: int) -> None:
    pay(order)


@huey.periodic_task(crontab(minute="*"))
def report() -> None:
    note("report")
