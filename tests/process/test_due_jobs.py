"""A job that is due starts at its time, also while nothing else happens."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

from tests.kit import wait_until
from tests.stage import Stage

APP = """
import time
from kiqcluster import job
from kiqcluster.process.runtime import current_setup

@job()
def timed(at: float) -> None:
    current_setup().current_store().call("RPUSH", "ledger", time.time() - at)
"""
POLL_SECONDS = 3.0  # between two polls at most, of a worker that is alone
MAX_LATE_SECONDS = 0.5  # on a busy machine; 0.01 on an idle one
DUE_JOBS = 7


def test_a_job_that_a_poll_has_seen_starts_at_its_time(stage: Stage, tmp_path: Path) -> None:
    app = tmp_path / "timed_jobs.py"
    app.write_text(APP)
    often = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": str(POLL_SECONDS)}
    stage.run_cluster("default", "-c", "2", app=str(app), **often).wait_ready()
    first = time.time() + 1.5 * POLL_SECONDS
    for number in range(DUE_JOBS):
        at = first + number * 0.31
        stage.push("timed", at, at=at)

    wait_until(lambda: len(stage.notes()) == DUE_JOBS, "the jobs to have run", seconds=40)

    late = sorted(map(float, stage.notes()))
    assert late[0] >= 0.0
    assert median(late) <= MAX_LATE_SECONDS, late
