"""Workers are killed while equal jobs are pushed without end: none runs beside an equal one, and no push is in vain."""

from __future__ import annotations

import os
import signal

import pytest

from kiqcluster.api import LockSet
from tests.apps.deduplicated import recount
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, wait_until

# In the short form: process/test_deduplication.py kills and freezes holders, properties/test_deduplication.py.
pytestmark = pytest.mark.full

KILLS = sized(6, 300)
KEYS = [f"key{number}" for number in range(4)]
MAX_PAUSE_SECONDS = 0.01  # between pushes
PUSHES_PER_KILL = 60
MAX_JOB_MS = 60


def test_a_run_follows_every_push_though_workers_are_killed(stage: ChaosStage) -> None:
    app = "tests.apps.deduplicated"
    cluster = stage.run_cluster("default", "default", "-c", "4", app=app, KIQ_HEALTH_RESPAWN_BURST="1000")
    cluster.wait_ready(2)
    pushes: list[tuple[str, int]] = []  # key, when

    for number in range(KILLS + 1):
        for _ in range(PUSHES_PER_KILL):
            key = stage.rng.choice(KEYS)
            pushes.append((key, stage.store.call("INCR", "clock")))
            stage.push(recount, key, float(MAX_JOB_MS * KEYS.index(key) // len(KEYS)))
            PAUSE.wait(stage.rng.uniform(0, MAX_PAUSE_SECONDS))
        slot = number % 2
        if number < KILLS and (pid := cluster.pids().get(slot)) is not None:
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda slot=slot, pid=pid: cluster.pids().get(slot, pid) != pid, "the next process")
    wait_until(lambda: stage.remaining().keys() <= {"dead", "kiq:suspects"}, "all jobs to end")

    began = [line.split()[1:] for line in stage.notes()]
    last = {key: int(at) for key, at, _ in began}
    dropped = int(stage.store.call("HGET", "kiq:deduplicated", "recount") or 0)
    buried = len(stage.dead())
    stage.report({"kills": KILLS, "pushes": len(pushes), "dropped": dropped, "runs": len(began), "buried": buried})
    assert [(key, at) for key, at in pushes if last.get(key, 0) < at] == []
    assert {running for _, _, running in began} == {"1"}
    assert dropped > 0
    assert list(LockSet(store=stage.store)) == []
