"""Redis that goes away and comes back while jobs run."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.kit import http_get, wait_until
from tests.stage import Stage, pid_of

HOLD = """
    import pathlib, time
    from kiqcluster import job
    from tests.apps.basic import record

    @job()
    def hold(word):
        with open(f"runs-{word}", "a") as runs:  # no Redis: it is away when this job ends
            runs.write("began\\n")
        while not pathlib.Path("release").exists():
            time.sleep(0.01)
        with open(f"runs-{word}", "a") as runs:
            runs.write("ended\\n")
"""


def runs(directory: Path, word: str) -> list[str]:
    path = directory / f"runs-{word}"
    return path.read_text().split() if path.exists() else []


def beats(store: Store) -> dict[str, float]:
    """Return identity → time of its last beat, seconds."""
    flat = store.call("ZRANGE", "kiq:beats", 0, -1, "WITHSCORES")
    return {name.decode(): float(score) / 1_000 for name, score in zip(flat[::2], flat[1::2], strict=True)}


@pytest.mark.durable_redis
def test_jobs_that_run_while_redis_restarts_finish_once_and_nothing_is_lost(stage: Stage, tmp_path: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "3", "--directory", str(tmp_path), app=stage.write_application(HOLD))
    pid = cluster.wait_ready()[0]
    stage.push("hold", "a")
    stage.push("hold", "b")
    wait_until(lambda: runs(tmp_path, "a") and runs(tmp_path, "b"), "the jobs to run")

    stage.redis.kill()
    cluster.wait_for("redis_lost")
    wait_until(lambda: cluster.readiness() == (503, "slot 0 cannot reach Redis"), "readiness to say so")
    assert http_get(cluster.port, "/liveness")[0] == 200
    (tmp_path / "release").touch()
    wait_until(lambda: len(runs(tmp_path, "a") + runs(tmp_path, "b")) == 4, "the jobs to end without Redis")
    stage.redis.start()
    cluster.wait_for("redis_back")

    stage.push("record", "c")
    stage.wait_noted("ran c")
    stage.wait_settled()
    wait_until(lambda: stage.store.call("GET", "stat:processed") == b"3", "three jobs to be counted")
    assert runs(tmp_path, "a") == runs(tmp_path, "b") == ["began", "ended"]
    assert stage.queued() == []
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready")
    assert (len(cluster.seen("redis_lost")), len(cluster.seen("redis_back"))) == (1, 1)
    assert cluster.pids() == {0: pid}
    assert cluster.stop() == 0
    stage.wait_members()


@pytest.mark.durable_redis
def test_an_outage_longer_than_others_wait_costs_no_worker_its_jobs(stage: Stage, tmp_path: Path) -> None:
    limits = {"KIQ_HEALTH_RECOVER_AFTER": "3", "KIQ_HEALTH_SILENCE_TIMEOUT": "0"}
    options = ("-c", "1", "--directory", str(tmp_path), f"--redis={stage.redis.url}")
    clusters = [stage.run_cluster("default", *options, app=stage.write_application(HOLD), **limits) for _ in range(2)]
    pids = {cluster.wait_ready()[0] for cluster in clusters}
    stage.push("hold", "a")
    stage.push("hold", "b")
    wait_until(lambda: runs(tmp_path, "a") and runs(tmp_path, "b"), "the jobs to run")
    members = stage.members()

    stage.redis.kill()
    back_at = time.monotonic() + 1.5 * float(limits["KIQ_HEALTH_RECOVER_AFTER"])
    wait_until(lambda: time.monotonic() > back_at, "the time to pass after which others may recover")
    stage.redis.start()
    begun = int(stage.store.call("TIME")[0])
    wait_until(lambda: all(beats(stage.store)[name] > begun + 4.5 for name in members), "everybody to look for a while")
    (tmp_path / "release").touch()

    wait_until(lambda: stage.store.call("GET", "stat:processed") == b"2", "both jobs to be settled")
    assert runs(tmp_path, "a") == runs(tmp_path, "b") == ["began", "ended"]
    assert stage.members() == members
    assert {pid_of(name) for name in members} == pids
    assert not any(cluster.seen("recovered") or cluster.seen("worker_fenced") for cluster in clusters)


@pytest.mark.durable_redis
def test_a_stop_while_redis_is_away_ends_and_the_next_cluster_runs_what_was_held(stage: Stage) -> None:
    first = stage.run_cluster("default", "-c", "2", "-t", "0.5")
    stage.push("polite", "a")
    stage.wait_noted("began a")
    stage.redis.kill()

    first.signal(signal.SIGTERM)

    assert first.wait() == 1  # it leaves units behind, and says so
    stage.redis.start()
    assert stage.queued() == []  # nobody could put it back
    second = stage.run_cluster("default", "-c", "1")
    wait_until(lambda: stage.notes().count("began a") == 2, "the job to run again")
    stage.wait_members(second.wait_ready()[0])


@pytest.mark.own_redis
def test_a_redis_that_lost_everything_is_joined_again(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    pid = cluster.wait_ready()[0]

    stage.redis.kill()
    stage.redis.start()
    stage.push("record", "a")

    stage.wait_noted("ran a")
    stage.wait_members(pid)
    assert cluster.pids() == {0: pid}


@pytest.mark.own_redis
def test_a_redis_that_cannot_write_its_snapshot_is_waited_for_at_boot(stage: Stage) -> None:
    (stage.redis.directory / "dump.rdb").mkdir()
    stage.store.call("CONFIG", "SET", "save", "3600 1000000")
    stage.store.call("BGSAVE")
    wait_until(lambda: b"rdb_last_bgsave_status:err" in stage.store.call("INFO", "persistence"), "the snapshot to fail")

    cluster = stage.run_cluster("default")
    cluster.wait_for("redis_awaited")
    assert cluster.process.poll() is None

    (stage.redis.directory / "dump.rdb").rmdir()
    stage.store.call("BGSAVE")
    cluster.wait_ready()
    assert cluster.stop() == 0
