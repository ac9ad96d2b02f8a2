"""--fail-fast: when any worker dies the cluster ends, and whoever watches over it starts it anew."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import (
    Releases,
    holders,
    identities,
    ledger,
    occupy,
    pid_of,
    push,
    queued,
    release,
    wait_gone,
    wait_noted,
    wait_only_live,
    words,
)

RunCluster = Callable[..., Cluster]


def test_a_killed_worker_ends_the_cluster_with_8_and_the_others_finish_their_jobs(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "other", "-c", "1", "--fail-fast")
    pids = occupy(cluster, store, 2)

    os.kill(pids[1], signal.SIGKILL)
    cluster.wait_for("worker_stopping", pid=pids[0])
    push(store, "record", "b", queue="other")
    release(store)

    assert cluster.wait() == 8
    assert ledger(store) == ["began a", "ended a"]
    assert words(queued(store, "other")) == ["b"]
    wait_gone(*pids.values())
    assert identities(store) == holders(store) == set()
    assert len(cluster.seen("child_started")) == 2
    assert cluster.seen("cluster_stranded") == []


def test_what_a_dying_cluster_has_given_back_is_not_called_stranded(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "third", "-c", "1", "--fail-fast")
    pids = occupy(cluster, store, 3)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 8
    assert words(queued(store)) == ["a"]
    assert identities(store) == holders(store) == set()
    assert cluster.seen("cluster_stranded") == []


def test_what_nobody_is_there_to_give_back_is_called_stranded(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "--fail-fast")
    pids = occupy(cluster, store)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 8
    assert {pid_of(name) for name in holders(store)} == {pids[0]}
    cluster.wait_for("cluster_stranded")


def test_what_the_dead_worker_ran_runs_once_the_cluster_is_started_anew(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1", "--fail-fast")
    pids = occupy(cluster, store, 2)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 8
    release(store)
    anew = run_cluster("default", "-c", "1", "--fail-fast")
    wait_noted(store, "ended a")
    wait_only_live(store, anew.wait_ready()[0])


def test_a_roll_and_a_stop_are_no_deaths(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "--fail-fast")
    first = cluster.wait_ready()[0]

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done")
    push(store, "record", "a")

    wait_noted(store, "ran a")
    wait_until(lambda: cluster.pids()[0] != first, "the roll to have happened")
    assert cluster.stop() == 0


def test_a_release_that_does_not_boot_is_no_death_either(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    cluster = releases.run(run_cluster, "default", "-c", "1", "--fail-fast")
    cluster.wait_ready()
    releases.deploy("2", "assert 'KIQ_SLOT' not in os.environ")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_failed")
    push(store, "release")

    wait_noted(store, "release 1")
    assert cluster.stop() == 0
