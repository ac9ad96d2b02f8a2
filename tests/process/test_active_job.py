"""A running ActiveJob is, to whoever watches the cluster, a job of its own class."""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster import job
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import metric, wait_settled

COUNT = 'sidekiq_jobs_completion_seconds_count{job_status="done",queue="default",worker="HoldJob"}'
RUNNING = 'sidekiq_running_jobs{queue="default",worker="HoldJob"}'


def test_its_series_have_the_name_of_its_own_class(
    run_cluster: Callable[..., Cluster], store: Store, setup: object
) -> None:
    @job(name="HoldJob", active_job=True)
    def hold(word: str) -> None: ...

    cluster = run_cluster("default", "-c", "1", app="tests.apps.active_job")
    jid = hold.perform_async("x")
    wait_until(lambda: store.call("LRANGE", "began", 0, -1) == [str(jid).encode()], "the job to run")

    wait_until(lambda: metric(cluster, RUNNING) == 1, "the gauge of running jobs")
    store.call("RPUSH", "release", "now")

    wait_settled(store)
    wait_until(lambda: metric(cluster, COUNT) == 1, "the run to be counted")
    wait_until(lambda: metric(cluster, RUNNING) == 0, "the gauge to be back at nothing")
