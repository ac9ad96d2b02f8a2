"""Jobs that are cancelled by their ids, in real clusters: they do not run any more, and none vanishes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from random import Random

import pytest

from kiqcluster.api import DroppedSet, RetrySet
from kiqcluster.control.cancellation import cancel_in
from tests.kit import Cluster, wait_until
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage


@pytest.fixture
def kiqctl(stage: Stage) -> Iterator[Kiqctl]:
    running = Kiqctl(stage.redis.url)
    yield running
    running.close()


def run_cluster(stage: Stage, *options: str) -> Cluster:
    cluster = stage.run_cluster("default", "-c", "4", *options, app="tests.apps.cancelled")
    cluster.wait_ready(1)
    return cluster


def dropped(stage: Stage) -> dict[str, str]:
    """Return jid → by what it was dropped."""
    return {each.jid: each["dropped_by"] for each in DroppedSet(store=stage.store)}


def test_a_running_job_is_told_within_moments_and_ends_where_it_asks(stage: Stage, kiqctl: Kiqctl) -> None:
    run_cluster(stage)
    jid = stage.push("patient", "a")
    stage.wait_noted("began a")

    done = kiqctl("cancel", jid, "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["jobs"] == [
        {"jid": jid, "cancelled": True, "removed": 0, "running": 1, "told": False}
    ]
    wait_until(lambda: stage.remaining() == {}, "the job to end", seconds=3)
    assert stage.notes() == ["began a", "told a"]
    assert dropped(stage) == {jid: "cancelled"}
    assert stage.store.call("EXISTS", "kiq:cancelled", "stat:failed") == 0
    assert kiqctl("cancel", jid).returncode == 1


def test_an_async_job_is_cancelled_where_it_waits(stage: Stage) -> None:
    run_cluster(stage)
    jid = stage.push("waiting", "a")
    stage.wait_noted("began a")

    assert cancel_in(stage.store, jid).running == 1

    wait_until(lambda: stage.remaining() == {}, "the job to end", seconds=5)
    assert (stage.notes(), dropped(stage)) == (["began a"], {jid: "cancelled"})


def test_an_async_job_that_is_told_on_its_way_to_the_event_loop_does_not_wait_there(stage: Stage) -> None:
    run_cluster(stage)
    jid = stage.push("EarlyTold")
    stage.wait_noted("began early")

    assert cancel_in(stage.store, jid).running == 1

    wait_until(lambda: stage.remaining() == {}, "the job to end", seconds=5)
    assert (stage.notes(), dropped(stage)) == (["began early"], {jid: "cancelled"})


@pytest.mark.parametrize(("word", "is_dropped"), [("fails", True), ("gives_way", True), ("returns", False)])
def test_a_job_that_does_not_ask_is_not_run_again(stage: Stage, word: str, is_dropped: bool) -> None:
    run_cluster(stage)
    jid = stage.push("heedless", word)
    stage.wait_noted(f"began {word}")

    assert cancel_in(stage.store, jid).running == 1

    wait_until(lambda: stage.remaining() == {}, "the job to end")
    assert dropped(stage) == ({jid: "cancelled"} if is_dropped else {})
    assert stage.store.call("EXISTS", "kiq:cancelled") == 0


def test_a_cancelled_job_of_a_killed_process_does_not_run_again_until_somebody_retries_it(stage: Stage) -> None:
    cluster = run_cluster(stage)
    jid = stage.push("stubborn", "a")
    stage.wait_noted("began a")

    assert cancel_in(stage.store, jid)
    (worker,) = cluster.slots()
    os.kill(worker["pid"], signal.SIGKILL)

    wait_until(lambda: dropped(stage) == {jid: "cancelled"}, "the job to be dropped at its next begin")
    assert stage.notes() == ["began a"]
    assert stage.store.call("EXISTS", "kiq:cancelled") == 0

    (entry,) = DroppedSet(store=stage.store)
    assert entry.retry()
    stage.release()
    wait_until(lambda: stage.remaining() == {}, "the job to run")
    assert stage.notes() == ["began a", "began a", "ended a"]


def test_a_cancelled_job_that_is_cut_off_by_a_stop_does_not_run_again(stage: Stage) -> None:
    cluster = run_cluster(stage, "--timeout", "0.5")
    jid = stage.push("stubborn", "a")
    stage.wait_noted("began a")

    assert cancel_in(stage.store, jid)
    wait_until(lambda: stage.store.call("EXISTS", "kiq:cancelled") == 1, "the mark")
    cluster.stop()

    assert (stage.remaining(), dropped(stage)) == ({}, {jid: "cancelled"})


def test_jobs_are_cancelled_while_they_move_from_place_to_place(stage: Stage) -> None:
    """Each job runs to its end, or is in the list of dropped jobs; none is anywhere else, and none is there twice."""
    rng = Random(7)
    run_cluster(stage)
    jids = stage.push_many("record", [[str(number)] for number in range(200)])
    soon = [stage.push("record", f"s{number}", at=time.time() + rng.uniform(0, 1)) for number in range(40)]
    chosen = rng.sample(jids, 30) + soon[:20]

    found = {jid: bool(cancel_in(stage.store, jid)) for jid in chosen}

    wait_until(lambda: stage.remaining() == {}, "all jobs to end")
    by = dropped(stage)
    assert len(stage.notes()) == len(set(stage.notes())) == 240 - len(by)
    assert by.keys() <= {jid for jid, was_found in found.items() if was_found}
    assert len(RetrySet(store=stage.store)) == 0
