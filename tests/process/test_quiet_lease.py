"""Quiet with a lease: every quiet ends, by who began it or by itself; until then whoever is born is quiet too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from kiqcluster.control import control_messages
from kiqcluster.control.control_messages import Message
from tests.kit import Cluster, wait_until
from tests.stage import Stage, pid_of


def ask(stage: Stage, action: str, scope: str = "cluster", *, pid: int = 0, **fields: object) -> None:
    """Send a control message, as kiqctl does, through the process that is named, or any."""
    carrier = next(name for name in sorted(stage.members()) if pid in (0, pid_of(name)))
    control_messages.send(stage.store, carrier, Message(action, scope, by="kiqctl@x", **fields))


def wait_quiet(stage: Stage, by: str) -> None:
    """Wait until it shows that the cluster is quiet, and who has asked for it."""
    stage.wait_document(f"a quiet by {by!r}", lambda each: each["quiet_by"] == by)


def wait_queued(stage: Stage, word: str) -> None:
    """Wait until a job is in its queue, also if it woke the process first."""
    wait_until(lambda: stage.queued_args() == [word], "the job to be in its queue")


def is_serving(cluster: Cluster) -> bool:
    return cluster.metric("kiqcluster_quiet") == 0 and cluster.readiness()[0] == 200


# its end


def test_a_quiet_that_nobody_ends_ends_with_its_lease_also_for_who_was_born_into_it(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", "--quiet-lease", "6")  # time for a worker to be born
    pids = cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    stage.push("record", "a")
    stage.push("record", "b", queue="other")
    assert 0 < stage.wait_document("the quiet", lambda each: each["quiet_by"] == "signal")["lease_remaining"] <= 6

    os.kill(pids[0], signal.SIGKILL)
    born = cluster.wait_for("worker_quiet", count=3)["pid"]
    assert cluster.wait_for("child_ready", slot=0, count=2)["child"] == born
    assert cluster.metric("kiqcluster_quiet") == 1
    assert stage.notes() == []

    stage.wait_noted("ran a", "ran b")
    stage.wait_document("the end of the quiet", lambda each: not each["quiet_by"] and each["lease_remaining"] is None)
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")
    assert cluster.pids() == {0: born, 1: pids[1]}
    cluster.wait_for("quiet_expired")
    assert len(cluster.seen("quiet_expired")) == 1


def test_a_second_quiet_renews_the_lease(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "--quiet-lease", "600")
    cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    left = stage.wait_document("the quiet", lambda each: each["quiet_by"])["lease_remaining"]

    ask(stage, "quiet", lease=1_000.0)
    stage.wait_document("the lease to be longer", lambda each: each["lease_remaining"] > max(left, 990))
    ask(stage, "quiet", lease=0.3)

    cluster.wait_for("quiet_expired")
    assert len(cluster.seen("worker_quiet")) == 1  # for the workers it was one quiet
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")


def test_a_lease_of_0_has_no_end(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "--quiet-lease", "0")
    cluster.wait_ready()

    cluster.signal(signal.SIGTSTP)

    quiet = stage.wait_document("the quiet", lambda each: each["quiet_by"] == "signal")
    assert quiet["lease_remaining"] is None
    assert quiet["quiet_since"] is not None


# who began it


@pytest.mark.parametrize("number", [signal.SIGCONT, signal.SIGTSTP])
def test_no_signal_ends_a_quiet_that_kiqctl_began(stage: Stage, number: signal.Signals) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    ask(stage, "quiet", lease=900.0)
    wait_quiet(stage, "kiqctl@x")
    cluster.wait_for("worker_quiet")
    stage.push("record", "a")

    cluster.signal(number)
    if number == signal.SIGTSTP:
        cluster.wait_for("cluster_quiet", signal="SIGTSTP")  # else the kernel may throw it away for the CONT
    cluster.signal(signal.SIGCONT)
    cluster.wait_for("command_refused", command="resume")

    wait_quiet(stage, "kiqctl@x")
    wait_queued(stage, "a")
    assert stage.notes() == []
    ask(stage, "resume")
    stage.wait_noted("ran a")
    wait_quiet(stage, "")


def test_kiqctl_ends_a_quiet_that_a_signal_began(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    stage.push("record", "a")
    stage.push("record", "b", queue="other")
    assert stage.notes() == []

    ask(stage, "resume")

    stage.wait_noted("ran a", "ran b")
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")


def test_one_process_carries_a_message_for_all_slots(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = cluster.wait_ready(2)

    ask(stage, "quiet", pid=pids[0])

    for pid in pids.values():
        cluster.wait_for("worker_quiet", pid=pid)
    wait_until(lambda: cluster.readiness() == (503, "slot 0 is quiet"), "readiness to say so")
    assert cluster.metric("kiqcluster_quiet") == 1


# one process by itself


def by_button(stage: Stage, pid: int, name: str) -> None:
    """Ruby's web page and API push the name to the process' list."""
    identity = next(each for each in stage.members() if pid_of(each) == pid)
    stage.store.call("LPUSH", f"{identity}-signals", name)


def by_kiqctl(stage: Stage, pid: int, name: str) -> None:
    ask(stage, {"TSTP": "quiet", "CONT": "resume"}[name], "process", pid=pid)


@pytest.mark.parametrize("tell", [by_button, pytest.param(by_kiqctl, marks=pytest.mark.full)])
def test_a_process_that_was_quieted_by_itself_resumes_with_the_lease_too(
    stage: Stage, tell: Callable[[Stage, int, str], None]
) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", "--quiet-lease", "4")
    pids = cluster.wait_ready(2)
    tell(stage, pids[0], "TSTP")
    cluster.wait_for("worker_quiet", pid=pids[0])
    stage.push("record", "a")
    stage.push("record", "b", queue="other")
    stage.wait_noted("ran b")
    wait_queued(stage, "a")
    assert cluster.metric("kiqcluster_quiet") == 0  # the cluster is not

    stage.wait_noted("ran a")

    wait_until(lambda: is_serving(cluster), "the cluster to be ready")
    assert cluster.pids() == pids
    assert cluster.seen("worker_quiet", pid=pids[1]) == []


def test_the_lease_of_one_process_does_not_end_the_clusters_quiet(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "--quiet-lease", "4")
    pid = cluster.wait_ready()[0]
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    stage.push("record", "a")

    ask(stage, "quiet", "process", pid=pid, lease=0.1)
    cluster.wait_for("quiet_expired")

    stage.wait_noted("ran a")
    cluster.wait_for("worker_resumed")  # which is said after it fetches again
    assert cluster.seen("child_quiet_expired") == []
    assert len(cluster.seen("worker_resumed")) == 1


def test_cont_resumes_a_process_that_a_button_has_quieted(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = cluster.wait_ready()[0]
    by_button(stage, pid, "TSTP")
    cluster.wait_for("worker_quiet")
    stage.push("record", "a")
    wait_queued(stage, "a")
    assert stage.notes() == []

    cluster.signal(signal.SIGCONT)

    stage.wait_noted("ran a")


# its bounds


def test_a_message_that_asks_for_nonsense_changes_nothing(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    (identity,) = stage.members()

    for lease in ("-1", '"soon"', "true", "1e400", "9" * 400):
        stage.store.call("RPUSH", f"kiq:control:{identity}", f'{{"action":"quiet","lease":{lease}}}')
    cluster.wait_for("control_malformed", count=5)
    stage.push("record", "a")

    stage.wait_noted("ran a")
    wait_until(lambda: is_serving(cluster), "the cluster to be ready")
    assert cluster.seen("worker_quiet") == []
