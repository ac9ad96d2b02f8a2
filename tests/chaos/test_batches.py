"""Workers are killed while they run the jobs of a batch: each row has its end, and each callback is pushed once."""

from __future__ import annotations

from collections import Counter

import pytest

from kiqcluster.api import RetrySet
from kiqcluster.batches import Batch
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from tests.apps.batches import DEAD_EVERY, FAILED_EVERY, completed, died, handle_row, split, succeeded
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, Cluster, is_alive, wait_until
from tests.proc import kill

# In the short form: process/test_batches.py kills a creator, properties/test_capacity_walk.py.
pytestmark = pytest.mark.full

ROWS, MOST_KILLS = sized((400, 8), (10_000, 10_000))
KILL_INTERVAL_SECONDS = 0.3
TIMEOUT_SECONDS = sized(50, 1_800)
APP = "tests.apps.batches"


def strike(stage: ChaosStage, cluster: Cluster) -> int:
    """Kill one of the workers that are ready; return how many."""
    PAUSE.wait(KILL_INTERVAL_SECONDS)
    victims = sorted(pid for pid in cluster.pids().values() if is_alive(pid))
    if not victims:
        return 0
    return int(kill(stage.rng.choice(victims)))


def pushes(stage: ChaosStage) -> Counter[str]:
    """Return callback and batch → how often it was pushed; it may have run more often."""
    told = {tuple(line.split()) for line in stage.notes()}
    return Counter(f"{word} {batch}" for word, batch, *_ in told)


def test_counts_are_exact_and_callbacks_are_pushed_once_while_workers_are_killed(stage: ChaosStage) -> None:
    callbacks = {"on_complete": completed, "on_success": succeeded, "on_death": died}
    with using_setup(Setup(store=stage.store, config=Config())):
        batch = Batch.create("import", handle_row, [[number] for number in range(1, ROWS + 1)], **callbacks)
        fine = [number for number in range(1, ROWS // 10) if number % DEAD_EVERY and number % FAILED_EVERY]
        with Batch.open("parent", **callbacks) as parent:
            child = Batch.create("child", split, [[fine]], parent=parent, **callbacks)
    cluster = stage.run_cluster("default", "default,callbacks", "-c", "4", app=APP)
    cluster.wait_ready(2)
    kills = 0

    def is_over() -> bool:
        nonlocal kills
        if kills < MOST_KILLS:
            kills += strike(stage, cluster)
        RetrySet(store=stage.store).add_all_to_queue()  # their time would be seconds away
        return all(each.status().is_complete for each in (batch, parent, child))

    wait_until(is_over, "all batches to be complete", TIMEOUT_SECONDS)
    expected = [
        f"completed {batch.id}",
        f"died {batch.id}",
        *(f"{word} {each.id}" for each in (parent, child) for word in ("completed", "succeeded")),
    ]
    wait_until(lambda: set(pushes(stage)) >= set(expected), "the callbacks to run", TIMEOUT_SECONDS)
    stage.report({"rows": ROWS, "kills": kills})

    dead = ROWS // DEAD_EVERY
    failed = ROWS // FAILED_EVERY - ROWS // (FAILED_EVERY * DEAD_EVERY)
    status = batch.status()
    assert (status.total, status.enqueue, status.working) == (ROWS, 0, 0)
    assert (status.finish, status.failed, status.error) == (ROWS - dead - failed, failed, dead)
    assert {batch_job.params[0] for batch_job in batch.jobs("failed")} == {
        number for number in range(1, ROWS + 1) if number % FAILED_EVERY == 0 and number % DEAD_EVERY
    }
    assert (child.status().total, child.status().finish) == (len(fine) + 1, len(fine) + 1)
    assert pushes(stage) == Counter(expected)
