"""Execution metrics of a real cluster: all there when it has ended, each run once, also through an outage of Redis."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kiqcluster.api import ExecutionMetrics, JobExecutions
from kiqcluster.store import Store
from kiqcluster.store.scripts import ONCE
from tests.kit import Cluster, RedisServer, cluster, wait_until
from tests.process.stage import metric, push, push_many, wait_noted, wait_settled
from tests.proxy import Proxy

RunCluster = Callable[..., Cluster]
Application = Callable[[str], str]


def executions(store: Store) -> dict[str, JobExecutions]:
    return ExecutionMetrics(store=store).top_jobs()


def counted(store: Store, name: str = "record") -> int:
    job = executions(store).get(name)
    return 0 if job is None else job.processed


def test_what_ran_and_failed_is_there_when_the_cluster_has_ended(run_cluster: RunCluster, store: Store) -> None:
    push_many(store, "record", [[f"{number}"] for number in range(40)])
    for word in ("x", "y"):
        push(store, "broken", word)
    push(store, "nap", "z", 0.2)
    push(store, "not_registered_anywhere")
    cluster = run_cluster("default", "-c", "4")
    wait_noted(store, "failed x", "failed y", "ended z", *(f"ran {number}" for number in range(40)))
    wait_settled(store)

    assert cluster.stop() == 0

    jobs = executions(store)
    assert {name: (job.processed, job.failed) for name, job in jobs.items()} == {
        "record": (40, 0),
        "broken": (2, 2),
        "nap": (1, 0),
    }
    assert jobs["nap"].ms >= 200
    histogram = ExecutionMetrics(store=store).for_job("nap").histogram
    assert (sum(histogram), sum(histogram[:6])) == (1, 0)  # none below 150 ms
    assert store.call("KEYS", "kiq:executions:*") == []


def test_a_job_that_is_put_back_has_run_and_not_failed(run_cluster: RunCluster, store: Store) -> None:
    push(store, "stubborn", "a")
    cluster = run_cluster("default", "--timeout", "0.2")
    wait_noted(store, "began a")

    cluster.stop()

    job = executions(store)["stubborn"]
    assert (job.processed, job.failed, job.ms) == (1, 0, 0)


def test_a_running_cluster_writes_with_its_heartbeats(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default")
    cluster.wait_ready()
    push(store, "record", "a")
    wait_noted(store, "ran a")
    wait_settled(store)

    cluster.signal(signal.SIGTSTP)  # a beat comes with it

    wait_until(lambda: counted(store) == 1, "the run to be written")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        yield proxy


def test_a_reply_that_is_lost_doubles_no_run(run_cluster: RunCluster, store: Store, proxy: Proxy) -> None:
    store.call("SCRIPT", "LOAD", ONCE.text)
    cluster = run_cluster("default", "--redis", proxy.url)
    cluster.wait_ready()
    fault = proxy.lose_replies(ONCE.digest.encode())
    push_many(store, "record", [["a"], ["b"]])
    wait_noted(store, "ran a", "ran b")
    wait_settled(store)
    cluster.signal(signal.SIGTSTP)  # a beat comes with it, if none was due before
    cluster.wait_for("worker_quiet")  # of signals that come within microseconds the later one may be heard first
    wait_until(lambda: fault.befell, "a flush whose reply is lost")

    cluster.signal(signal.SIGCONT)
    push(store, "record", "c")
    wait_noted(store, "ran c")
    wait_settled(store)

    assert cluster.stop() == 0
    assert counted(store) == 3


def has_ended(cluster: Cluster, name: str) -> bool:
    """Return whether the one job of that name has, without an error; Redis need not know yet."""
    done = f'sidekiq_jobs_completion_seconds_count{{job_status="done",queue="default",worker="{name}"}}'
    return metric(cluster, done) == 1


HOLD = """
    import pathlib, time
    from kiqcluster import job

    @job()
    def hold(gate):
        pathlib.Path(f"{gate}-began").touch()
        while not pathlib.Path(gate).exists():
            time.sleep(0.01)
"""


def test_what_ran_while_redis_was_away_is_written_when_it_is_back(
    durable_server: RedisServer, application: Application, tmp_path: Path
) -> None:
    store, gate = durable_server.store(), tmp_path / "gate"
    push(store, "hold", str(gate))
    push(store, "record", "a")
    with cluster("-r", application(HOLD), "--redis", durable_server.url, "default", "-c", "2") as running:
        running.wait_ready()
        wait_until(lambda: has_ended(running, "record"), "the job to end that Redis must answer")
        wait_until((tmp_path / "gate-began").exists, "the other to hold")
        durable_server.kill()
        gate.touch()
        wait_until(lambda: has_ended(running, "hold"), "it to end")
        running.wait_for("redis_lost")
        running.signal(signal.SIGTSTP)  # a beat, in vain
        running.wait_for("worker_quiet")
        durable_server.start()
        running.signal(signal.SIGCONT)
        wait_settled(store)

        assert running.stop() == 0

    assert {name: (job.processed, job.failed) for name, job in executions(store).items()} == {
        "hold": (1, 0),
        "record": (1, 0),
    }
