"""Workers that live for a second: what the fleet has to do from time to time is done all the same."""

from __future__ import annotations

import time

from tests.kit import wait_until
from tests.stage import Stage

APP = """
    from tests.apps.basic import nap
    from kiqcluster import job

    @job(queue="later", cron="* * * * * *")
    def tick(): ...
"""
INTERVAL_SECONDS = 2.0  # of polls: longer than the workers live
JOBS, JOB_SECONDS, MAX_JOBS = 1_500, 0.05, 20


def test_due_jobs_retries_and_ticks_move_though_no_worker_lives_for_long(stage: Stage) -> None:
    """Each is recycled after half a second of work, and there is more of that than the test waits for."""
    stage.push_many("nap", [[str(number), JOB_SECONDS] for number in range(JOBS)], queue="busy")
    app = stage.write_application(APP)
    often = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": str(INTERVAL_SECONDS)}
    cluster = stage.run_cluster("busy", "-c", "2", "--max-jobs", str(MAX_JOBS), app=app, **often)
    cluster.wait_for("child_replaced", reason="max_jobs")
    for jid in ("a", "b"):
        payload = f'{{"class":"record","queue":"later","args":["{jid}"],"jid":"{jid}"}}'
        stage.store.call("ZADD", "schedule" if jid == "a" else "retry", time.time() + 1.0, payload)

    wait_until(lambda: {"a", "b"} <= {each["jid"] for each in stage.queued("later")}, "due jobs to be moved")
    wait_until(lambda: sum(each["class"] == "tick" for each in stage.queued("later")) >= 3, "ticks to come")

    assert stage.queued("busy"), "the workers were busy all the time"
