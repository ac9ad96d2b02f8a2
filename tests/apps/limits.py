"""Jobs with concurrency limits.  The list `release` lets `held` jobs end; `limit` is the limit of `adjustable`."""

from __future__ import annotations

import time

from kiqcluster import job
from kiqcluster.process.runtime import current_setup
from tests.apps.basic import note, record
from tests.apps.counting import counted

__all__ = ["adjustable", "asleep", "half", "held", "keyed", "quick", "record"]


def call(*words: str) -> object:
    return current_setup().current_store().call(*words)


def hold(word: str) -> None:
    note("began", word)
    while not call("LLEN", "release"):
        time.sleep(0.01)
    note("ended", word)


@job(concurrency_limit=2)
def quick(word: str) -> None:
    """Notes how many run, itself among them."""
    with counted("quick") as running:
        note("began", word, running)
        time.sleep(0.005)
    note("ended", word)


@job(concurrency_limit=1)
def held(word: str) -> None:
    hold(word)


@job(concurrency_limit=1)
def asleep(word: str) -> None:
    """Runs for long, and asks Redis nothing."""
    note("began", word)
    time.sleep(600)


@job(concurrency_limit=1, concurrency_key=lambda account, _: account)
def keyed(account: str, word: str) -> None:
    hold(f"{account} {word}")


@job(concurrency_limit=lambda: int(call("GET", "limit") or 1))  # type: ignore[call-overload]  # bytes, or None
def adjustable(word: str) -> None:
    hold(word)


@job(concurrency_limit="50%")
def half(word: str) -> None:
    hold(word)
