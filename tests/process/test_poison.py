"""A job that kills its process is buried after some deaths.  With its neighbours: tests/chaos/test_killers.py."""

from __future__ import annotations

from tests.kit import wait_until
from tests.stage import Stage


def test_a_class_says_how_many_deaths_it_may_cause(stage: Stage) -> None:
    # Not a job of basic.py: by the fewest deaths of any class, all suspects of a process start ten seconds apart.
    app = stage.write_application("""
        import os
        from kiqcluster import job
        from tests.apps.basic import note

        @job(max_retries_after_interruption=1)
        def killer_once(way):
            note("kills by", way)
            os.kill(os.getpid(), 9)
    """)
    stage.push("killer_once", "kill")

    stage.run_cluster("default", app=app)

    (buried,) = wait_until(lambda: stage.dead(), "the killer to be buried")
    assert stage.notes() == ["kills by kill"]
    assert buried["interrupted_count"] == 1


def test_a_job_whose_process_was_killed_once_is_not_suspect_after_it_has_run(stage: Stage) -> None:
    stage.push("suicide", "x")

    stage.run_cluster("default")

    wait_until(lambda: "ended x" in stage.notes(), "the second run to end")
    stage.wait_settled()
    assert stage.store.call("EXISTS", "kiq:suspects") == 0
    assert stage.store.call("ZCARD", "dead") == 0
