"""A worker without work: what it costs Redis, what it finds all the same, and that it counts as alive."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from statistics import median

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, RedisServer, wait_until
from tests.process.stage import push, readiness, wait_noted, wait_only_live, wait_settled

RunCluster = Callable[..., Cluster]

WATCHED = 7  # seconds, each by itself: a few hold what happens now and then, a beat, a poll, figures of the job before
A_SECOND = 3  # commands that an idle worker may cost Redis
AWAY = (503, "slot 0 cannot reach Redis")


def commands(store: Store) -> int:
    """Return how many commands the server has run, those of scripts and transactions among them."""
    return int(re.search(rb"total_commands_processed:(\d+)", store.call("INFO", "stats"))[1])  # type: ignore[index]


def wait_armed(store: Store, bells: int = 1) -> None:
    """Wait until that many connections wait at a queue."""
    waiting = re.compile(rb"flags=b .*cmd=blmove")
    wait_until(lambda: len(waiting.findall(store.call("CLIENT", "LIST"))) == bells, "the bells to be armed")


def wait_for_moment(at: float, what: str) -> None:
    """Wait until a moment of the monotonic clock."""
    wait_until(lambda: time.monotonic() >= at, what)


@pytest.fixture
def idle(run_cluster: RunCluster, durable_server: RedisServer) -> Cluster:
    """A worker that waits for work, on the durable server."""
    cluster = run_cluster("default", "-c", "2", f"--redis={durable_server.url}")
    cluster.wait_ready()
    wait_armed(durable_server.store())
    return cluster


def wait_serves_again(cluster: Cluster, store: Store) -> None:
    """Wait until the same worker runs jobs; that Redis was away has been said once, and so has its return."""
    wait_until(lambda: readiness(cluster)[0] == 200, "the cluster to be ready")
    push(store, "record", "a")
    wait_noted(store, "ran a")
    wait_only_live(store, cluster.pids()[0])
    cluster.wait_for("redis_back")
    assert [len(cluster.seen(name)) for name in ("child_ready", "redis_lost", "redis_back")] == [1, 1, 1]


def test_an_idle_worker_costs_redis_few_commands(run_cluster: RunCluster, store: Store) -> None:
    run_cluster("default", "-c", "10").wait_ready()
    push(store, "record", "a")
    wait_noted(store, "ran a")
    wait_settled(store)
    wait_armed(store)

    rates = []
    for _ in range(WATCHED):
        began, before = time.monotonic(), commands(store)
        wait_for_moment(began + 1, "a second of idleness")
        rates.append((commands(store) - before - 1) / (time.monotonic() - began))

    assert sum(rates) >= WATCHED // 2  # it does look
    assert median(rates) <= A_SECOND


def test_what_lies_in_a_wake_list_without_a_bell_is_found(run_cluster: RunCluster, store: Store) -> None:
    run_cluster("default", "-c", "1").wait_ready()
    wait_armed(store)
    push(store, "record", "a", queue="elsewhere")

    store.call("RENAME", "queue:elsewhere", "kiq:wake:default")  # as one leaves it that dies when its bell has rung

    wait_noted(store, "ran a")
    wait_settled(store)


def test_a_worker_that_is_idle_for_long_is_not_taken_for_silent(run_cluster: RunCluster, store: Store) -> None:
    silence = 4.0
    cluster = run_cluster("default", "-c", "1", KIQ_SILENCE_TIMEOUT=str(silence))
    pids = cluster.wait_ready()

    wait_for_moment(time.monotonic() + 1.5 * silence, "it to be idle for longer than it may be silent")

    assert cluster.seen("child_died") == []
    push(store, "record", "a")
    wait_noted(store, "ran a")
    assert cluster.pids() == pids


def test_an_idle_worker_notices_that_redis_is_away_and_back(idle: Cluster, durable_server: RedisServer) -> None:
    durable_server.kill()
    wait_until(lambda: readiness(idle) == AWAY, "readiness to say so")

    durable_server.start()

    wait_serves_again(idle, durable_server.store())


def test_an_idle_worker_notices_that_redis_has_become_a_replica(idle: Cluster, durable_server: RedisServer) -> None:
    store = durable_server.store()
    store.call("REPLICAOF", "127.0.0.1", 1)  # of nobody: reads go on working
    wait_until(lambda: readiness(idle) == AWAY, "readiness to say so")

    store.call("REPLICAOF", "NO", "ONE")

    wait_serves_again(idle, store)
