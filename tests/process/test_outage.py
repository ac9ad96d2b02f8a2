"""Redis that goes away and comes back while jobs run."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from kiqcluster.store import Store
from tests.kit import Cluster, RedisServer, http_get, wait_until
from tests.process.stage import (
    identities,
    ledger,
    pid_of,
    push,
    queued,
    readiness,
    wait_noted,
    wait_only_live,
    wait_settled,
)

RunCluster = Callable[..., Cluster]
Application = Callable[[str], str]

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
    flat = store.call("ZRANGE", "kiq:beats:2", 0, -1, "WITHSCORES")
    return {name.decode(): float(score) / 1_000 for name, score in zip(flat[::2], flat[1::2], strict=True)}


def test_jobs_that_run_while_redis_restarts_finish_once_and_nothing_is_lost(
    run_cluster: RunCluster, durable_server: RedisServer, application: Application, tmp_path: Path
) -> None:
    server, store = durable_server, durable_server.store()
    cluster = run_cluster(
        "default", "-c", "3", "--directory", str(tmp_path), "--redis=" + server.url, app=application(HOLD)
    )
    pid = cluster.wait_ready()[0]
    push(store, "hold", "a")
    push(store, "hold", "b")
    wait_until(lambda: runs(tmp_path, "a") and runs(tmp_path, "b"), "the jobs to run")

    server.kill()
    cluster.wait_for("redis_lost")
    wait_until(lambda: readiness(cluster) == (503, "slot 0 cannot reach Redis"), "readiness to say so")
    assert http_get(cluster.port, "/liveness")[0] == 200
    (tmp_path / "release").touch()
    wait_until(lambda: len(runs(tmp_path, "a") + runs(tmp_path, "b")) == 4, "the jobs to end without Redis")
    server.start()
    cluster.wait_for("redis_back")

    push(store, "record", "c")
    wait_noted(store, "ran c")
    wait_settled(store)
    wait_until(lambda: store.call("GET", "stat:processed") == b"3", "three jobs to be counted")
    assert runs(tmp_path, "a") == runs(tmp_path, "b") == ["began", "ended"]
    assert queued(store) == []
    wait_until(lambda: readiness(cluster)[0] == 200, "the cluster to be ready")
    assert (len(cluster.seen("redis_lost")), len(cluster.seen("redis_back"))) == (1, 1)
    assert cluster.pids() == {0: pid}
    assert cluster.stop() == 0
    wait_only_live(store)


def test_an_outage_longer_than_others_wait_costs_no_worker_its_jobs(
    run_cluster: RunCluster, durable_server: RedisServer, application: Application, tmp_path: Path
) -> None:
    server, store = durable_server, durable_server.store()
    limits = {"KIQ_RECOVER_AFTER": "3", "KIQ_SILENCE_TIMEOUT": "0"}
    options = ("-c", "1", "--directory", str(tmp_path), f"--redis={server.url}")
    clusters = [run_cluster("default", *options, app=application(HOLD), **limits) for _ in range(2)]
    pids = {cluster.wait_ready()[0] for cluster in clusters}
    push(store, "hold", "a")
    push(store, "hold", "b")
    wait_until(lambda: runs(tmp_path, "a") and runs(tmp_path, "b"), "the jobs to run")
    members = identities(store)

    server.kill()
    back_at = time.monotonic() + 1.5 * float(limits["KIQ_RECOVER_AFTER"])
    wait_until(lambda: time.monotonic() > back_at, "the time to pass after which others may recover")
    server.start()
    begun = int(store.call("TIME")[0])
    wait_until(lambda: all(beats(store)[name] > begun + 4.5 for name in members), "everybody to look for a while")
    (tmp_path / "release").touch()

    wait_until(lambda: store.call("GET", "stat:processed") == b"2", "both jobs to be settled")
    assert runs(tmp_path, "a") == runs(tmp_path, "b") == ["began", "ended"]
    assert identities(store) == members
    assert {pid_of(name) for name in members} == pids
    assert not any(cluster.seen("recovered") or cluster.seen("worker_fenced") for cluster in clusters)


def test_a_stop_while_redis_is_away_ends_and_the_next_cluster_runs_what_was_held(
    run_cluster: RunCluster, durable_server: RedisServer
) -> None:
    server, store = durable_server, durable_server.store()
    first = run_cluster("default", "-c", "2", "-t", "0.5", "--redis=" + server.url)
    push(store, "polite", "a")
    wait_noted(store, "began a")
    server.kill()

    first.signal(signal.SIGTERM)

    assert first.wait() == 1  # it leaves units behind, and says so
    server.start()
    assert queued(store) == []  # nobody could put it back
    second = run_cluster("default", "-c", "1", "--redis=" + server.url)
    wait_until(lambda: ledger(store).count("began a") == 2, "the job to run again")
    wait_only_live(store, second.wait_ready()[0])


def test_a_redis_that_lost_everything_is_joined_again(run_cluster: RunCluster, own_server: RedisServer) -> None:
    cluster = run_cluster("default", "-c", "2", "--redis=" + own_server.url)
    pid = cluster.wait_ready()[0]

    own_server.kill()
    own_server.start()
    store = own_server.store()
    push(store, "record", "a")

    wait_noted(store, "ran a")
    wait_only_live(store, pid)


def test_a_redis_that_cannot_write_its_snapshot_is_waited_for_at_boot(
    run_cluster: RunCluster, own_server: RedisServer
) -> None:
    store = own_server.store()
    (own_server.directory / "dump.rdb").mkdir()
    store.call("CONFIG", "SET", "save", "3600 1000000")
    store.call("BGSAVE")
    wait_until(lambda: b"rdb_last_bgsave_status:err" in store.call("INFO", "persistence"), "the snapshot to fail")

    cluster = run_cluster("default", "--redis", own_server.url)
    cluster.wait_for("redis_awaited")
    assert cluster.process.poll() is None

    (own_server.directory / "dump.rdb").rmdir()
    store.call("BGSAVE")
    cluster.wait_ready()
    assert cluster.stop() == 0
