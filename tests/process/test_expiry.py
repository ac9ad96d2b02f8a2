"""Expired jobs in a real cluster: they wait for a worker that comes too late, or their worker is killed."""

from __future__ import annotations

import os
import signal
import time

from tests.kit import wait_until
from tests.stage import Stage


def test_what_waited_too_long_is_dropped_and_the_rest_runs(stage: Stage) -> None:
    stage.push("record", "late", expiry=1.5)
    stage.push("record", "in time", expires_in=600)
    stage.push("record", "scheduled", at=time.time(), expires_in=600)

    cluster = stage.run_cluster("default", "-c", "1")

    stage.wait_noted("ran in time", "ran scheduled")
    wait_until(lambda: not stage.remaining(), "all to be settled")
    assert sorted(stage.notes()) == ["ran in time", "ran scheduled"]
    assert cluster.wait_for("job_dropped")["reason"] == "expiry"


def test_one_whose_worker_was_killed_does_not_begin_again_too_late(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = cluster.wait_ready()[0]
    expiry = time.time() + 1
    stage.push("stubborn", "x", expiry=expiry)
    stage.wait_noted("began x")
    stage.push("record", "after")
    wait_until(lambda: time.time() > expiry, "it to be too late")

    os.kill(pid, signal.SIGKILL)

    stage.wait_noted("ran after")
    wait_until(lambda: not stage.remaining(), "all to be settled")
    assert stage.notes() == ["began x", "ran after"]
