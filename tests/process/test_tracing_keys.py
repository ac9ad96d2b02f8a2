"""Tracing keys survive the deaths of processes, byte for byte.  Step by step: tests/redis/test_tracing_keys.py."""

from __future__ import annotations

import os
import signal

from kiqcluster.sidekiq.ruby_json import decode
from tests.kit import wait_until
from tests.stage import Stage
from tests.tracing import lost, spelt

QUEUE = '"default"'


def test_they_survive_a_kill_a_quiet_and_a_forced_stop(stage: Stage) -> None:
    for word in ("a", "b"):
        stage.store.call("LPUSH", "queue:default", spelt("stubborn", f'"{word}"', queue=QUEUE))
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.3")
    stage.wait_noted("began a")

    os.kill(cluster.wait_ready()[0], signal.SIGKILL)
    wait_until(lambda: stage.notes().count("began a") == 2, "the job to run again")
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    wait_until(lambda: stage.store.call("LLEN", "queue:default") == 1, "what waits to lie in its queue")
    assert [lost(raw) for raw in stage.store.call("LRANGE", "queue:default", 0, -1)] == [[]]  # what waits
    assert cluster.stop() == 0

    first, second = reversed(stage.store.call("LRANGE", "queue:default", 0, -1))
    assert (lost(first), lost(second)) == ([], [])
    assert decode(first)["interrupted_count"] == 1  # it was put back by the stop
    assert second == spelt("stubborn", '"b"', queue=QUEUE)
    stage.release()
    stage.run_cluster("default")
    stage.wait_noted("ended a", "ended b")


def test_they_survive_many_retries(stage: Stage) -> None:
    stage.store.call("LPUSH", "queue:default", spelt("broken", '"a"', queue=QUEUE, retry="3"))
    stage.run_cluster("default", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    for failures in range(1, 4):
        wait_until(lambda count=failures: len(stage.notes()) == count, f"failure {failures}")  # type: ignore[misc]
        stage.wait_settled()
        (raw,) = wait_until(lambda: stage.store.call("ZRANGE", "retry", 0, -1), "the retry")
        assert lost(raw) == []
        stage.store.call("ZADD", "retry", "XX", 1, raw)

    (raw,) = wait_until(lambda: stage.store.call("ZRANGE", "dead", 0, -1), "the burial")
    assert lost(raw) == []


def test_they_survive_a_deploy_that_brings_the_class_late(stage: Stage) -> None:
    stage.store.call("LPUSH", "queue:default", spelt("late", queue=QUEUE))
    old = stage.run_cluster("default")
    (raw,) = wait_until(lambda: stage.store.call("ZRANGE", "schedule", 0, -1), "the job to be put off")
    assert lost(raw) == []
    assert old.stop() == 0
    stage.store.call("ZADD", "schedule", "XX", 1, raw)

    app = stage.write_application("""
        from kiqcluster import current_job, job
        from tests.apps.basic import note

        @job()
        def late():
            note(current_job().payload["traceparent"])
    """)
    stage.run_cluster("default", app=app, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    stage.wait_noted(decode(raw)["traceparent"])
