"""A job that makes its worker stop does so a few times, and no more; what stops it for others' sake counts little."""

from __future__ import annotations

import signal

from tests.kit import wait_until
from tests.proxy import Proxy
from tests.stage import Stage

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


def test_a_job_that_stops_its_own_worker_is_buried_and_its_neighbour_completes(stage: Stage) -> None:
    jid = stage.push("stop_me", 15)
    stage.push("nap", "neighbour", 1.0)

    cluster = stage.run_cluster("default", "-c", "2", "-t", "0.2", app=stage.write_application(SOURCE))

    (buried,) = wait_until(lambda: stage.dead(), "the job to be buried")
    stage.wait_noted("ended neighbour")
    stage.wait_settled()
    assert (buried["jid"], buried["interrupted_count"]) == (jid, 3)
    assert stage.notes().count("stops 15") == 3
    assert len(cluster.seen("stop_unasked")) == 3
    assert stage.store.call("EXISTS", "kiq:suspects") == 0


def test_a_stop_that_the_cluster_was_asked_for_makes_no_suspect(stage: Stage) -> None:
    stage.push("stubborn", "x")
    cluster = stage.run_cluster("default", "-t", "0.2")
    stage.wait_noted("began x")

    assert cluster.stop() == 0

    assert stage.store.call("EXISTS", "kiq:suspects") == 0
    assert b'"interrupted_count":1' in stage.store.call("LINDEX", "queue:default", 0)


def test_a_stop_that_was_asked_for_makes_no_suspect_either_when_redis_is_away(stage: Stage) -> None:
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        cluster = stage.run_cluster("default", "-t", "0.2", "--redis", proxy.url)
        old = cluster.wait_ready()[0]
        stage.push("nap", "x", 600)
        stage.wait_noted("began x")

        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("worker_stopping", pid=old)
        with proxy.away():
            cluster.wait_for("worker_stranded")

        wait_until(lambda: stage.notes().count("began x") == 2, "the job to run again")
        assert stage.store.call("HGETALL", "kiq:suspects") == []
        assert cluster.stop() == 0
