"""A job that makes its worker stop does so a few times, and no more; what stops it for others' sake counts little."""

from __future__ import annotations

import signal
from collections.abc import Callable

from kiqcluster.store import Store
from tests.kit import Cluster, RedisServer, wait_until
from tests.process.stage import dead, ledger, push, wait_noted, wait_settled
from tests.proxy import Proxy

Run = Callable[..., Cluster]
Application = Callable[[str], str]
SOURCE = """
    import os, signal, time
    from kiqcluster import job
    from tests.apps.basic import nap, note

    @job()
    def stop_me(number):
        note("stops", number)
        os.kill(os.getpid(), number)
        time.sleep(600)
"""


def test_a_job_that_stops_its_own_worker_is_buried_and_its_neighbour_completes(
    run_cluster: Run, store: Store, application: Application
) -> None:
    jid = push(store, "stop_me", 15)
    push(store, "nap", "neighbour", 1.0)

    cluster = run_cluster("default", "-c", "2", "-t", "0.2", app=application(SOURCE))

    (buried,) = wait_until(lambda: dead(store), "the job to be buried")
    wait_noted(store, "ended neighbour")
    wait_settled(store)
    assert (buried["jid"], buried["interrupted_count"]) == (jid, 3)
    assert ledger(store).count("stops 15") == 3
    assert len(cluster.seen("stop_unasked")) == 3
    assert store.call("EXISTS", "kiq:suspects") == 0


def test_a_stop_that_the_cluster_was_asked_for_makes_no_suspect(run_cluster: Run, store: Store) -> None:
    push(store, "stubborn", "x")
    cluster = run_cluster("default", "-t", "0.2")
    wait_noted(store, "began x")

    assert cluster.stop() == 0

    assert store.call("EXISTS", "kiq:suspects") == 0
    assert b'"interrupted_count":1' in store.call("LINDEX", "queue:default", 0)


def test_a_stop_that_was_asked_for_makes_no_suspect_either_when_redis_is_away(
    run_cluster: Run, redis_server: RedisServer, store: Store
) -> None:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        cluster = run_cluster("default", "-t", "0.2", "--redis", proxy.url)
        old = cluster.wait_ready()[0]
        push(store, "nap", "x", 600)
        wait_noted(store, "began x")

        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("worker_stopping", pid=old)
        with proxy.away():
            cluster.wait_for("worker_stranded")

        wait_until(lambda: ledger(store).count("began x") == 2, "the job to run again")
        assert store.call("HGETALL", "kiq:suspects") == []
        assert cluster.stop() == 0
