"""Stops: running jobs get their time, what is not finished is put back, and the exit code says how it went."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, is_alive, wait_until
from tests.process.stage import (
    dead,
    holders,
    identities,
    ledger,
    occupy,
    push,
    queued,
    readiness,
    release,
    wait_gone,
    wait_noted,
    wait_only_live,
    words,
)

RunCluster = Callable[..., Cluster]
Application = Callable[[str], str]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_running_jobs_finish_and_exits_0(
    run_cluster: RunCluster, store: Store, number: signal.Signals
) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    push(store, "stubborn", "a")
    push(store, "record", "b")
    wait_noted(store, "began a")
    pids = cluster.wait_ready(2)

    cluster.signal(number)
    cluster.wait_for("worker_stopping", pid=pids[0])
    release(store)

    assert cluster.wait() == 0
    assert ledger(store) == ["began a", "ended a"]
    assert words(queued(store)) == ["b"]
    assert identities(store) == holders(store) == set()
    assert store.call("SMEMBERS", "processes") == []
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_job_longer_than_the_timeout_is_put_back_at_the_front_and_runs_again(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "-c", "2", "-t", "0.3")
    for word in ("a", "b", "c"):
        push(store, "stubborn", word)
    wait_noted(store, "began a", "began b")

    assert cluster.stop() == 0

    assert set(words(queued(store))[:2]) == {"a", "b"}
    assert words(queued(store))[2] == "c"
    assert [payload.get("interrupted_count") for payload in queued(store)] == [1, 1, None]
    release(store)
    run_cluster("default", "-c", "2")
    wait_noted(store, "ended a", "ended b", "ended c")


def test_a_job_that_gives_way_ends_the_stop_early_and_is_not_counted_as_interrupted(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "-c", "1", "-t", "600")
    push(store, "polite", "a")
    wait_noted(store, "began a")

    assert cluster.stop() == 0

    assert words(queued(store)) == ["a"]
    assert "interrupted_count" not in queued(store)[0]


def test_a_job_interrupted_more_often_than_its_class_allows_is_buried(
    run_cluster: RunCluster, store: Store, application: Application
) -> None:
    app = application("""
        from kiqcluster import job
        from tests.apps.basic import stubborn

        @job(max_retries_after_interruption=1)
        def limited(word):
            stubborn(word)
    """)
    push(store, "limited", "a")
    for _ in range(2):
        assert dead(store) == []
        store.call("DEL", "ledger")
        cluster = run_cluster("default", "-c", "1", "-t", "0.1", app=app)
        wait_noted(store, "began a")
        assert cluster.stop() == 0

    assert queued(store) == []
    assert words(dead(store)) == ["a"]
    assert dead(store)[0]["interrupted_count"] == 2


def test_a_second_term_is_harmless(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1")
    pid = occupy(cluster, store)[0]

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_quiet")
    cluster.signal(signal.SIGTERM)
    cluster.signal(signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    cluster.wait_for("cluster_waits", running=1)  # whoever waits is told for what
    push(store, "record", "later")  # a sign that time went by: it waits until the cluster has gone
    release(store)

    assert cluster.wait() == 0
    assert ledger(store) == ["began a", "ended a"]
    assert words(queued(store)) == ["later"]


def test_quit_puts_running_jobs_back_at_once(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "-t", "600")
    push(store, "stubborn", "a")
    push(store, "record", "b")
    wait_noted(store, "began a")

    cluster.signal(signal.SIGQUIT)

    assert cluster.wait() == 0
    assert words(queued(store)) == ["a", "b"]
    assert queued(store)[0]["interrupted_count"] == 1
    assert identities(store) == holders(store) == set()


def test_quit_after_term_shortens_the_wait(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "1", "-t", "600")
    push(store, "stubborn", "a")
    wait_noted(store, "began a")
    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_stopping")

    cluster.signal(signal.SIGQUIT)

    assert cluster.wait() == 0
    assert words(queued(store)) == ["a"]


def test_nothing_is_respawned_while_it_stops(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    pids = occupy(cluster, store, 2)
    cluster.signal(signal.SIGTERM)
    cluster.wait_for("child_left", slot=1)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 1  # no sibling is left to give its unit back, which is said
    assert len(cluster.seen("child_started")) == 2
    assert len(holders(store)) == 1  # for the next cluster of this host
    new = run_cluster("default", "-c", "1")
    wait_only_live(store, new.wait_ready()[0])


@pytest.mark.full
def test_a_child_that_misses_its_stop_is_killed_after_the_grace_and_the_exit_code_is_9(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "other", "-c", "1", "-t", "0.2", KIQ_SILENCE_TIMEOUT="0")
    pids = occupy(cluster, store, 2)
    os.kill(pids[0], signal.SIGSTOP)

    assert cluster.stop() == 9

    cluster.wait_for("stop_overdue", slot=0)
    assert cluster.seen("stop_overdue", slot=1) == []
    wait_gone(*pids.values())
    release(store)
    run_cluster("default", "-c", "1")
    wait_noted(store, "ended a")


def test_a_stop_behind_a_full_socket_reaches_its_child_once_that_reads_again(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "-c", "1", "-t", "0.2")
    pid = cluster.wait_ready()[0]
    os.kill(pid, signal.SIGSTOP)
    for count in range(1, 301):  # more than a socket takes
        cluster.signal(signal.SIGTSTP)
        cluster.wait_for("cluster_quiet", count=count)
        cluster.signal(signal.SIGCONT)
        cluster.wait_for("cluster_resumed", count=count)

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("cluster_stopping")
    os.kill(pid, signal.SIGCONT)

    assert cluster.wait() == 0  # 9 if it had to be killed


# while it boots


@pytest.mark.parametrize("moment", ["supervisor_started", "slot_group", "child_started", "worker_ready", "child_ready"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_stop_while_it_boots_is_not_lost(
    run_cluster: RunCluster, store: Store, moment: str, number: signal.Signals
) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    cluster.wait_for(moment)

    cluster.signal(number)

    assert cluster.wait(8.0) == 0  # less than the grace, after which a child that had lost its stop would be killed
    assert cluster.seen("stop_overdue") == []
    wait_gone(*(each["child"] for each in cluster.seen("child_started")))
    wait_until(lambda: not identities(store), "the members to leave")


def test_a_stop_right_after_the_pidfile_was_written_is_not_lost(
    run_cluster: RunCluster, store: Store, tmp_path: Path
) -> None:
    for attempt in range(3):
        pidfile = tmp_path / f"{attempt}.pid"
        cluster = run_cluster("default", "--pidfile", str(pidfile))
        wait_until(lambda path=pidfile: path.exists() and path.read_text().strip(), "the pidfile")

        os.kill(int(pidfile.read_text()), signal.SIGTERM)

        assert cluster.wait() == 0
        assert not pidfile.exists()


@pytest.mark.parametrize("where", ["catalogue", "import", "startup handler"])
def test_a_stop_waits_for_a_hanging_application_no_longer_than_its_boot_may_take(
    run_cluster: RunCluster, application: Application, tmp_path: Path, where: str
) -> None:
    app = application(f"""
        import os, time
        from kiqcluster import on

        def hang():
            open("hanging", "w").close()
            time.sleep(600)

        if {where!r} == "catalogue" or ({where!r} == "import" and "KIQ_SLOT" in os.environ):
            hang()
        if {where!r} == "startup handler":
            on("startup")(hang)
    """)
    cluster = run_cluster("default", "--directory", str(tmp_path), "-t", "600", app=app, KIQ_BOOT_TIMEOUT="4")
    wait_until((tmp_path / "hanging").exists, "the application to hang")

    cluster.signal(signal.SIGTERM)

    assert cluster.wait() == 0
    wait_gone(*(each["child"] for each in cluster.seen("child_started")))


def test_a_stop_ends_a_child_that_waits_for_redis(run_cluster: RunCluster) -> None:
    cluster = run_cluster("default", "--redis=redis://127.0.0.1:1/0")
    cluster.wait_for("child_started")
    wait_until(lambda: "Redis" in readiness(cluster)[1], "the child to wait for Redis")

    assert cluster.stop() == 0

    wait_gone(*(each["child"] for each in cluster.seen("child_started")))
