"""Recycling: a process that has run enough jobs, or grown too large, is replaced; no job is lost, no slot is empty."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kit import wait_until
from tests.proc import wait_exited
from tests.process.capacity import Capacity
from tests.process.releases import Releases
from tests.stage import Stage

HUNGRY = """
    import time
    from kiqcluster import current_job, job
    from tests.apps.basic import note, stubborn
    from kiqcluster.process.runtime import current_setup

    kept = []

    @job()
    def eat(word, megabytes):
        "The first time it eats, and then waits for the list `release`; later it has had enough."
        note("began", word)
        if current_setup().current_store().call("INCR", f"eaten:{word}") == 1:
            kept.append(bytearray(b"x") * megabytes * 1_000_000)
            while not current_setup().current_store().call("LLEN", "release"):
                time.sleep(0.01)
        note("ended", word)
"""


# recycle.jobs


def test_a_process_is_replaced_after_max_jobs_and_every_job_runs_once(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2", "--set", "recycle.jobs=20")
    first = cluster.wait_ready(2)

    with Capacity(cluster) as capacity:
        for number in range(60):
            stage.push("nap", f"a{number}", 0.02)
            stage.push("record", f"b{number}", queue="other")
        for slot in first:
            cluster.wait_for("child_replaced", slot=slot, reason="max_jobs")
        wait_until(lambda: len(stage.notes()) == 180, "all jobs to have run")
        wait_exited(*first.values())

    assert len(set(stage.notes())) == 180
    stage.wait_settled()
    assert cluster.restarts("max_jobs", 0) >= 1
    assert cluster.restarts("max_jobs", 1) >= 1
    assert capacity.fewest_ready == 2
    assert capacity.most_processes <= 3  # one slot at a time


def test_what_runs_in_a_process_that_is_recycled_ends_there(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "--set", "recycle.jobs=5")
    first = cluster.wait_ready()[0]
    stage.push("stubborn", "a")
    stage.push_many("record", [[str(number)] for number in range(10)])
    cluster.wait_for("child_replaced", reason="max_jobs")

    stage.release()
    wait_exited(first)

    assert stage.notes().count("began a") == stage.notes().count("ended a") == 1
    stage.wait_members(cluster.pids()[0])


def test_a_process_goes_on_when_the_one_that_should_replace_it_does_not_boot(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--set", "recycle.jobs=5")
    first = cluster.wait_ready()[0]
    releases.deploy("1", "assert 'KIQ_SLOT' not in os.environ")  # in place: another release would wait for a roll
    stage.push_many("record", [[str(number)] for number in range(10)])

    cluster.wait_for("recycle_failed")
    stage.push("release")

    stage.wait_noted("release 1")
    stage.wait_members(first)
    assert cluster.restarts("max_jobs") == 0
    assert len(cluster.seen("child_started")) == 2  # it is not tried again at once


# recycle.memory


GROWS = """
kept = []

@on("ready")
def grow_when_told():
    def grow():
        grow = pathlib.Path(os.environ["GROW"])
        while not grow.exists():
            time.sleep(0.01)
        grow.unlink()  # the next process is thrifty
        kept.append(bytearray(b"x") * 200_000_000)

    threading.Thread(target=grow, daemon=True).start()
"""


def test_a_process_beyond_the_hard_limit_is_replaced_at_once_and_its_job_runs_again(
    stage: Stage, releases: Releases, tmp_path: Path
) -> None:
    releases.deploy("1", GROWS)
    stage.push("stubborn", "a")
    cluster = releases.run(stage, "default", "-c", "1", KIQ_RECYCLE_MEMORY_HARD="150MB", GROW=str(tmp_path / "grow"))
    first = cluster.wait_ready()[0]
    stage.wait_noted("began a")
    (tmp_path / "grow").touch()

    wait_until(lambda: stage.notes().count("began a") > 1, "the job to run again")
    stage.release()

    stage.wait_noted("ended a")
    wait_exited(first)
    stage.wait_settled()
    assert stage.notes().count("ended a") == 1
    assert stage.notes().count("began a") == 1 + cluster.restarts("max_rss")
    stage.wait_members(cluster.pids()[0])
    assert cluster.seen("child_died") == []  # it did as it was told
    assert cluster.slots()[0]["last_death"] is None


@pytest.mark.parametrize("limit", ["KIQ_RECYCLE_MEMORY", "KIQ_RECYCLE_MEMORY_HARD"])
def test_a_limit_that_is_too_low_for_any_worker_replaces_none(stage: Stage, limit: str) -> None:
    cluster = stage.run_cluster("default", "-c", "1", **{limit: "1MB"})
    first = cluster.wait_ready()[0]

    assert "recycle.memory" in cluster.wait_for("setting_doubtful")["problem"]

    stage.push("record", "a")
    stage.wait_noted("ran a")
    stage.wait_members(first)


@pytest.mark.full
def test_a_process_that_stays_beyond_the_soft_limit_is_replaced_and_its_job_ends_first(stage: Stage) -> None:
    cluster = stage.run_cluster(
        "default", "-c", "2", "--set", "recycle.memory=150MB", app=stage.write_application(HUNGRY)
    )
    first = cluster.wait_ready()[0]
    stage.push("eat", "a", 200)

    cluster.wait_for("child_replaced", reason="max_rss", seconds=40)
    stage.push("stubborn", "b")
    stage.wait_noted("began b")
    stage.release()

    wait_exited(first)
    stage.wait_noted("ended b")
    assert sorted(stage.notes()) == ["began a", "began b", "ended a", "ended b"]
    assert cluster.restarts("max_rss") == 1
    stage.wait_members(cluster.pids()[0])


@pytest.mark.full
def test_two_processes_beyond_the_hard_limit_do_not_go_together(stage: Stage) -> None:
    """The floor is all but one: where the other is not there, the one that outgrew serves until it is replaced."""
    cluster = stage.run_cluster(
        "default", "other", "-c", "1", app=stage.write_application(HUNGRY), KIQ_RECYCLE_MEMORY_HARD="150MB"
    )
    first = cluster.wait_ready(2)

    with Capacity(cluster) as capacity:
        stage.push("eat", "a", 200)
        stage.push("eat", "b", 200, queue="other")
        for slot in first:
            wait_until(lambda slot=slot: cluster.restarts("max_rss", slot) == 1, "the slot to be renewed")
        stage.release()
        wait_exited(*first.values())
        stage.wait_noted("ended a", "ended b")

    assert capacity.fewest_ready == 1
    assert Counter(stage.notes())["ended a"] == Counter(stage.notes())["ended b"] == 1
    stage.wait_members(*cluster.pids().values())
