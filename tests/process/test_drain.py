"""--drain: end when there is nothing left to do, and not before."""

from __future__ import annotations

from tests.stage import Stage


def test_a_draining_cluster_ends_when_its_queues_are_empty_and_nothing_runs(stage: Stage) -> None:
    stage.push("nap", "long", 1.5)
    stage.push_many("record", [[str(number)] for number in range(200)], queue="other")

    cluster = stage.run_cluster("default", "other", "-c", "2", "--drain")

    assert cluster.wait() == 0
    assert len(stage.notes()) == 202
    assert "ended long" in stage.notes()
    assert stage.queued() == stage.queued("other") == []


def test_what_its_last_job_pushes_is_run_as_well(stage: Stage) -> None:
    path = stage.write_application(
        """
        import time
        from kiqcluster import job
        from tests.apps.basic import note

        @job(queue="other")
        def chain(number):
            time.sleep(0.5)
            note("link", number)
            if number:
                chain.perform_async(number - 1)
        """
    )
    stage.push("chain", 4, queue="other")

    cluster = stage.run_cluster("default", "other", "-c", "1", "--drain", app=path)

    assert cluster.wait() == 0
    assert stage.notes() == [f"link {number}" for number in (4, 3, 2, 1, 0)]
