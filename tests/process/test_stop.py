"""Stops: running jobs get their time, what is not finished is put back, and the exit code says how it went."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.kit import is_alive, wait_until
from tests.proc import wait_exited
from tests.stage import Stage


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_running_jobs_finish_and_exits_0(stage: Stage, number: signal.Signals) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    stage.push("stubborn", "a")
    stage.push("record", "b")
    stage.wait_noted("began a")
    pids = cluster.wait_ready(2)

    cluster.signal(number)
    cluster.wait_for("worker_stopping", pid=pids[0])
    stage.release()

    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["b"]
    assert stage.members() == stage.holders() == set()
    assert stage.store.call("SMEMBERS", "processes") == []
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_job_longer_than_the_timeout_is_put_back_at_the_front_and_runs_again(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "-t", "0.3")
    for word in ("a", "b", "c"):
        stage.push("stubborn", word)
    stage.wait_noted("began a", "began b")

    assert cluster.stop() == 0

    assert set(stage.queued_args()[:2]) == {"a", "b"}
    assert stage.queued_args()[2] == "c"
    assert [payload.get("interrupted_count") for payload in stage.queued()] == [1, 1, None]
    stage.release()
    stage.run_cluster("default", "-c", "2")
    stage.wait_noted("ended a", "ended b", "ended c")


def test_a_job_that_gives_way_ends_the_stop_early_and_is_not_counted_as_interrupted(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "600")
    stage.push("polite", "a")
    stage.wait_noted("began a")

    assert cluster.stop() == 0

    assert stage.queued_args() == ["a"]
    assert "interrupted_count" not in stage.queued()[0]


def test_a_job_interrupted_as_often_as_its_class_allows_is_buried(stage: Stage) -> None:
    app = stage.write_application("""
        from kiqcluster import job
        from tests.apps.basic import stubborn

        @job(max_retries_after_interruption=2)
        def limited(word):
            stubborn(word)
    """)
    stage.push("limited", "a")
    for _ in range(2):
        assert stage.dead() == []
        stage.store.call("DEL", "ledger")
        cluster = stage.run_cluster("default", "-c", "1", "-t", "0.1", app=app)
        stage.wait_noted("began a")
        assert cluster.stop() == 0

    assert stage.queued() == []
    assert stage.dead_args() == ["a"]
    assert stage.dead()[0]["interrupted_count"] == 2


def test_a_second_term_is_harmless(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = stage.occupy(cluster)[0]

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_quiet")
    cluster.signal(signal.SIGTERM)
    cluster.signal(signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    cluster.wait_for("cluster_waits", running=1)  # whoever waits is told for what
    stage.push("record", "later")  # a sign that time went by: it waits until the cluster has gone
    stage.release()

    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["later"]


def test_quit_puts_running_jobs_back_at_once(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "600")
    stage.push("stubborn", "a")
    stage.push("record", "b")
    stage.wait_noted("began a")

    cluster.signal(signal.SIGQUIT)

    assert cluster.wait() == 0
    assert stage.queued_args() == ["a", "b"]
    assert stage.queued()[0]["interrupted_count"] == 1
    assert stage.members() == stage.holders() == set()


def test_quit_after_term_shortens_the_wait(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "600")
    stage.push("stubborn", "a")
    stage.wait_noted("began a")
    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_stopping")

    cluster.signal(signal.SIGQUIT)

    assert cluster.wait() == 0
    assert stage.queued_args() == ["a"]


def test_nothing_is_respawned_while_it_stops(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = stage.occupy(cluster, 2)
    cluster.signal(signal.SIGTERM)
    cluster.wait_for("child_left", slot=1)

    os.kill(pids[0], signal.SIGKILL)

    assert cluster.wait() == 1  # no sibling is left to give its unit back, which is said
    assert [each["child"] for each in cluster.seen("child_died")] == [pids[0]]
    assert len(cluster.seen("child_started")) == 2
    assert len(stage.holders()) == 1  # for the next cluster of this host
    new = stage.run_cluster("default", "-c", "1")
    stage.wait_members(new.wait_ready()[0])


@pytest.mark.full
def test_a_child_that_misses_its_stop_is_killed_after_the_grace_and_the_exit_code_is_9(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", "-t", "0.2", KIQ_HEALTH_SILENCE_TIMEOUT="0")
    pids = stage.occupy(cluster, 2)
    os.kill(pids[0], signal.SIGSTOP)

    assert cluster.stop() == 9

    cluster.wait_for("stop_overdue", slot=0)
    assert cluster.seen("stop_overdue", slot=1) == []
    wait_exited(*pids.values())
    stage.release()
    stage.run_cluster("default", "-c", "1")
    stage.wait_noted("ended a")


def test_a_stop_behind_a_full_socket_reaches_its_child_once_that_reads_again(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.2")
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
def test_a_stop_while_it_boots_is_not_lost(stage: Stage, moment: str, number: signal.Signals) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    cluster.wait_for(moment)

    cluster.signal(number)

    assert cluster.wait() == 0
    assert cluster.seen("stop_overdue") == []  # a child that had lost its stop would be killed
    wait_exited(*(each["child"] for each in cluster.seen("child_started")))
    wait_until(lambda: not stage.members(), "the members to leave")


def test_a_stop_right_after_the_pidfile_was_written_is_not_lost(stage: Stage, tmp_path: Path) -> None:
    for attempt in range(3):
        pidfile = tmp_path / f"{attempt}.pid"
        cluster = stage.run_cluster("default", "--pidfile", str(pidfile))
        wait_until(lambda path=pidfile: path.exists() and path.read_text().strip(), "the pidfile")

        os.kill(int(pidfile.read_text()), signal.SIGTERM)

        assert cluster.wait() == 0
        assert not pidfile.exists()


@pytest.mark.parametrize("where", ["catalogue", "import", "startup handler"])
def test_a_stop_waits_for_a_hanging_application_no_longer_than_its_boot_may_take(
    stage: Stage, tmp_path: Path, where: str
) -> None:
    app = stage.write_application(f"""
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
    cluster = stage.run_cluster(
        "default", "--directory", str(tmp_path), "-t", "600", app=app, KIQ_HEALTH_BOOT_TIMEOUT="4"
    )
    wait_until((tmp_path / "hanging").exists, "the application to hang")

    cluster.signal(signal.SIGTERM)

    assert cluster.wait() == 0
    wait_exited(*(each["child"] for each in cluster.seen("child_started")))


def test_a_stop_ends_a_child_that_waits_for_redis(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "--redis=redis://127.0.0.1:1/0")
    cluster.wait_for("child_started")
    wait_until(lambda: "Redis" in cluster.readiness()[1], "the child to wait for Redis")

    assert cluster.stop() == 0

    wait_exited(*(each["child"] for each in cluster.seen("child_started")))
