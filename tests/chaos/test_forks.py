"""Jobs that start processes leave no second worker behind: each job beside them runs once, in a worker."""

from __future__ import annotations

import pytest

from kiqcluster.application.registry import Registry, using_registry
from tests.chaos.scale import FULL, sized
from tests.chaos.stage import ChaosStage
from tests.kit import wait_until
from tests.proc import children

# In the short form: process/test_forks.py.
pytestmark = pytest.mark.full

with using_registry(Registry()):  # some of its jobs are named like those of other applications
    from tests.apps.forks import WAYS


OTHER_JOBS = sized(400, 20_000)
MAX_JOB_MS = 4.0  # that one of them takes
ROUNDS = sized(1, 12)  # in which every way is used once
SLOW = {"spawn", "spawn terminated", "spawn pool", "forkserver"}  # a second each, for they start Python anew


def test_what_jobs_fork_off_runs_no_job_and_takes_none_with_it(stage: ChaosStage) -> None:
    ways = [way for way in WAYS if FULL or way not in SLOW] * ROUNDS
    stage.rng.shuffle(ways)
    innocent, forking = [], []
    for way in ways:
        innocent += stage.push_many(
            "Work", [[stage.rng.uniform(0, MAX_JOB_MS)] for _ in range(OTHER_JOBS // len(ways))]
        )
        forking.append(stage.push("start_processes", way))
    pushed = {*innocent, *forking, *(f"by-{jid}" for jid, way in zip(forking, ways, strict=True) if way == "client")}

    cluster = stage.run_cluster("default", "default", "-c", "4", app="tests.apps.forks")

    wait_until(lambda: stage.ledger.has_ended(pushed), "all jobs to end", seconds=sized(60, 900))
    wait_until(lambda: not stage.remaining(), "all to be settled")
    workers = {each["child"] for each in cluster.seen("child_started")}
    audit = stage.ledger.audit(pushed)
    stage.report({"forking": len(forking), **audit.counts()})
    assert stage.dead() == []
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert audit.broken_off == 0
    assert {entry.pid for entry in stage.ledger.entries()} == workers
    assert int(stage.store.call("GET", "stat:processed")) == len(pushed)
    assert cluster.seen("child_died") == []
    assert len(workers) == 2
    helpers = sized(0, 2)  # of multiprocessing: its resource tracker and its fork server stay
    assert all(len(children(pid)) <= helpers for pid in workers)
    assert cluster.stop() == 0
