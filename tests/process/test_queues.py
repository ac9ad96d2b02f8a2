"""Which queues a worker serves, and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import (
    identities,
    ledger,
    push,
    queued,
    release,
    wait_noted,
    wait_settled,
    words,
)

RunCluster = Callable[..., Cluster]


def beat_now(store: Store) -> None:
    """Cut the connection on which the heartbeat waits: it beats again a second later, not after ten."""
    clients = store.call("CLIENT", "LIST").decode().splitlines()
    waiting = [re.search(r"id=(\d+) ", line) for line in clients if "cmd=blpop" in line and "flags=b" in line]
    for match in waiting:
        assert match is not None
        store.call("CLIENT", "KILL", "ID", match[1])


def occupied(run_cluster: RunCluster, store: Store, queue: str, *arguments: str) -> Cluster:
    """Return a cluster with one thread, which a job of this queue holds until `release`."""
    cluster = run_cluster("-c", "1", *arguments)
    push(store, "stubborn", "holder", queue=queue)
    wait_noted(store, "began holder")
    return cluster


def order_of(store: Store, count: int) -> list[str]:
    """Let the holder go, and return the words of what ran after it, in order."""
    release(store)
    wait_until(lambda: len(ledger(store)) == count + 2, f"{count} jobs to run")
    return [line.split()[1] for line in ledger(store)[2:]]


@pytest.mark.parametrize("group", ["cronjob:*", "*"])
def test_a_queue_of_a_namespace_that_appears_later_is_served_without_a_restart(
    run_cluster: RunCluster, store: Store, group: str
) -> None:
    cluster = run_cluster(group, "-c", "1")
    pid = cluster.wait_ready()[0]
    wait_until(lambda: b"cmd=blpop" in store.call("CLIENT", "LIST"), "the heartbeat to wait")

    push(store, "record", "a", queue="cronjob:new")
    beat_now(store)

    wait_noted(store, "ran a")
    assert cluster.pids() == {0: pid}
    push(store, "record", "b", queue="cronjob:new")
    wait_noted(store, "ran b")


@pytest.mark.full
def test_a_new_queue_is_served_at_the_next_beat(run_cluster: RunCluster, store: Store) -> None:
    run_cluster("cronjob:*", "-c", "1").wait_ready()
    wait_until(lambda: b"cmd=blpop" in store.call("CLIENT", "LIST"), "the heartbeat to wait")

    push(store, "record", "a", queue="cronjob:new")

    wait_noted(store, "ran a")


def test_a_group_without_a_queue_yet_waits_for_the_first(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("reports:*")
    cluster.wait_ready()
    cluster.wait_for("no_queues")
    wait_until(lambda: b"cmd=blpop" in store.call("CLIENT", "LIST"), "the heartbeat to wait")

    push(store, "record", "a", queue="reports:weekly")
    beat_now(store)

    wait_noted(store, "ran a")


def test_a_queue_that_only_redis_knows_is_served_from_the_start(run_cluster: RunCluster, store: Store) -> None:
    push(store, "record", "a", queue="cronjob:old")

    cluster = run_cluster("cronjob:*", "-c", "1")

    wait_noted(store, "ran a")
    assert "cronjob:old" in cluster.wait_for("worker_ready")["queues"].split(",")  # no beat had to bring it


def test_other_queues_are_left_alone(run_cluster: RunCluster, store: Store) -> None:
    push(store, "record", "a", queue="cronjobs")
    push(store, "record", "b", queue="other")
    push(store, "record", "c", queue="cronjob:last")

    run_cluster("cronjob", "-c", "1")

    wait_noted(store, "ran c")
    wait_settled(store)
    assert ledger(store) == ["ran c"]
    assert (words(queued(store, "cronjobs")), words(queued(store, "other"))) == (["a"], ["b"])


def test_a_name_that_no_job_goes_to_is_told(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("defualt,default", "default", "cronjob,*")
    cluster.wait_ready(3)

    (said,) = cluster.seen("queue_unknown")
    assert (said["slot"], said["queues"], said["hint"]) == (0, "defualt", "did you mean default?")


# order


def test_strict_empties_the_first_queue_before_the_next(run_cluster: RunCluster, store: Store) -> None:
    occupied(run_cluster, store, "high", "--strict", "high,middle,low")
    for queue in ("low", "middle", "high"):
        for number in range(3):
            push(store, "record", f"{queue}{number}", queue=queue)

    expected = [f"{queue}{number}" for queue in ("high", "middle", "low") for number in range(3)]
    assert order_of(store, 9) == expected


def test_within_a_queue_the_oldest_runs_first(run_cluster: RunCluster, store: Store) -> None:
    occupied(run_cluster, store, "default", "default")
    for number in range(30):
        push(store, "record", str(number))

    assert order_of(store, 30) == [str(number) for number in range(30)]


def test_weights_prefer_a_queue_and_starve_none(run_cluster: RunCluster, store: Store) -> None:
    occupied(run_cluster, store, "often", "often=9,seldom")
    for _ in range(100):
        push(store, "record", "often", queue="often")
        push(store, "record", "seldom", queue="seldom")

    order = order_of(store, 200)

    # Of the first 100, a tenth is expected to be seldom; each bound is missed about once in 10 000 runs.
    assert 1 <= order[:100].count("seldom") <= 22


def test_queues_of_equal_weight_take_turns_at_random(run_cluster: RunCluster, store: Store) -> None:
    occupied(run_cluster, store, "a", "a,b")
    for _ in range(60):
        push(store, "record", "a", queue="a")
        push(store, "record", "b", queue="b")

    order = order_of(store, 120)

    assert 10 <= order[:60].count("a") <= 50
    assert len(set(pairwise(order))) == 4  # no fixed turns


# paused queues


def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(run_cluster: RunCluster, store: Store) -> None:
    store.call("SADD", "paused", "default")
    cluster = run_cluster("default,other", "-c", "1")
    cluster.wait_ready()

    push(store, "record", "a")
    push(store, "record", "b")
    push(store, "record", "c", queue="other")

    wait_noted(store, "ran c")
    assert ledger(store) == ["ran c"]
    assert words(queued(store)) == ["a", "b"]
    assert store.call("EXISTS", "kiq:wake:default") == 0
    store.call("SREM", "paused", "default")
    wait_noted(store, "ran a", "ran b")
    assert ledger(store) == ["ran c", "ran a", "ran b"]


def test_a_queue_paused_while_it_is_listened_to_gets_back_what_rings(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1")
    cluster.wait_ready()
    push(store, "record", "a")
    wait_noted(store, "ran a")
    wait_until(lambda: re.search(rb"flags=b .*cmd=blmove", store.call("CLIENT", "LIST")), "the bell to be armed")

    store.call("SADD", "paused", "default")
    push(store, "record", "b")

    wait_until(lambda: words(queued(store)) == ["b"], "the job to be back in its queue")
    assert store.call("EXISTS", "kiq:wake:default") == 0
    assert ledger(store) == ["ran a"]
    assert len(identities(store)) == 1


def test_more_queues_than_bells_are_all_served(run_cluster: RunCluster, store: Store) -> None:
    queues = [f"q{number}" for number in range(20)]
    run_cluster(",".join(queues), "-c", "2").wait_ready()

    for queue in queues:
        push(store, "record", queue, queue=queue)

    wait_noted(store, *(f"ran {queue}" for queue in queues))
    wait_settled(store)
    assert len(ledger(store)) == 20
