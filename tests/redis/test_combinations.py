"""All guarantees at once, in any combination: a job asks Redis once before it runs, or not at all."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import pytest

from kiqcluster import job, limits
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from tests.conformance.test_scripts import calls_of_scripts
from tests.in_process_worker import Worker

pytestmark = pytest.mark.usefixtures("setup")

LIMITS: list[dict[str, Any]] = [
    {},
    {"concurrency_limit": 5},
    {"concurrency_limit": 5, "concurrency_key": lambda number: number},
]
RATES: list[dict[str, Any]] = [
    {},
    {"rate_limit": limits.sliding_window(1_000_000, 60)},
    {"rate_limit": limits.concurrent(5)},
]
LOCKS: list[dict[str, Any]] = [
    {},
    {"deduplicate": "until_executing"},
    {"deduplicate": "until_executed", "reschedule_once": True},
    {"deduplicate": "while_executing"},
    {"deduplicate": "until_and_while_executing"},
]
SILENT: dict[str, Any] = {  # what never asks Redis
    "policy": lambda run: None,
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


def test_a_job_asks_redis_once_at_most_before_it_runs(store: Store, setup: Setup, registry: Registry) -> None:
    worker = Worker(store, setup, registry)
    scripts, round_trips = [], []
    job(name="First", concurrency_limit=1)(lambda: None).perform_async()
    worker.run()  # from here on Redis knows the script
    for number, options in enumerate(combinations()):
        job(name=f"Job{number}", **options)(lambda number: worker.perform(number)).perform_async(number)
        unit = worker.take()
        store.call("CONFIG", "RESETSTAT")
        before = reads(store)

        outcome = worker.execute(unit)

        round_trips.append(reads(store) - before - 1)  # the last one is that of the question itself
        scripts.append(calls_of_scripts(store))
        assert isinstance(outcome, Done), options
        assert worker.settle(unit, outcome) == 1

    asks = [
        any(name in options for name in ("concurrency_limit", "rate_limit", "deduplicate"))
        for options in combinations()
    ]
    assert scripts == [int(each) for each in asks]
    assert round_trips == scripts
    assert len(worker.ran) == len(asks) == 90
