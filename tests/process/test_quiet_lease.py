"""Quiet with a lease: every quiet ends, by who began it or by itself; until then whoever is born is quiet too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from kiqcluster.control import control_messages
from kiqcluster.control.control_messages import Message
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import (
    identities,
    ledger,
    metric,
    pid_of,
    push,
    queued,
    readiness,
    wait_noted,
    wait_told,
    words,
)

RunCluster = Callable[..., Cluster]


def ask(store: Store, action: str, scope: str = "cluster", *, pid: int = 0, **fields: object) -> None:
    """Send a control message, as kiqctl does, through the process that is named, or any."""
    carrier = next(name for name in sorted(identities(store)) if pid in (0, pid_of(name)))
    control_messages.send(store, carrier, Message(action, scope, by="kiqctl@x", **fields))


def wait_quiet(store: Store, by: str) -> None:
    """Wait until it shows that the cluster is quiet, and who has asked for it."""
    wait_told(store, f"a quiet by {by!r}", lambda each: each["quiet_by"] == by)


def wait_queued(store: Store, word: str) -> None:
    """Wait until a job is in its queue, also if a bell has caught it first."""
    wait_until(lambda: words(queued(store)) == [word], "the job to be in its queue")


def is_serving(cluster: Cluster) -> bool:
    return metric(cluster, "kiqcluster_quiet") == 0 and readiness(cluster)[0] == 200


# its end


def test_a_quiet_that_nobody_ends_ends_with_its_lease_also_for_who_was_born_into_it(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "other", "-c", "1", "--quiet-lease", "6")  # time for a worker to be born
    pids = cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    push(store, "record", "a")
    push(store, "record", "b", queue="other")
    assert 0 < wait_told(store, "the quiet", lambda each: each["quiet_by"] == "signal")["lease_remaining"] <= 6

    os.kill(pids[0], signal.SIGKILL)
    born = cluster.wait_for("worker_quiet", count=3)["pid"]
    assert cluster.wait_for("child_ready", slot=0, count=2)["child"] == born
    assert metric(cluster, "kiqcluster_quiet") == 1
    assert ledger(store) == []

    wait_noted(store, "ran a", "ran b")
    wait_told(store, "the end of the quiet", lambda each: not each["quiet_by"] and each["lease_remaining"] is None)
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")
    assert cluster.pids() == {0: born, 1: pids[1]}
    cluster.wait_for("quiet_expired")
    assert len(cluster.seen("quiet_expired")) == 1


def test_a_second_quiet_renews_the_lease(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "--quiet-lease", "600")
    cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    left = wait_told(store, "the quiet", lambda each: each["quiet_by"])["lease_remaining"]

    ask(store, "quiet", lease=1_000.0)
    wait_told(store, "the lease to be longer", lambda each: each["lease_remaining"] > max(left, 990))
    ask(store, "quiet", lease=0.3)

    cluster.wait_for("quiet_expired")
    assert len(cluster.seen("worker_quiet")) == 1  # for the workers it was one quiet
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")


def test_a_lease_of_0_has_no_end(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "--quiet-lease", "0")
    cluster.wait_ready()

    cluster.signal(signal.SIGTSTP)

    quiet = wait_told(store, "the quiet", lambda each: each["quiet_by"] == "signal")
    assert quiet["lease_remaining"] is None
    assert quiet["quiet_since"] is not None


# who began it


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGTSTP])
def test_no_signal_ends_a_quiet_that_kiqctl_began(
    run_cluster: RunCluster, store: Store, number: signal.Signals
) -> None:
    cluster = run_cluster("default", "-c", "1")
    cluster.wait_ready()
    ask(store, "quiet", lease=900.0)
    wait_quiet(store, "kiqctl@x")
    cluster.wait_for("worker_quiet")
    push(store, "record", "a")

    cluster.signal(number)
    if number == signal.SIGTSTP:
        cluster.wait_for("cluster_quiet", signal="SIGTSTP")  # else the kernel may throw it away for the CONT
    cluster.signal(signal.SIGCONT)
    cluster.wait_for("command_refused", command="resume")

    wait_quiet(store, "kiqctl@x")
    wait_queued(store, "a")
    ask(store, "resume")
    wait_noted(store, "ran a")
    wait_quiet(store, "")


def test_kiqctl_ends_a_quiet_that_a_signal_began(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    push(store, "record", "a")
    push(store, "record", "b", queue="other")

    ask(store, "resume")

    wait_noted(store, "ran a", "ran b")
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")


def test_one_process_carries_a_message_for_all_slots(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    pids = cluster.wait_ready(2)

    ask(store, "quiet", pid=pids[0])

    for pid in pids.values():
        cluster.wait_for("worker_quiet", pid=pid)
    wait_until(lambda: readiness(cluster) == (503, "slot 0 is quiet"), "readiness to say so")
    assert metric(cluster, "kiqcluster_quiet") == 1


# one process by itself


def by_button(store: Store, pid: int, name: str) -> None:
    """Ruby's web page and API push the name to the process' list."""
    identity = next(each for each in identities(store) if pid_of(each) == pid)
    store.call("LPUSH", f"{identity}-signals", name)


def by_kiqctl(store: Store, pid: int, name: str) -> None:
    ask(store, {"TSTP": "quiet", "CONT": "resume"}[name], "process", pid=pid)


@pytest.mark.parametrize("tell", [by_button, pytest.param(by_kiqctl, marks=pytest.mark.full)])
def test_a_process_that_was_quieted_by_itself_resumes_with_the_lease_too(
    run_cluster: RunCluster, store: Store, tell: Callable[[Store, int, str], None]
) -> None:
    cluster = run_cluster("default", "other", "-c", "1", "--quiet-lease", "4")
    pids = cluster.wait_ready(2)
    tell(store, pids[0], "TSTP")
    cluster.wait_for("worker_quiet", pid=pids[0])
    push(store, "record", "a")
    push(store, "record", "b", queue="other")
    wait_noted(store, "ran b")
    wait_queued(store, "a")
    assert metric(cluster, "kiqcluster_quiet") == 0  # the cluster is not

    wait_noted(store, "ran a")

    wait_until(lambda: is_serving(cluster), "the cluster to be ready")
    assert cluster.pids() == pids
    assert cluster.seen("worker_quiet", pid=pids[1]) == []


def test_the_lease_of_one_process_does_not_end_the_clusters_quiet(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "--quiet-lease", "4")
    pid = cluster.wait_ready()[0]
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    push(store, "record", "a")

    ask(store, "quiet", "process", pid=pid, lease=0.1)
    cluster.wait_for("quiet_expired")

    wait_noted(store, "ran a")
    cluster.wait_for("worker_resumed")  # which is said after it fetches again
    assert cluster.seen("child_quiet_expired") == []
    assert len(cluster.seen("worker_resumed")) == 1


def test_cont_resumes_a_process_that_a_button_has_quieted(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1")
    pid = cluster.wait_ready()[0]
    by_button(store, pid, "TSTP")
    cluster.wait_for("worker_quiet")
    push(store, "record", "a")

    cluster.signal(signal.SIGCONT)

    wait_noted(store, "ran a")


# its bounds


def test_a_message_that_asks_for_nonsense_changes_nothing(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1")
    cluster.wait_ready()
    (identity,) = identities(store)

    for lease in ("-1", '"soon"', "true", "1e400", "9" * 400):
        store.call("RPUSH", f"kiq:control:{identity}", f'{{"action":"quiet","lease":{lease}}}')
    cluster.wait_for("control_malformed", count=5)
    push(store, "record", "a")

    wait_noted(store, "ran a")
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")
    assert cluster.seen("worker_quiet") == []
