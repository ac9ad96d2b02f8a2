"""Execution metrics of a real cluster: all there when it has ended, each run once, also through an outage of Redis."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.api import ExecutionMetrics, JobExecutions
from kiqcluster.store import Store
from kiqcluster.store.scripts import ONCE
from tests.kit import Cluster, RedisServer, cluster, wait_until
from tests.proxy import Proxy
from tests.stage import Stage


def executions(store: Store) -> dict[str, JobExecutions]:
    return ExecutionMetrics(store=store).top_jobs()


def counted(store: Store, name: str = "record") -> int:
    job = executions(store).get(name)
    return 0 if job is None else job.processed


def test_what_ran_and_failed_is_there_when_the_cluster_has_ended(stage: Stage) -> None:
    stage.push_many("record", [[f"{number}"] for number in range(40)])
    for word in ("x", "y"):
        stage.push("broken", word)
    stage.push("nap", "z", 0.2)
    stage.push("not_registered_anywhere")
    cluster = stage.run_cluster("default", "-c", "4")
    stage.wait_noted("failed x", "failed y", "ended z", *(f"ran {number}" for number in range(40)))
    stage.wait_settled()

    assert cluster.stop() == 0

    jobs = executions(stage.store)
    assert {name: (job.processed, job.failed) for name, job in jobs.items()} == {
        "record": (40, 0),
        "broken": (2, 2),
        "nap": (1, 0),
    }
    assert jobs["nap"].ms >= 200
    histogram = ExecutionMetrics(store=stage.store).for_job("nap").histogram
    assert (sum(histogram), sum(histogram[:6])) == (1, 0)  # none below 150 ms
    assert stage.store.call("KEYS", "kiq:executions:*") == []


def test_a_job_that_is_put_back_has_run_and_not_failed(stage: Stage) -> None:
    stage.push("stubborn", "a")
    cluster = stage.run_cluster("default", "--timeout", "0.2")
    stage.wait_noted("began a")

    cluster.stop()

    job = executions(stage.store)["stubborn"]
    assert (job.processed, job.failed, job.ms) == (1, 0, 0)


def test_a_running_cluster_writes_with_its_heartbeats(stage: Stage) -> None:
    cluster = stage.run_cluster("default")
    cluster.wait_ready()
    stage.push("record", "a")
    stage.wait_noted("ran a")
    stage.wait_settled()

    cluster.signal(signal.SIGTSTP)  # a beat comes with it

    wait_until(lambda: counted(stage.store) == 1, "the run to be written")


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        yield proxy


def test_a_reply_that_is_lost_doubles_no_run(stage: Stage, proxy: Proxy) -> None:
    stage.store.call("SCRIPT", "LOAD", ONCE.text)
    cluster = stage.run_cluster("default", "--redis", proxy.url)
    cluster.wait_ready()
    fault = proxy.lose_replies(ONCE.digest.encode())
    stage.push_many("record", [["a"], ["b"]])
    stage.wait_noted("ran a", "ran b")
    stage.wait_settled()
    cluster.signal(signal.SIGTSTP)  # a beat comes with it, if none was due before
    cluster.wait_for("worker_quiet")  # of signals that come within microseconds the later one may be heard first
    wait_until(lambda: fault.hits, "a flush whose reply is lost")

    cluster.signal(signal.SIGCONT)
    stage.push("record", "c")
    stage.wait_noted("ran c")
    stage.wait_settled()

    assert cluster.stop() == 0
    assert counted(stage.store) == 3


def has_ended(cluster: Cluster, name: str) -> bool:
    """Return whether the one job of that name has, without an error; Redis need not know yet."""
    done = f'sidekiq_jobs_completion_seconds_count{{job_status="done",queue="default",worker="{name}"}}'
    return cluster.metric(done) == 1


HOLD = """
    import pathlib, time
    from kiqcluster import job

    @job()
    def hold(gate):
        pathlib.Path(f"{gate}-began").touch()
        while not pathlib.Path(gate).exists():
            time.sleep(0.01)
"""


@pytest.mark.durable_redis
def test_what_ran_while_redis_was_away_is_written_when_it_is_back(stage: Stage, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    stage.push("hold", str(gate))
    stage.push("record", "a")
    with cluster("-r", stage.write_application(HOLD), "--redis", stage.redis.url, "default", "-c", "2") as running:
        running.wait_ready()
        wait_until(lambda: has_ended(running, "record"), "the job to end that Redis must answer")
        wait_until((tmp_path / "gate-began").exists, "the other to hold")
        stage.redis.kill()
        gate.touch()
        wait_until(lambda: has_ended(running, "hold"), "it to end")
        running.wait_for("redis_lost")
        running.signal(signal.SIGTSTP)  # a beat, in vain
        running.wait_for("worker_quiet")
        stage.redis.start()
        running.signal(signal.SIGCONT)
        stage.wait_settled()

        assert running.stop() == 0

    assert {name: (job.processed, job.failed) for name, job in executions(stage.store).items()} == {
        "hold": (1, 0),
        "record": (1, 0),
    }
