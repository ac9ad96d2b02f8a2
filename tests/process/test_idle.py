"""A worker without work: what it costs Redis, what it finds all the same, and that it counts as alive."""

from __future__ import annotations

import re
import time
from collections import deque
from statistics import median

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.stage import Stage

WATCHED_SECONDS = 5  # each by itself, because a beat or a poll falls into some of them
MAX_COMMANDS_PER_SECOND = 3  # commands that an idle worker may cost Redis
AS_SET = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "5"}  # seconds; nobody has set another
REDIS_UNREACHABLE = (503, "slot 0 cannot reach Redis")


def commands(store: Store) -> int:
    """Return how many commands the server has run, those of scripts and transactions among them."""
    return int(re.search(rb"total_commands_processed:(\d+)", store.call("INFO", "stats"))[1])  # type: ignore[index]


def wait_calm(store: Store, seconds: int, least: float = 0) -> None:
    """Wait until Redis has had few commands in most of the latest seconds, and at least so many in all of them.

    A machine with other work has this take longer; no worker that asks too often gets there.
    """
    rates = deque[float](maxlen=seconds)

    def is_calm() -> bool:
        began, before = time.monotonic(), commands(store)
        wait_for_moment(began + 1, "a second of idleness")
        rates.append((commands(store) - before - 1) / (time.monotonic() - began))
        return len(rates) == seconds and median(rates) <= MAX_COMMANDS_PER_SECOND and sum(rates) >= least

    wait_until(is_calm, "few commands in a second")


def wait_armed(store: Store, count: int = 1) -> None:
    """Wait until that many connections wait at a queue."""
    waiting = re.compile(rb"flags=b .*cmd=blmove")
    wait_until(
        lambda: len(waiting.findall(store.call("CLIENT", "LIST"))) == count, "idle connections to wait at a queue"
    )


def wait_for_moment(at: float, what: str) -> None:
    """Wait until a moment of the monotonic clock."""
    wait_until(lambda: time.monotonic() >= at, what)


@pytest.fixture
def idle(stage: Stage) -> Cluster:
    """A worker that waits for work, connected to Redis."""
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    wait_armed(stage.store)
    return cluster


def wait_serves_again(cluster: Cluster, stage: Stage) -> None:
    """Wait until the same worker runs jobs; that Redis was away has been said once, and so has its return."""
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready")
    stage.push("record", "a")
    stage.wait_noted("ran a")
    stage.wait_members(cluster.pids()[0])
    cluster.wait_for("redis_back")
    assert [len(cluster.seen(name)) for name in ("child_ready", "redis_lost", "redis_back")] == [1, 1, 1]


def test_an_idle_worker_costs_redis_few_commands(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "10", **AS_SET).wait_ready()
    stage.push("record", "a")
    stage.wait_noted("ran a")
    stage.wait_settled()
    wait_armed(stage.store)

    wait_calm(stage.store, WATCHED_SECONDS, least=WATCHED_SECONDS // 2)  # it does look


def test_a_job_in_a_wake_list_is_found_without_a_wakeup(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1").wait_ready()
    wait_armed(stage.store)
    stage.push("record", "a", queue="elsewhere")

    # A process that dies once its wakeup has come leaves the list like this.
    stage.store.call("RENAME", "queue:elsewhere", "kiq:wake:default")

    stage.wait_noted("ran a")
    stage.wait_settled()
    assert stage.remaining() == {}


def test_a_worker_that_is_idle_for_long_is_not_taken_for_silent(stage: Stage) -> None:
    silence = 4.0
    cluster = stage.run_cluster("default", "-c", "1", KIQ_HEALTH_SILENCE_TIMEOUT=str(silence))
    pids = cluster.wait_ready()

    wait_for_moment(time.monotonic() + 1.5 * silence, "it to be idle for longer than it may be silent")

    assert cluster.seen("child_died") == []
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.pids() == pids


@pytest.mark.durable_redis
def test_an_idle_worker_notices_that_redis_is_away_and_back(idle: Cluster, stage: Stage) -> None:
    stage.redis.kill()
    wait_until(lambda: idle.readiness() == REDIS_UNREACHABLE, "readiness to say so")

    stage.redis.start()

    wait_serves_again(idle, stage)


@pytest.mark.durable_redis
def test_an_idle_worker_notices_that_redis_has_become_a_replica(idle: Cluster, stage: Stage) -> None:
    stage.store.call("REPLICAOF", "127.0.0.1", 1)  # of nobody: reads go on working
    wait_until(lambda: idle.readiness() == REDIS_UNREACHABLE, "readiness to say so")

    stage.store.call("REPLICAOF", "NO", "ONE")

    wait_serves_again(idle, stage)
