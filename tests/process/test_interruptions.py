"""Interruption limits: a job that was interrupted too often is buried, and its hook is told once."""

from __future__ import annotations

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
