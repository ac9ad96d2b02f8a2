"""Keys of others are carried on byte for byte on the way of a job: runs, polls, and all that people do with it."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import cancel, job
from kiqcluster.api import DeadSet, DroppedSet, JobRecord, Queue, RetrySet
from kiqcluster.application.registry import Registry
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.payload import bare
from kiqcluster.store import Store
from kiqcluster.worker.maintenance.poller import Poller
from tests.carried import JID, left_alone, together
from tests.in_process_worker import Worker
from tests.redis.kiqctl import Kiqctl

OWNED = {"queue", "enqueued_at", "at", "error_class", "error_message", "error_backtrace", "failed_at", "retried_at"}
OWNED |= {"retry_count", "deferred", "deferred_by", "kiq_rate", "dropped", "dropped_by"}
PAYLOADS = {name: raw for name, raw in together() if raw.count(b'"kiq_then"') == 0 or b'"kiq_then":null' in raw}


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    worker = Worker(store, setup, registry)

    @job(name="carried", queue="default")
    def carried(*_: Any) -> None:
        raise ValueError("on purpose")

    return worker


@pytest.mark.parametrize("name", PAYLOADS)
def test_the_way_of_a_job(name: str, worker: Worker, store: Store, kiqctl: Kiqctl) -> None:
    raw = PAYLOADS[name]
    runtime = Runtime(Config(), store, worker.setup, Events())
    poller = Poller(runtime, worker.engine, lambda name, error: None)

    def check(where: Any) -> JobRecord:
        (record,) = where
        assert left_alone(bare(record.raw), OWNED) == left_alone(raw, OWNED)
        found: JobRecord = record
        return found

    store.call("SADD", "queues", "default")
    store.call("LPUSH", "queue:default", raw)

    worker.run()  # it fails
    failed = check(RetrySet())
    assert (failed.display_class, failed.jid, failed.error_class) == ("carried", JID, "ValueError")
    assert RetrySet().reschedule([failed], 1_000_000_000)
    check(RetrySet())
    poller.poll()
    check(Queue("default"))
    worker.run()  # it fails once more
    assert check(RetrySet()).retry_count == (failed.retry_count or 0) + 1
    assert RetrySet().move(RetrySet(), "low")
    assert check(RetrySet())["queue"] == "low"
    assert RetrySet().retry_all() == 1
    assert Queue("low").move(Queue("low"), "default") == 1
    assert check(Queue("default")).queue == "default"
    worker.run()
    assert RetrySet().kill_all() == 1
    check(DeadSet())
    kiqctl.ask("dead", "retry", JID, "--yes")
    check(Queue("default"))
    assert cancel(JID)
    assert check(DroppedSet())["dropped_by"] == "cancelled"
