"""Which queues a worker serves, and in which order."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from kiqcluster.api import Queue
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.stage import Stage


def beat_now(store: Store) -> None:
    """Cut the connection on which the heartbeat waits: it beats again a second later, not after ten."""
    clients = store.call("CLIENT", "LIST").decode().splitlines()
    waiting = [re.search(r"id=(\d+) ", line) for line in clients if "cmd=blpop" in line and "flags=b" in line]
    for match in waiting:
        assert match is not None
        store.call("CLIENT", "KILL", "ID", match[1])


def occupied(stage: Stage, queue: str, *arguments: str) -> Cluster:
    """Return a cluster with one thread, which a job of this queue holds until `release`."""
    cluster = stage.run_cluster("-c", "1", *arguments)
    stage.push("stubborn", "holder", queue=queue)
    stage.wait_noted("began holder")
    return cluster


def order_of(stage: Stage, count: int) -> list[str]:
    """Let the holder go, and return the words of what ran after it, in order."""
    stage.release()
    wait_until(lambda: len(stage.notes()) == count + 2, f"{count} jobs to run")
    return [line.split()[1] for line in stage.notes()[2:]]


@pytest.mark.parametrize("group", ["cronjob:*", "*"])
def test_a_queue_of_a_namespace_that_appears_later_is_served_without_a_restart(stage: Stage, group: str) -> None:
    cluster = stage.run_cluster(group, "-c", "1")
    pid = cluster.wait_ready()[0]
    wait_until(lambda: b"cmd=blpop" in stage.store.call("CLIENT", "LIST"), "the heartbeat to wait")

    stage.push("record", "a", queue="cronjob:new")
    beat_now(stage.store)

    stage.wait_noted("ran a")
    assert cluster.pids() == {0: pid}
    stage.push("record", "b", queue="cronjob:new")
    stage.wait_noted("ran b")


@pytest.mark.full
def test_a_new_queue_is_served_at_the_next_beat(stage: Stage) -> None:
    stage.run_cluster("cronjob:*", "-c", "1").wait_ready()
    wait_until(lambda: b"cmd=blpop" in stage.store.call("CLIENT", "LIST"), "the heartbeat to wait")

    stage.push("record", "a", queue="cronjob:new")

    stage.wait_noted("ran a")


def test_a_group_without_a_queue_yet_waits_for_the_first(stage: Stage) -> None:
    cluster = stage.run_cluster("reports:*")
    cluster.wait_ready()
    cluster.wait_for("no_queues")
    wait_until(lambda: b"cmd=blpop" in stage.store.call("CLIENT", "LIST"), "the heartbeat to wait")

    stage.push("record", "a", queue="reports:weekly")
    beat_now(stage.store)

    stage.wait_noted("ran a")


def test_a_queue_that_only_redis_knows_is_served_from_the_start(stage: Stage) -> None:
    stage.push("record", "a", queue="cronjob:old")

    cluster = stage.run_cluster("cronjob:*", "-c", "1")

    stage.wait_noted("ran a")
    assert "cronjob:old" in cluster.wait_for("worker_ready")["queues"].split(",")  # no beat had to bring it


def test_other_queues_are_left_alone(stage: Stage) -> None:
    stage.push("record", "a", queue="cronjobs")
    stage.push("record", "b", queue="other")
    stage.push("record", "c", queue="cronjob:last")

    stage.run_cluster("cronjob", "-c", "1")

    stage.wait_noted("ran c")
    stage.wait_settled()
    assert stage.notes() == ["ran c"]
    assert (stage.queued_args("cronjobs"), stage.queued_args("other")) == (["a"], ["b"])


def test_a_name_that_no_job_goes_to_is_told(stage: Stage) -> None:
    cluster = stage.run_cluster("defualt,default", "default", "cronjob,*")
    cluster.wait_ready(3)

    (event,) = cluster.seen("queue_unknown")
    assert (event["slot"], event["queues"], event["hint"]) == (0, "defualt", "did you mean default?")


# order


def test_strict_empties_the_first_queue_before_the_next(stage: Stage) -> None:
    occupied(stage, "high", "--strict", "high,middle,low")
    for queue in ("low", "middle", "high"):
        for number in range(3):
            stage.push("record", f"{queue}{number}", queue=queue)

    expected = [f"{queue}{number}" for queue in ("high", "middle", "low") for number in range(3)]
    assert order_of(stage, 9) == expected


def test_within_a_queue_the_oldest_runs_first(stage: Stage) -> None:
    occupied(stage, "default", "default")
    for number in range(30):
        stage.push("record", str(number))

    assert order_of(stage, 30) == [str(number) for number in range(30)]


def test_weights_prefer_a_queue_and_starve_none(stage: Stage) -> None:
    occupied(stage, "often", "often=9,seldom")
    for _ in range(100):
        stage.push("record", "often", queue="often")
        stage.push("record", "seldom", queue="seldom")

    order = order_of(stage, 200)

    # Of the first 100, a tenth is expected to be seldom; each bound is missed about once in 10 000 runs.
    assert 1 <= order[:100].count("seldom") <= 22


def test_queues_of_equal_weight_take_turns_at_random(stage: Stage) -> None:
    occupied(stage, "a", "a,b")
    for _ in range(60):
        stage.push("record", "a", queue="a")
        stage.push("record", "b", queue="b")

    order = order_of(stage, 120)

    assert 10 <= order[:60].count("a") <= 50
    assert len(set(pairwise(order))) == 4  # no fixed turns


# paused queues


def test_a_paused_queue_keeps_its_jobs_until_it_is_resumed(stage: Stage) -> None:
    stage.store.call("SADD", "paused", "default")
    cluster = stage.run_cluster("default,other", "-c", "1")
    cluster.wait_ready()

    stage.push("record", "a")
    stage.push("record", "b")
    stage.push("record", "c", queue="other")

    stage.wait_noted("ran c")
    assert stage.notes() == ["ran c"]
    assert stage.queued_args() == ["a", "b"]
    assert stage.store.call("EXISTS", "kiq:wake:default") == 0
    stage.store.call("SREM", "paused", "default")
    stage.wait_noted("ran a", "ran b")
    assert stage.notes() == ["ran c", "ran a", "ran b"]


def test_a_queue_paused_while_it_is_listened_to_gets_back_what_rings(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    stage.push("record", "a")
    stage.wait_noted("ran a")
    wait_until(
        lambda: re.search(rb"flags=b .*cmd=blmove", stage.store.call("CLIENT", "LIST")),
        "an idle connection to wait at the queue",
    )

    Queue("default", store=stage.store).pause()
    stage.push("record", "b")

    wait_until(lambda: stage.queued_args() == ["b"], "the job to be back in its queue")
    assert stage.store.call("EXISTS", "kiq:wake:default") == 0
    assert stage.notes() == ["ran a"]
    assert len(stage.members()) == 1


def test_more_queues_than_wakeup_connections_are_all_served(stage: Stage) -> None:
    queues = [f"q{number}" for number in range(20)]
    stage.run_cluster(",".join(queues), "-c", "2").wait_ready()

    for queue in queues:
        stage.push("record", queue, queue=queue)

    stage.wait_noted(*(f"ran {queue}" for queue in queues))
    stage.wait_settled()
    assert len(stage.notes()) == 20
