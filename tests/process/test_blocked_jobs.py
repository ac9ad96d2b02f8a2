"""Jobs that block hold up no others, although few threads run short jobs."""

from __future__ import annotations

from tests.stage import Stage

APPLICATION = """
from kiqcluster import job

@job()
def short(): pass
"""
SHORT_JOBS = 3_000  # enough for the worker to see that one thread keeps up


def test_a_blocked_job_holds_up_nobody(stage: Stage) -> None:
    for word in "ab":
        stage.push_many("short", [[]] * SHORT_JOBS)
        stage.push("stubborn", word)
    stage.push_many("short", [[]] * SHORT_JOBS)
    stage.push("record", "last")

    cluster = stage.run_cluster("default", "-c", "3", app=stage.write_application(APPLICATION))
    cluster.wait_ready()

    stage.wait_noted("ran last")
    assert stage.notes() == ["began a", "began b", "ran last"]
    stage.release()
    stage.wait_noted("ended a", "ended b")
    stage.wait_settled()


def test_jobs_that_block_for_a_moment_run_at_once(stage: Stage) -> None:
    """One by one, they would take a minute."""
    stage.push_many("short", [[]] * SHORT_JOBS)
    stage.push_many("nap", [[str(number), 0.05] for number in range(1_200)])

    cluster = stage.run_cluster("default", "-c", "100", app=stage.write_application(APPLICATION))
    cluster.wait_ready()

    stage.wait_noted(*(f"ended {number}" for number in range(1_200)))
    stage.wait_settled()
    assert len(stage.notes()) == 2 * 1_200
