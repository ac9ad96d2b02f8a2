"""A feature in a real cluster: what its jobs hold is released whatever becomes of their process."""

from __future__ import annotations

import os
import signal

import pytest

from tests.apps.limited_places import MAX_RUNNING_JOBS, SLOTS
from tests.kit import wait_until
from tests.stage import Stage


def ended(stage: Stage) -> set[str]:
    return {line.split()[1] for line in stage.notes() if line.startswith("ended")}


@pytest.mark.parametrize("kills", [0, 5])
def test_all_jobs_of_a_limit_run_and_none_beyond_it_though_processes_are_killed(stage: Stage, kills: int) -> None:
    cluster = stage.run_cluster(
        "default", "default", "-c", "5", app="tests.apps.limited", KIQ_HEALTH_RESPAWN_BURST="100"
    )
    cluster.wait_ready(2)
    names = [str(number) for number in range(100)]
    stage.push_many("limited", [[name] for name in names])

    for number in range(kills):
        wait_until(lambda number=number: len(ended(stage)) >= 10 * (number + 1), "some of them")
        slot = number % 2
        pid = cluster.pids()[slot]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda slot=slot, pid=pid: cluster.pids().get(slot, pid) != pid, "the next process")

    wait_until(lambda: ended(stage) == set(names), "all of them")
    wait_until(lambda: stage.store.call("EXISTS", SLOTS, f"{SLOTS}:parked") == 0, "everything to be released")
    assert max(int(line.split()[2]) for line in stage.notes() if line.startswith("began")) <= MAX_RUNNING_JOBS
    wait_until(lambda: stage.store.call("KEYS", "kiq:held:*") == [], "nothing to be held")
