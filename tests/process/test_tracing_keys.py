"""Tracing keys survive what befalls processes, byte for byte.  Step by step: tests/redis/test_tracing_keys.py."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import ledger, release, wait_noted, wait_settled
from tests.tracing import lost, spelt

RunCluster = Callable[..., Cluster]
QUEUE = '"default"'


def test_they_survive_a_kill_a_quiet_and_a_forced_stop(run_cluster: RunCluster, store: Store) -> None:
    for word in ("a", "b"):
        store.call("LPUSH", "queue:default", spelt("stubborn", f'"{word}"', queue=QUEUE))
    cluster = run_cluster("default", "-c", "1", "-t", "0.3")
    wait_noted(store, "began a")

    os.kill(cluster.wait_ready()[0], signal.SIGKILL)
    wait_until(lambda: ledger(store).count("began a") == 2, "the job to run again")
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    wait_until(lambda: store.call("LLEN", "queue:default") == 1, "what waits to lie in its queue")
    assert [lost(raw) for raw in store.call("LRANGE", "queue:default", 0, -1)] == [[]]  # what waits
    assert cluster.stop() == 0

    first, second = reversed(store.call("LRANGE", "queue:default", 0, -1))
    assert (lost(first), lost(second)) == ([], [])
    assert decode(first)["interrupted_count"] == 1  # it was put back by the stop
    assert second == spelt("stubborn", '"b"', queue=QUEUE)
    release(store)
    run_cluster("default")
    wait_noted(store, "ended a", "ended b")


def test_they_survive_many_retries(run_cluster: RunCluster, store: Store) -> None:
    store.call("LPUSH", "queue:default", spelt("broken", '"a"', queue=QUEUE, retry="3"))
    run_cluster("default", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    for failures in range(1, 4):
        wait_until(lambda count=failures: len(ledger(store)) == count, f"failure {failures}")  # type: ignore[misc]
        wait_settled(store)
        (raw,) = wait_until(lambda: store.call("ZRANGE", "retry", 0, -1), "the retry")
        assert lost(raw) == []
        store.call("ZADD", "retry", "XX", 1, raw)

    (raw,) = wait_until(lambda: store.call("ZRANGE", "dead", 0, -1), "the burial")
    assert lost(raw) == []


def test_they_survive_a_deploy_that_brings_the_class_late(
    run_cluster: RunCluster, store: Store, application: Callable[[str], str]
) -> None:
    store.call("LPUSH", "queue:default", spelt("late", queue=QUEUE))
    old = run_cluster("default")
    (raw,) = wait_until(lambda: store.call("ZRANGE", "schedule", 0, -1), "the job to be put off")
    assert lost(raw) == []
    assert old.stop() == 0
    store.call("ZADD", "schedule", "XX", 1, raw)

    app = application("""
        from kiqcluster import current_job, job
        from tests.apps.basic import note

        @job()
        def late():
            note(current_job().payload["traceparent"])
    """)
    run_cluster("default", app=app, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    wait_noted(store, decode(raw)["traceparent"])
