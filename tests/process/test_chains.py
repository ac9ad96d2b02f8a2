"""Chains in a real cluster whose workers are killed: each job runs, and each is pushed once."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest

from kiqcluster.api import RetrySet
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from tests.apps.chains import CHAIN
from tests.kit import is_alive, wait_until
from tests.stage import Stage

CHAINS, KILLS = 60, 3


@pytest.fixture(autouse=True)
def _setup_of_stage(stage: Stage) -> Iterator[None]:
    with using_setup(Setup(store=stage.store, config=Config())):
        yield


def pushes(stage: Stage) -> Counter[tuple[str, str]]:
    """Return job and number → how often it was pushed, not counting retries; it may have run more often."""
    told = {tuple(line.split()[:4]) for line in stage.notes() if line.endswith("None")}
    return Counter((word, number) for word, number, _jid, _enqueued_at in told)


def test_each_job_is_pushed_once_while_workers_are_killed(stage: Stage) -> None:
    cluster = stage.run_cluster("default,ends", "default,ends", "-c", "2", app="tests.apps.chains")
    cluster.wait_ready(2)
    handles = [CHAIN.enqueue(number) for number in range(CHAINS)]
    kills = 0

    def is_over() -> bool:
        nonlocal kills
        RetrySet(store=stage.store).add_all_to_queue()
        ended = sum(line.startswith("end ") for line in stage.notes())
        victims = sorted(pid for pid in cluster.pids().values() if is_alive(pid))
        if kills < KILLS and victims and ended >= kills * CHAINS // (4 * KILLS):
            os.kill(victims[0], signal.SIGKILL)
            kills += 1
        return all(each is not None and each.status().state == "done" for each in handles)

    wait_until(is_over, "all chains to end", 60)

    assert kills > 0  # all chains may end before the next one
    assert [each and each.result(0) for each in handles] == [f"number {2 * number}" for number in range(CHAINS)]
    expected = {("begin", n, n) for n in range(CHAINS)} | {("double", n, n) for n in range(CHAINS)}
    expected |= {("end", n, 2 * n) for n in range(CHAINS)}
    assert pushes(stage) == Counter((word, str(shown)) for word, _, shown in expected)
    stage.wait_settled()
    assert stage.dead() == []
