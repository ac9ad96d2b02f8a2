"""A shop with three actors."""

import os
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

broker = RedisBroker(url=os.environ["REDIS_URL"])
broker.add_middleware(Results(backend=RedisBackend(url=os.environ["REDIS_URL"])))
dramatiq.set_broker(broker)


def note(line: str) -> None:
    with Path(os.environ["LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def pay(order: int) -> None:
    """Refuse the first attempt, as a bank may do."""
    if f"refused {order}" not in Path(os.environ["LEDGER"]).read_text():
        note(f"refused {order}")
        raise ConnectionError("the bank does not answer")
    note(f"charged {order}")


@dramatiq.actor(store_results=True)
def welcome(user: str) -> str:
    note(f"welcome {user}")
    return user.title()


@dramatiq.actor(max_retries=3, min_backoff=1000)
def charge(order: int) -> None:
    pay(order)


@dramatiq.actor
def report() -> None:
    note("report")
