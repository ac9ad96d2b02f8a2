"""Thousands of async jobs wait in one process, which is killed again and again: none is lost, and few are suspected."""

from __future__ import annotations

import os
import signal

import pytest

from tests.chaos.scale import sized
from tests.kit import Cluster, is_alive, wait_until
from tests.stage import Stage

# In the short form: process/test_async.py kills the process of async jobs.
pytestmark = pytest.mark.full

JOBS, KILLS = sized((300, 2), (5_000, 12))


def living(cluster: Cluster) -> list[int]:
    """Return the workers that are alive: the log may not have named the latest yet."""
    return [pid for pid in cluster.pids().values() if is_alive(pid)]


@pytest.mark.timeout(sized(120, 900))
def test_none_is_lost_while_their_process_is_killed(stage: Stage) -> None:
    words = [f"{number}" for number in range(JOBS)]
    stage.push_many("count", [[word] for word in words])
    cluster = stage.run_cluster(
        *("default", "-c", "3", "--async-concurrency", f"{JOBS}"),
        app="tests.apps.async_jobs",
        KIQ_TEST_WAITING=f"{JOBS}",
        KIQ_MAX_RETRIES_AFTER_INTERRUPTION="1000",
    )
    for kill in range(1, KILLS + 1):
        wait_until(lambda kill=kill: stage.notes().count("all wait") == kill, "all jobs to wait at once", 90)
        os.kill(wait_until(lambda: living(cluster), "the log to name the new process")[0], signal.SIGKILL)
    wait_until(lambda: stage.notes().count("all wait") == KILLS + 1, "all jobs to wait at once", 90)
    assert stage.store.call("HLEN", stage.store.keys.suspects) <= KILLS

    stage.release()

    wait_until(lambda: not stage.remaining().keys() - {"kiq:suspects"}, "all jobs to end", 120)
    assert sorted(line for line in stage.notes() if line.startswith("ran ")) == sorted(f"ran {word}" for word in words)
    assert cluster.stop() == 0
