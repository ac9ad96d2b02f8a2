"""kiqcluster.api beside a real cluster: what it sees, and what processes do that it asks."""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster.api import Process, ProcessSet, Stats, WorkSet
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import occupy, push, release, restarts, wait_noted, wait_settled

RunCluster = Callable[..., Cluster]


def process(store: Store, queue: str = "default") -> Process:
    """Return the process that serves a queue, once it shows."""
    return wait_until(
        lambda: next((each for each in ProcessSet(store=store) if queue in each.queues), None), f"{queue} to be served"
    )


def test_a_running_job_is_seen_with_its_process(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default=2,low", "-c", "3")
    pid = occupy(cluster, store)[0]
    process(store).quiet()  # a beat comes with it
    wait_until(lambda: process(store).is_quiet, "the process to be quiet")

    (work,) = WorkSet(store=store)
    seen, stats = process(store), Stats(store=store)

    assert (work.identity, work.queue, work.job.name, work.job.args) == (seen.identity, "default", "stubborn", ["a"])
    assert WorkSet(store=store).find_work(work.job.jid) == work
    assert (seen.pid, seen.concurrency, seen.busy, seen.is_ours, seen.labels) == (pid, 3, 1, True, ("kiqcluster",))
    assert [(each.name, each.threads, each.mode, each.weights) for each in seen.capsules] == [
        ("default", 3, "weighted", {"default": 2, "low": 1})
    ]
    assert seen.started_at <= work.run_at + 1
    assert (stats.processes_size, stats.workers_size) == (1, 1)
    release(store)


def test_one_process_is_quiet_and_resumes_and_the_other_goes_on(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other")
    cluster.wait_ready(2)

    process(store).quiet(lease=600)
    wait_until(lambda: process(store).is_quiet, "the process to be quiet")
    push(store, "record", "other", queue="other")
    push(store, "record", "default")
    wait_noted(store, "ran other")
    assert not process(store, "other").is_quiet
    wait_until(lambda: Stats(store=store).queues["default"] == 1, "the job to be in its queue, if a bell had caught it")

    process(store).resume()
    wait_noted(store, "ran default")
    wait_settled(store)


def test_a_process_that_is_stopped_ends_and_is_replaced(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default")
    before = cluster.wait_ready()[0]

    process(store).dump()
    cluster.wait_for("threads")
    process(store).stop()

    cluster.wait_for("child_ready", count=2)
    assert cluster.pids()[0] != before
    assert restarts(cluster, "remote_stop") == 1
