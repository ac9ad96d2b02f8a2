"""Pusher: enqueues jobs of one peer in a process of its own: `python -m benchmarks.pusher APP`.

It answers a JSON line with a JSON line; the first answer is a description of the peer.

    ["push", JOB, ARGUMENTS, COUNT]        one by one → the seconds that took
    ["push_bulk", JOB, ARGUMENTS, COUNT]   by the fastest way that the peer has → the seconds that took
    ["stamp"]                              one `stamp` job with the time at which its push began → null

ruby/pusher.rb does the same for Sidekiq.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

BULK_JOBS = 1_000  # jobs in one call of a peer's bulk interface


class App(Protocol):
    """What a module in apps/ offers.

    DESCRIPTION: the version of the peer, and what else matters.
    push_many: enqueues jobs of one kind, in as few round trips as the peer can.
    """

    DESCRIPTION: str

    def push(self, job: str, arguments: Sequence[Any]) -> None: ...

    def push_many(self, job: str, argument_lists: Sequence[Sequence[Any]]) -> None: ...


def push(app: App, job: str, arguments: Sequence[Any], count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        app.push(job, arguments)
    return time.perf_counter() - began


def push_bulk(app: App, job: str, arguments: Sequence[Any], count: int) -> float:
    began = time.perf_counter()
    for done in range(0, count, BULK_JOBS):
        app.push_many(job, [arguments] * min(BULK_JOBS, count - done))
    return time.perf_counter() - began


def stamp(app: App) -> None:
    app.push("stamp", [time.monotonic()])


def main(app: App) -> None:
    verbs: dict[str, Callable[..., Any]] = {"push": push, "push_bulk": push_bulk, "stamp": stamp}
    print(json.dumps(app.DESCRIPTION), flush=True)
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps(verbs[verb](app, *arguments)), flush=True)


if __name__ == "__main__":
    main(importlib.import_module(f"benchmarks.apps.{sys.argv[1]}"))
