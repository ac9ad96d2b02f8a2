"""A worker whose shard is in a Redis Cluster: all features, a killed primary, and nothing lost that was confirmed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster import Client
from kiqcluster.errors import StoreError
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import wait_until
from tests.process.kiqctl import Kiqctl
from tests.redis_cluster import RedisCluster
from tests.stage import Jobs, Stage

APPLICATION = """
    import os, time
    from kiqcluster import Job, job, limits
    from tests.apps.basic import note

    PUSHED = __file__ + ".pushed"

    @job(queue="far")
    def plain(word):
        note("ran", word)

    @job(queue="far", retry=1, retry_in=lambda *_: 0.01)
    def fails(word):
        note("failed", word)
        raise ValueError

    @job(queue="far", concurrency_limit=1)
    def limited(word):
        note("ran", word)
        time.sleep(0.05)

    @job(queue="far", rate_limit=limits.sliding_window(1, 0.2))
    def rated(word):
        note("ran", word)

    class Unique(Job, queue="far", deduplicate="until_executed", idempotent=True):
        def perform(self, word):
            while not os.path.exists(PUSHED):  # its lock is held while the same job is pushed again
                time.sleep(0.01)
            note("ran", word)

    @job(queue="far")
    def killer(path):
        note("began", os.environ["KIQ_SLOT"])
        while not os.path.exists(path):
            time.sleep(0.01)
        note("ended")

    @job(queue="start")
    def start():
        for word in "ab":
            limited.perform_async("limited " + word)
            rated.perform_async("rated " + word)
            Unique.perform_async("unique")
        open(PUSHED, "w").close()
        plain.perform_in(0.01, "scheduled")
        plain.set(expires_in=60).perform_async("expiring")
        fails.perform_async("x")
"""
CONFIGURATION = """
routing = [["name=start", ""], ["*", "far", "eu"]]

[shards.eu]
redis = "{url}"

[[groups]]
queues = "start"

[[groups]]
queues = "far"
shard = "eu"
"""
WORDS = ("limited a", "limited b", "rated a", "rated b", "unique", "scheduled", "expiring")


@pytest.fixture
def redis_cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


def push_until(stop: threading.Event, store: Store, confirmed: list[str]) -> None:
    """Push jobs, and keep those that a replica has confirmed."""
    client, number = Client(store, Setup(config=Config())), 0
    while not stop.is_set():
        number += 1
        try:
            client.push({"class": "plain", "args": [f"job-{number}"], "queue": "far"}, wait_replicas=1)
        except StoreError:
            stop.wait(0.01)
        else:
            confirmed.append(f"job-{number}")
    store.close()


def test_jobs_run_in_a_redis_cluster_and_survive_its_fail_over(
    stage: Stage, redis_cluster: RedisCluster, kiqctl: Kiqctl, tmp_path: Path
) -> None:
    (tmp_path / "kiq.toml").write_text(CONFIGURATION.format(url=redis_cluster.url))
    eu = Jobs(Store(redis_cluster.url, name="eu"))
    cluster = stage.run_cluster("-C", str(tmp_path / "kiq.toml"), "-c", "2", app=stage.write_application(APPLICATION))
    cluster.wait_ready(2)

    stage.push("start", queue="start")  # every feature writes and moves keys of the shard

    stage.wait_noted(*(f"ran {word}" for word in WORDS), "failed x")
    wait_until(lambda: eu.store.call("ZCARD", eu.store.keys.dead) == 1, "the failed job to be buried")
    assert stage.notes().count("ran unique") == 1
    names = {key.decode().partition(":")[0] for node in redis_cluster.nodes for key in keys_of(node.store())}
    assert names == {"{eu}"}
    listed = kiqctl("queues", "--json", "--shard", "eu", "-C", str(tmp_path / "kiq.toml"))
    assert '"far"' in listed.stdout

    confirmed, stop = list[str](), threading.Event()
    pusher = threading.Thread(target=push_until, args=(stop, Store(redis_cluster.url, name="eu"), confirmed))
    pusher.start()
    try:
        wait_until(lambda: len(confirmed) > 20, "some jobs before the fail-over")
        old = redis_cluster.owner("{eu}:")
        old.kill()
        wait_until(lambda: redis_cluster.primary_of("{eu}:x") not in (0, old.port), "another primary")
        old.start()  # as a replica of the new one, which can confirm then
        before = len(confirmed)
        wait_until(lambda: len(confirmed) > before, "a push after the fail-over")
    finally:
        stop.set()
        pusher.join()
    # What was not confirmed may have been lost with the old primary; what was confirmed was not.
    wait_until(lambda: {f"ran {word}" for word in confirmed} <= set(stage.notes()), "all confirmed jobs to run")
    eu.push("killer", str(tmp_path / "go"), queue="far")
    stage.wait_noted("began 1")
    os.kill(cluster.pids()[1], signal.SIGKILL)
    (tmp_path / "go").touch()
    stage.wait_noted("ended")
    wait_until(lambda: [each["state"] for each in cluster.slots()] == ["ready", "ready"], "the next worker")
    eu.store.close()


def keys_of(store: Store) -> list[bytes]:
    keys: list[bytes] = store.call("KEYS", "*")
    store.close()
    return keys
