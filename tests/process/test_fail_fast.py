"""--fail-fast: when any worker dies the cluster ends, and whoever watches over it starts it anew."""

from __future__ import annotations

import os
import signal

from tests.kit import wait_until
from tests.proc import wait_exited
from tests.process.releases import Releases
from tests.stage import Stage, pid_of


def test_a_killed_worker_ends_the_cluster_with_8_and_the_others_finish_their_jobs(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", "--fail-fast")
    pids = stage.occupy(cluster, 2)

    os.kill(pids[1], signal.SIGKILL)
    cluster.wait_for("worker_stopping", pid=pids[0])
    stage.push("record", "b", queue="other")
    stage.release()

    assert cluster.wait() == 8
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args("other") == ["b"]
    wait_exited(*pids.values())
    assert stage.members() == stage.holders() == set()
    assert len(cluster.seen("child_started")) == 2
    assert cluster.seen("cluster_stranded") == []


def test_what_a_dying_cluster_has_given_back_is_not_called_stranded(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "third", "-c", "1", "--fail-fast")
    pids = stage.occupy(cluster, 3)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 8
    assert stage.queued_args() == ["a"]
    assert stage.members() == stage.holders() == set()
    assert cluster.seen("cluster_stranded") == []


def test_what_nobody_is_there_to_give_back_is_called_stranded(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "--fail-fast")
    pids = stage.occupy(cluster)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 8
    assert {pid_of(name) for name in stage.holders()} == {pids[0]}
    cluster.wait_for("cluster_stranded")


def test_what_the_dead_worker_ran_runs_once_the_cluster_is_started_anew(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", "--fail-fast")
    pids = stage.occupy(cluster, 2)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 8
    stage.release()
    anew = stage.run_cluster("default", "-c", "1", "--fail-fast")
    stage.wait_noted("ended a")
    stage.wait_members(anew.wait_ready()[0])


def test_a_roll_and_a_stop_are_no_deaths(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "--fail-fast")
    first = cluster.wait_ready()[0]

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    stage.push("record", "a")

    stage.wait_noted("ran a")
    wait_until(lambda: cluster.pids()[0] != first, "the roll to have happened")
    assert cluster.stop() == 0


def test_a_release_that_does_not_boot_is_no_death_either(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--fail-fast")
    cluster.wait_ready()
    releases.deploy("2", "assert 'KIQ_SLOT' not in os.environ")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")
    stage.push("release")

    stage.wait_noted("release 1")
    assert cluster.stop() == 0
