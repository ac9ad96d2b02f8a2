"""All guarantees at once, in any combination: a job asks Redis once before it runs, or not at all."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from kiqcluster import job, limits
from kiqcluster.application.registry import Registry
from kiqcluster.policies import ReplicaReached
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from tests.conformance.test_scripts import calls_of_scripts
from tests.in_process_worker import Worker
from tests.kit import RedisServer, require_module

require_module("cryptography")
pytestmark = pytest.mark.usefixtures("setup")

KEY, LONG_TEXT = base64.b64encode(b"k" * 32).decode(), "a" * 2_000

LIMITS: list[dict[str, Any]] = [
    {},
    {"concurrency_limit": 5},
    {"concurrency_limit": 5, "concurrency_key": lambda number, *_: number},
]
RATES: list[dict[str, Any]] = [
    {},
    {"rate_limit": limits.sliding_window(1_000_000, 60)},
    {"rate_limit": limits.concurrent(5)},
]
LOCKS: list[dict[str, Any]] = [
    {},
    {"deduplicate": "until_executing"},
    {"deduplicate": "until_executed", "reschedule_once": True, "deduplicate_scheduled": True, "deduplicate_ttl": 9},
    {"deduplicate": "while_executing", "deduplicate_key": lambda number, *_: str(number)},
    {"deduplicate": "until_and_while_executing"},
]
SILENT: dict[str, Any] = {  # what never asks Redis
    "policy": [lambda run: None, ReplicaReached(lambda: "0/1", lambda _: True)],
    "data_consistency": "delayed",
    "encrypt": True,
    "loggable_arguments": [0],
    "version": 2,
    "expires_in": 3_600,
    "timeout": 60,
    "timeout_hard": 90,
    "max_retries_after_interruption": 1,
}


def combinations() -> list[dict[str, Any]]:
    """Return the options of each job: every mixture of what asks Redis, with and without all that does not."""
    return [
        {**limit, **rate, **lock, **silent} for limit, rate, lock, silent in product(LIMITS, RATES, LOCKS, [{}, SILENT])
    ]


def reads(store: Store) -> int:
    found = re.search(rb"total_reads_processed:(\d+)", store.call("INFO", "stats"))
    assert found is not None
    return int(found[1])


@pytest.fixture
def store(own_server: RedisServer) -> Iterator[Store]:
    """On a server of its own: its reads count, and the end of a connection that another test has left is one."""
    store = own_server.store()
    yield store
    store.close()


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    """A worker that compresses and encrypts; Redis knows all scripts that its jobs need."""
    sizes = {"size_limiter_mode": "compress", "size_limiter_compression_threshold": 1_000}
    setup.config = Config(**sizes, encryption_keys=f"1:{KEY}", log_jobs="full")
    worker = Worker(store, setup, registry)
    job(name="First", concurrency_limit=1, deduplicate="until_executing")(lambda: None).perform_async()
    worker.run()
    return worker


def test_a_push_and_a_run_ask_redis_once_and_an_end_tells_it_once(store: Store, worker: Worker) -> None:
    """A start asks only where a limit or a lock says so; what is compressed, encrypted or dated asks nobody."""
    pushes, scripts, starts, ends = [], [], [], []
    for number, options in enumerate(combinations()):
        declared = job(name=f"Job{number}", **options)(lambda *words: worker.perform(*words))
        before = reads(store)
        declared.perform_async(number, LONG_TEXT, "secret")
        pushes.append(reads(store) - before - 1)  # the last one is that of the question itself
        unit = worker.take()
        assert b'"compressed":true' in unit.payload
        assert b"secret" not in unit.payload or "encrypt" not in options
        store.call("CONFIG", "RESETSTAT")
        before = reads(store)

        outcome = worker.execute(unit)

        starts.append(reads(store) - before - 1)
        scripts.append(calls_of_scripts(store))
        assert isinstance(outcome, Done), options
        before = reads(store)
        assert worker.settle(unit, outcome) == 1
        ends.append(reads(store) - before - 1)

    asks = [
        any(name in options for name in ("concurrency_limit", "rate_limit", "deduplicate"))
        for options in combinations()
    ]
    assert scripts == starts == [int(each) for each in asks]
    assert pushes == ends == [1] * 90
    assert worker.ran == [(number, LONG_TEXT, "secret") for number in range(90)]
