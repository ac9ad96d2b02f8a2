"""A running ActiveJob is, to whoever watches the cluster, a job of its own class."""

from __future__ import annotations

from kiqcluster import job
from tests.kit import wait_until
from tests.stage import Stage

COUNT = 'sidekiq_jobs_completion_seconds_count{job_status="done",queue="default",worker="HoldJob"}'
RUNNING = 'sidekiq_running_jobs{queue="default",worker="HoldJob"}'


def test_its_series_have_the_name_of_its_own_class(stage: Stage, setup: object) -> None:
    @job(name="HoldJob", active_job=True)
    def hold(word: str) -> None: ...

    cluster = stage.run_cluster("default", "-c", "1", app="tests.apps.active_job")
    jid = hold.perform_async("x")
    wait_until(lambda: stage.store.call("LRANGE", "began", 0, -1) == [str(jid).encode()], "the job to run")

    wait_until(lambda: cluster.metric(RUNNING) == 1, "the gauge of running jobs")
    stage.store.call("RPUSH", "release", "now")

    stage.wait_settled()
    wait_until(lambda: cluster.metric(COUNT) == 1, "the run to be counted")
    wait_until(lambda: cluster.metric(RUNNING) == 0, "the gauge to be back at nothing")
    assert (cluster.metric(COUNT), cluster.metric(RUNNING)) == (1, 0)
