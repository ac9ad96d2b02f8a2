"""Interruption limits: a job that was interrupted too often is buried, and its hook is told once."""

from __future__ import annotations

from collections import Counter

from kiqcluster.worker.run.execution import MOST_HOOK_DEATHS
from tests.kit import wait_until
from tests.stage import Stage

APP = "tests.apps.interrupted"


def test_the_hook_of_a_job_that_kills_its_processes_is_told_once_and_no_other(stage: Stage) -> None:
    stage.push("Killer", "a")
    stage.run_cluster("default", "-c", "1", app=APP)

    (buried,) = wait_until(lambda: stage.dead(), "it to be buried")
    stage.wait_settled()

    assert stage.notes() == ["kills a", "kills a", "interrupted too often: a 2"]
    assert buried["interrupted_count"] == 2


def test_a_forced_stop_too_many_tells_the_hook_as_well(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.1", app=APP)
    stage.push("Sleeper", "a")
    stage.wait_noted("sleeps a")

    assert cluster.stop() == 0

    assert stage.notes() == ["sleeps a", "interrupted too often: a 1"]
    assert stage.dead_args() == ["a"]


def test_a_hook_whose_process_dies_is_asked_again_but_not_for_ever(stage: Stage) -> None:
    jids = [stage.push("Doomed", word) for word in ("once", "always")]
    stage.run_cluster("default", "-c", "1", app=APP, KIQ_HEALTH_RESPAWN_BURST="100")

    buried = wait_until(lambda: len(found := stage.dead()) == 2 and found, "both to be buried")
    stage.wait_settled()

    assert {payload["jid"] for payload in buried} == set(jids)
    assert Counter(stage.notes()) == {
        "kills once": 1,
        "asked once": 2,
        "told once": 1,
        "kills always": 1,
        "asked always": MOST_HOOK_DEATHS,
    }
    wait_until(lambda: stage.remaining() == {"dead": 2}, "nothing else to be left")
