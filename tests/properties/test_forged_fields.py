"""Payloads with a forged field: whatever stands there, the job ends and leaves nothing behind, and the next one runs.

Anybody who may write to Redis writes payloads.  Each field that a feature reads gets values of each type, of any size.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiqcluster import Job, Run, limits, policies
from kiqcluster.api import DeadSet, RetrySet, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.in_process_worker import Worker

FIELDS = (
    *("retry", "queue", "jid", "created_at", "enqueued_at", "at", "expiry", "expires_in", "version", "idempotency_key"),
    *(
        "deferred",
        "deferred_by",
        "deferred_count",
        "promised_by",
        "interrupted_count",
        "rescheduled_once",
        "dropped_by",
    ),
    *("retry_count", "failed_at", "retried_at", "retry_for", "retry_queue", "error_class", "error_message", "dead"),
    *("error_backtrace", "backtrace", "wal_locations", "correlation_id", "meta.caller_id", "meta.user", "locale"),
    *("cattr", "cattr_1", "tags", "wrapped", "compressed", "original_job_size_bytes", "job_size_bytes", "encrypt"),
    *(
        "encryption",
        "key_version",
        "kiq_wrapped",
        "log_level",
        "timeout",
        "timeout_hard",
        "policy",
        "bid",
        "unique_for",
    ),
)
# Fields that are read where others say so.
NEWER = {"version": 99, "deferred_by": "version"}
BESIDE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("deferred", "deferred_count", "promised_by"), NEWER),
    "expires_in": {"expiry": 1.0},
}
EVERY = sized(12, 1)  # so many values, one is tried
TROUBLE = ("end of ", "begin rows", "report")  # contexts of errors that no payload may cause
DEEP = "[" * 300 + "]" * 300
VALUES = {
    "null": "null",
    "true": "true",
    "false": "false",
    "zero": "0",
    "minus one": "-1",
    "a fraction": "-0.5",
    "huge": "1" + "0" * 400,
    "huge and negative": "-1" + "0" * 400,
    "a large float": "1e308",
    "a number of this time": "1795168740.5",
    "milliseconds": "1795168740500",
    "no text": '""',
    "text": '"x"',
    "a number as text": '"25"',
    "huge text": '"' + "x" * 70_000 + '"',
    "zeros": '"\\u0000\\u0000"',
    "half a character": '"\\ud800"',
    "colons": '"a:b:c::"',
    "a list": "[]",
    "a list of all": '[null, true, 1e308, "x", [], {}, -1]',
    "an object": "{}",
    "an object of all": '{"": null, "a": [1], "b": {"c": "x"}}',
    "deep": DEEP,
}


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def errors(setup: Setup) -> list[str]:
    """Return the contexts and errors that handlers are told."""
    found: list[str] = []
    setup.error_handlers.append(lambda error, context: found.append(f"{context.get('context')}: {error!r}"))
    return found


def declare(worker: Worker) -> Any:
    def pass_on(_run: Run) -> None: ...

    class Report(
        Job,
        name="Report",
        version=2,
        deduplicate="until_executed",
        reschedule_once=True,
        concurrency_limit=1,
        concurrency_key=str,
        rate_limit=limits.fixed_window(10_000, 60),
        policy=[pass_on, policies.ReplicaReached(lambda: {"main": "0/1"}, lambda _: True)],
        data_consistency="delayed",
        timeout=60,
        retry=3,
        tags=["forged"],
    ):
        def perform(self, number: int) -> None:
            worker.perform(number)

    return Report


@pytest.mark.parametrize("is_failing", [False, True], ids=["done", "failed"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_job_with_a_forged_field_ends_and_leaves_nothing_behind(
    worker: Worker, store: Store, errors: list[str], field: str, *, is_failing: bool
) -> None:
    report = declare(worker)
    for name, value in list(VALUES.items())[FIELDS.index(field) % EVERY :: EVERY]:
        store.call("FLUSHALL")
        worker.engine.join(worker.member)
        worker.during = fail if is_failing else nothing
        report.perform_async(7)
        payload = {**json.loads(store.call("RPOP", "queue:default")), **BESIDE.get(field, {})}
        payload.pop(field, None)
        forged = json.dumps(payload).encode()[:-1] + f', "{field}": {value}}}'.encode()
        store.call("LPUSH", "queue:default", forged)

        run_all(worker)
        worker.during = nothing
        for _ in range(3):  # a deferral, a retry, a run by hand
            for place in (RetrySet(), ScheduledSet(), DeadSet()):
                place.move(list(place), "default")
            run_all(worker)

        assert store.call("KEYS", "kiq:held:*") == store.call("KEYS", "kiq:slots:*") == [], name
        assert store.call("KEYS", "kiq:inflight:*") == [], name
        if field not in ("idempotency_key", "jid"):  # which say what job holds which lock
            assert len(ScheduledSet()) + len(RetrySet()) or store.call("KEYS", "kiq:lock:*") == [], name
        worker.ran.clear()
        report.perform_async(8)
        run_all(worker)
        assert worker.ran == [(8,)], name
    assert [each for each in errors if each.startswith(TROUBLE)] == []


def nothing(*_: Any) -> None: ...


def fail(*_: Any) -> None:
    raise ValueError("on purpose")


def run_all(worker: Worker) -> None:
    """Run all that waits in the queue, each to its end."""
    while units := worker.take_any():
        for unit in units:
            outcome = worker.execute(unit)
            assert worker.settle(unit, outcome) == 1, outcome
