"""What the tests do over and over: have jobs fail, wait until they lie or have run somewhere, look at what is there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.worker.heartbeat import BEAT_SECONDS
from tests.apps.interop import fragile
from tests.kit import wait_until

__all__ = ["AT_ONCE", "PRESSED", "buried", "entries", "failed", "jids", "mend", "presses", "queued", "ran", "wait_ran"]

F = TypeVar("F", bound=Callable[..., Any])
AT_ONCE = BEAT_SECONDS - 1  # seconds: sooner than a process that hears of nothing before its next beat
PRESSED: set[str] = set()  # routes of Sidekiq::Web that some test posts to


def presses(*routes: str) -> Callable[[F], F]:
    """Say which routes of Sidekiq::Web a test posts to; the browser holds it to that, and a test counts them."""

    def mark(test: F) -> F:
        test.presses = set(routes)  # type: ignore[attr-defined]
        PRESSED.update(routes)
        return test

    return mark


def failed(store: Store, count: int, queue: str = "default") -> list[str]:
    """Have a cluster fail so many jobs with the arguments 0, 1, …; return their jids once all wait for a retry."""
    jids = fragile.set(queue=queue, tags=["vip"]).perform_bulk([[number] for number in range(count)])
    wait_until(lambda: store.call("ZCARD", "retry") == count, "all jobs to wait for their retry")
    return [str(jid) for jid in jids]


def buried(store: Store, count: int) -> list[str]:
    """The same with jobs that are not retried: they are in the dead set."""
    jids = fragile.set(retry=0).perform_bulk([[number] for number in range(count)])
    wait_until(lambda: store.call("ZCARD", "dead") == count, "all jobs to be dead")
    return [str(jid) for jid in jids]


def mend(store: Store) -> None:
    """Have the jobs that fail succeed from now on."""
    store.call("SET", "mended", "1")


def entries(store: Store, name: str) -> dict[str, dict[str, Any]]:
    """Return the payloads of a set by jid."""
    payloads = [decode(raw) for raw in store.call("ZRANGE", name, 0, -1)]
    return {payload["jid"]: payload for payload in payloads}


def jids(store: Store, name: str) -> set[str]:
    return set(entries(store, name))


def queued(store: Store, queue: str) -> list[dict[str, Any]]:
    """Return the payloads that wait, the one to be fetched next first."""
    return [decode(raw) for raw in reversed(store.call("LRANGE", f"queue:{queue}", 0, -1))]


def ran(store: Store) -> list[str]:
    """Return the jids of the Echo and mended jobs that ran, in order; one that ran twice is there twice."""
    return [json.loads(each)["jid"] for each in store.call("LRANGE", "echoes", 0, -1)]


def wait_ran(store: Store, expected: Sequence[str]) -> None:
    """Wait until as many jobs ran; they have to be these, each once."""
    wait_until(lambda: len(ran(store)) >= len(expected), f"{len(expected)} jobs to run")
    assert sorted(ran(store)) == sorted(expected)
