"""Rate limits in real clusters: every job runs, and never too many in a period, though processes are killed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.apps.rated import LARGEST, SECONDS
from tests.kit import wait_until
from tests.stage import Stage

JOBS = 25
CLOCK_SECONDS = 0.05  # between the count of a start and the line that the job notes


@pytest.mark.parametrize("name", ["by_option", "inside"])
def test_each_job_runs_once_and_never_too_many_in_a_period(stage: Stage, name: str) -> None:
    """The holder of some starts is killed: these count as starts, and their jobs run again."""
    cluster = stage.run_cluster("default", "default", "-c", "5", app="tests.apps.rated", KIQ_RESPAWN_BURST="100")
    cluster.wait_ready(2)
    words = [f"job-{number}" for number in range(JOBS)]
    stage.push_many(name, [[word] for word in words])

    wait_until(lambda: len(stage.notes()) >= LARGEST, "the first ones to run")
    os.kill(cluster.pids()[0], signal.SIGKILL)
    wait_until(lambda: {line.split()[0] for line in stage.notes()} == set(words), "all of them to run")

    times = sorted(float(line.split()[1]) for line in stage.notes())
    for first, after in zip(times, times[LARGEST:], strict=False):
        assert after - first > SECONDS - CLOCK_SECONDS
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    assert stage.store.call("GET", "stat:failed") in (None, b"0")
