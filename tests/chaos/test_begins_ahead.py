"""Quiet, stop and kill at the moments of begins that are sent ahead: no place stays behind, and every job runs."""

from __future__ import annotations

import os
import signal
from collections import Counter
from typing import Any

import pytest

from kiqcluster.store.scripts import BEGIN, RELEASE
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import Cluster, wait_until
from tests.proxy import Proxy

# In the short form: redis/test_begins.py, conformance/test_faults.py and properties/test_admission_walk.py hold each
# step of a begin.
pytestmark = pytest.mark.full

APP = """
    from kiqcluster import job, limits
    from kiqcluster.process.runtime import current_setup
    from tests.apps.counting import counted

    def run(name, number):
        with counted(name) as running:
            current_setup().current_store().call("RPUSH", "ran", f"{name} {number} {running}")

    @job(concurrency_limit=3)
    def limited(number):
        run("limited", number)

    @job(deduplicate="while_executing", deduplicate_key=lambda number: str(number % 5))
    def alone(number):
        run(f"alone{number % 5}", number)

    @job(concurrency_limit=6, rate_limit=limits.leaky_bucket(1_000, per_second=5_000))
    def rated(number):
        run("rated", number)
"""
NAMES = ("limited", "alone", "rated")
ROUNDS, JOBS = sized(4, 60), sized(150, 60)
MOST = {"limited": 3, "rated": 6}
ENVIRON = {
    "KIQ_HEALTH_RECOVER_AFTER": "2",
    "KIQ_HEALTH_SILENCE_TIMEOUT": "0",
    "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.2",
    "KIQ_STOP_TIMEOUT": "2",
}


def test_a_begin_that_is_under_way_leaves_nothing_behind_whatever_ends_its_process(stage: ChaosStage) -> None:
    app, kinds = stage.write_application(APP), Counter[str]()
    pushed = 0
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        neighbour = stage.run_cluster("default", "-c", "4", app=app, **ENVIRON)
        neighbour.wait_ready()
        cluster = start(stage, proxy, app)
        for number in range(ROUNDS):
            for name in NAMES:
                stage.push_many(name, [[pushed + each] for each in range(JOBS)])
            pushed += JOBS
            script = stage.rng.choice((BEGIN, BEGIN, RELEASE))
            fault: Any = stage.rng.choice((proxy.hold, proxy.lose_replies, proxy.halve))
            suffering = fault(script.digest.encode(), times=stage.rng.randint(1, 3))
            end = ("quiet", "stop", "kill", "stop")[number % 4]
            kinds[f"{script.name} {fault.__name__} {end}"] += 1
            wait_until(lambda fault=suffering: fault.hits or not waiting(stage), "a begin to be on its way")
            if end == "quiet":
                cluster.signal(signal.SIGTSTP)
                cluster.wait_for("worker_quiet")
                proxy.release(suffering)
                cluster.signal(signal.SIGCONT)
            elif end == "stop":
                cluster.stop()
                proxy.release(suffering)
                cluster = start(stage, proxy, app)
            else:
                os.kill(cluster.pids()[0], signal.SIGKILL)
                proxy.release(suffering)
            proxy.forget()
        wait_until(lambda: waiting(stage) == 0, "the queue to be empty", 120)
        wait_until(lambda: {tuple(line[:2]) for line in ran(stage)} >= expected(pushed), "all jobs to run", 60)
        stage.wait_settled()

    stage.report(dict(kinds))
    too_many = [line for line in ran(stage) if int(line[2]) > MOST.get(line[0], 1)]
    assert too_many == []
    wait_until(lambda: stage.remaining().keys() <= {"kiq:suspects"}, "nothing to be left", 60)
    left = [stage.store.call("KEYS", f"kiq:{name}:*") for name in ("held", "inflight", "slots")]
    assert left == [[], [], []]


def start(stage: ChaosStage, proxy: Proxy, app: str) -> Cluster:
    cluster = stage.run_cluster("default", "-c", "8", "--redis", proxy.url, app=app, **ENVIRON)
    cluster.wait_ready()
    return cluster


def waiting(stage: ChaosStage) -> int:
    return int(stage.store.call("LLEN", "queue:default"))


def ran(stage: ChaosStage) -> list[list[str]]:
    return [line.decode().split() for line in stage.store.call("LRANGE", "ran", 0, -1)]


def expected(pushed: int) -> set[tuple[str, str]]:
    numbers = range(pushed)
    return {(name, str(number)) for number in numbers for name in ("limited", "rated", f"alone{number % 5}")}
