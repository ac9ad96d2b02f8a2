"""kiqcluster.api beside a real cluster: what it sees, and what processes do that it asks."""

from __future__ import annotations

from kiqcluster.api import Process, ProcessSet, Stats, WorkSet
from kiqcluster.store import Store
from tests.kit import wait_until
from tests.stage import Stage


def process(store: Store, queue: str = "default") -> Process:
    """Return the process that serves a queue, once it shows."""
    return wait_until(
        lambda: next((each for each in ProcessSet(store=store) if queue in each.queues), None), f"{queue} to be served"
    )


def test_a_running_job_is_seen_with_its_process(stage: Stage) -> None:
    cluster = stage.run_cluster("default=2,low", "-c", "3")
    pid = stage.occupy(cluster)[0]
    process(stage.store).quiet()  # a beat comes with it
    wait_until(lambda: process(stage.store).is_quiet, "the process to be quiet")

    (work,) = WorkSet(store=stage.store)
    seen, stats = process(stage.store), Stats(store=stage.store)

    assert (work.identity, work.queue, work.job.name, work.job.args) == (seen.identity, "default", "stubborn", ["a"])
    assert WorkSet(store=stage.store).find_work(work.job.jid) == work
    assert (seen.pid, seen.concurrency, seen.busy, seen.is_ours, seen.labels) == (pid, 3, 1, True, ("kiqcluster",))
    assert [(each.name, each.threads, each.mode, each.weights) for each in seen.capsules] == [
        ("default", 3, "weighted", {"default": 2, "low": 1})
    ]
    assert seen.started_at <= work.run_at + 1
    assert (stats.processes_size, stats.workers_size) == (1, 1)
    stage.release()


def test_one_process_is_quiet_and_resumes_and_the_other_goes_on(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other")
    cluster.wait_ready(2)

    process(stage.store).quiet(lease=600)
    wait_until(lambda: process(stage.store).is_quiet, "the process to be quiet")
    stage.push("record", "other", queue="other")
    stage.push("record", "default")
    stage.wait_noted("ran other")
    assert not process(stage.store, "other").is_quiet
    wait_until(
        lambda: Stats(store=stage.store).queues["default"] == 1, "the job to be in its queue, if it woke the process"
    )

    process(stage.store).resume()
    stage.wait_noted("ran default")
    stage.wait_settled()


def test_a_process_that_is_stopped_ends_and_is_replaced(stage: Stage) -> None:
    cluster = stage.run_cluster("default")
    before = cluster.wait_ready()[0]

    process(stage.store).dump()
    cluster.wait_for("threads")
    process(stage.store).stop()

    cluster.wait_for("child_ready", count=2)
    assert cluster.pids()[0] != before
    assert cluster.restarts("remote_stop") == 1
