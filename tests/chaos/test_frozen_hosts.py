"""A host stands still for longer than a worker may be silent, with everything on it, and wakes: nobody is killed.

What `docker pause`, a suspended laptop and a live migration do, SIGSTOP does here, to all processes of a cluster.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import Cluster, freeze, wait_until
from tests.proc import children

# In the short form: properties/test_rules.py and test_exhaustive.py freeze hosts.
pytestmark = pytest.mark.full

ROUNDS = sized(1, 10)
FREEZE_SECONDS = sized(4.5, 50.0)
SILENCE_TIMEOUT = sized("2", "45")  # seconds; 45 is the default
JOBS_PER_FREEZE = 20  # jobs that are pushed after each freeze


def freeze_host(cluster: Cluster, seconds: float) -> None:
    """Have all processes of a cluster stand still; the supervisor wakes first, and finds the others late."""
    pids = [cluster.pid, *children(cluster.pid)]
    for pid in pids:
        freeze(pid)
    thaw_at = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= thaw_at, "the host to stand still for long", seconds + 5)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def test_a_host_that_stands_still_loses_no_worker_and_runs_no_job_twice(stage: ChaosStage) -> None:
    recover_after = str(FREEZE_SECONDS + 60)  # seconds: other hosts would take its jobs over, but this is about its own
    cluster = stage.run_cluster(
        "default", "-c", "3", KIQ_HEALTH_SILENCE_TIMEOUT=SILENCE_TIMEOUT, KIQ_HEALTH_RECOVER_AFTER=recover_after
    )
    pids = cluster.wait_ready()
    long = stage.push("hold", "gate")
    wait_until(lambda: long in stage.ledger.begun(), "the long job to run")

    jids = [long]
    for _ in range(ROUNDS):
        freeze_host(cluster, FREEZE_SECONDS)
        after = stage.push_many("Work", [[1]] * JOBS_PER_FREEZE)
        wait_until(lambda jids=after: stage.ledger.has_ended(jids), "the cluster to go on")
        jids += after

    stage.ledger.open_gate("gate")
    wait_until(lambda: stage.ledger.has_ended(jids), "the long job to end")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    audit = stage.ledger.audit(jids)
    stage.report({"freezes": ROUNDS, **audit.counts()})
    assert len(cluster.seen("supervisor_stood_still")) == ROUNDS
    assert cluster.seen("child_died") == []
    assert cluster.pids() == pids
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert audit.broken_off == 0
    assert cluster.stop() == 0
