"""Signals to the supervisor and to one child: quiet, resume, dump.  HUP and USR2 have test_reload and test_roll."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.kit import is_alive, wait_until
from tests.stage import Stage, pid_of


def shown_quiet(stage: Stage, pid: int) -> bool:
    """Return whether a process' heartbeat says that it is quiet."""
    names = [name for name in stage.members() if pid_of(name) == pid]
    return bool(names) and stage.store.call("HGET", names[0], "quiet") == b"true"


def waiting_connections(store: Store) -> int:
    """Return how many connections wait in a BLMOVE."""
    return len(re.findall(rb"flags=b .*cmd=blmove", store.call("CLIENT", "LIST")))


# quiet and resume


@pytest.mark.parametrize("number", [signal.SIGTSTP, signal.SIGUSR1])
def test_quiet_stops_fetching_and_cont_resumes(stage: Stage, number: signal.Signals) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    pid = stage.occupy(cluster)[0]

    cluster.signal(number)
    cluster.wait_for("worker_quiet")
    stage.push("record", "b")
    stage.release()
    stage.wait_noted("ended a")  # what runs goes on
    stage.wait_settled()
    wait_until(lambda: stage.queued_args() == ["b"], "it to be back in its queue, if it woke the process")
    assert cluster.metric("kiqcluster_quiet") == 1
    wait_until(lambda: cluster.readiness() == (503, "slot 0 is quiet"), "readiness to say quiet")

    cluster.signal(signal.SIGCONT)

    stage.wait_noted("ran b")
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready again")
    assert cluster.metric("kiqcluster_quiet") == 0
    assert cluster.pids() == {0: pid}


def test_a_job_that_wakes_a_quiet_process_goes_back_to_its_queue(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    wait_until(lambda: waiting_connections(stage.store) == 1, "an idle connection to wait at the queue")
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")

    stage.push("record", "a")

    wait_until(lambda: waiting_connections(stage.store) == 0, "the job to have woken the process")
    wait_until(lambda: stage.queued_args() == ["a"], "the job to be back in its queue")
    assert stage.store.call("LLEN", "kiq:wake:default") == 0
    assert stage.notes() == []


def test_a_child_respawned_while_quiet_boots_quiet(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    first = cluster.wait_ready()[0]
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    stage.push("record", "a")
    wait_until(lambda: stage.queued(), "the process to have given the job back")

    os.kill(first, signal.SIGKILL)
    second = cluster.wait_for("child_ready", count=2)["child"]

    wait_until(lambda: shown_quiet(stage, second), "the heartbeat of the replacement to say quiet")
    wait_until(lambda: cluster.readiness() == (503, "slot 0 is quiet"), "readiness to say quiet")
    assert stage.queued_args() == ["a"]
    cluster.signal(signal.SIGCONT)
    stage.wait_noted("ran a")


def test_a_quiet_cluster_still_moves_due_jobs_to_their_queues(stage: Stage) -> None:
    cluster = stage.run_cluster("default", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")
    cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")

    stage.store.call("ZADD", "schedule", "1.5", '{"class":"record","args":["a"],"jid":"aaaaaaaaaaaaaaaaaaaaaaaa"}')

    wait_until(lambda: stage.queued_args() == ["a"], "the due job to be in its queue")
    assert stage.notes() == []


def test_cont_after_term_does_nothing(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    pid = stage.occupy(cluster)[0]
    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_quiet")

    cluster.signal(signal.SIGCONT)  # systemd sends one after its TERM
    os.kill(pid, signal.SIGCONT)
    stage.push("record", "b")
    stage.release()

    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["b"]


def test_term_ends_a_quiet_cluster(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")

    assert cluster.stop() == 0

    stage.wait_members()


def test_cont_without_quiet_changes_nothing(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = cluster.wait_ready()[0]

    cluster.signal(signal.SIGCONT)
    stage.push("record", "a")

    stage.wait_noted("ran a")
    assert cluster.pids() == {0: pid}


# the others


def test_ttin_dumps_the_threads_and_work_goes_on(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2")
    jid = stage.push("stubborn", "a")
    stage.wait_noted("began a")
    pids = cluster.wait_ready(2)

    cluster.signal(signal.SIGTTIN)

    stacks = cluster.wait_for("threads", pid=pids[0])["stacks"]
    assert "in stubborn" in stacks  # what the job does at this moment
    assert re.search(rf"^--- kiq\.processor/\d: stubborn {jid}, for \d+\.\d s$", stacks, re.MULTILINE)
    assert stacks.count(jid) == 1
    assert cluster.wait_for("threads", pid=pids[1])["running"] == {}
    stage.release()
    stage.wait_noted("ended a")
    assert cluster.pids() == pids


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR2])
def test_a_signal_that_is_for_the_supervisor_changes_nothing_in_a_worker(stage: Stage, number: signal.Signals) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pids = cluster.wait_ready()

    os.kill(pids[0], number)
    cluster.wait_for("unknown_signal", pid=pids[0], signal=number.name)

    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.pids() == pids


@pytest.mark.parametrize("number", [signal.SIGPIPE, signal.SIGTTOU, signal.SIGWINCH, signal.SIGCHLD])
def test_a_signal_that_means_nothing_ends_no_process(stage: Stage, number: signal.Signals) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pids = cluster.wait_ready()

    for pid in (cluster.pid, pids[0]):
        os.kill(pid, number)
    stage.push("record", "a")

    stage.wait_noted("ran a")
    assert cluster.stop() == 0


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no real-time signals here")
def test_a_signal_that_the_application_handles_itself_is_its_own(stage: Stage, tmp_path: Path) -> None:
    """A real-time signal: it has a number, but no name."""
    app = stage.write_application("""
        import signal
        from kiqcluster import on

        @on("startup")
        def listen():
            signal.signal(signal.SIGRTMIN + 1, lambda *_: open("heard", "w").close())
    """)
    cluster = stage.run_cluster("default", "-c", "1", "--directory", str(tmp_path), app=app)
    pid = cluster.wait_ready()[0]

    os.kill(pid, signal.SIGRTMIN + 1)

    wait_until((tmp_path / "heard").exists, "the application's handler to run")
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.stop() == 0
    assert cluster.pids() == {0: pid}


@pytest.mark.parametrize("place", ["import", "startup"])
def test_a_worker_whose_application_has_run_an_event_loop_obeys_signals(stage: Stage, place: str) -> None:
    """asyncio takes the wakeup descriptor for its signal handlers, and leaves none."""
    app = stage.write_application(f"""
        import asyncio, signal
        from kiqcluster import on

        async def hear():
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGHUP):
                loop.add_signal_handler(number, lambda: None)
                loop.remove_signal_handler(number)

        def warm_up():
            asyncio.run(hear())

        {"warm_up()" if place == "import" else 'on("startup")(warm_up)'}
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    pid = cluster.wait_ready()[0]

    os.kill(pid, signal.SIGTERM)

    cluster.wait_for("worker_left")
    wait_until(lambda: cluster.pids().get(0, pid) != pid, "a replacement")
    assert cluster.stop() == 0


# one child


def by_hand(stage: Stage, pid: int, name: str) -> None:
    os.kill(pid, signal.Signals[f"SIG{name}"])


def by_button(stage: Stage, pid: int, name: str) -> None:
    """Ruby's web page and API push the name to the process' list."""
    identity = next(each for each in stage.members() if pid_of(each) == pid)
    stage.store.call("LPUSH", f"{identity}-signals", name)


BOTH_WAYS = pytest.mark.parametrize("send", [by_hand, by_button])


@BOTH_WAYS
def test_term_for_one_child_drains_it_and_it_is_replaced(stage: Stage, send: Callable[[Stage, int, str], None]) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = stage.occupy(cluster, 2)

    send(stage, pids[0], "TERM")
    cluster.wait_for("worker_stopping", pid=pids[0])
    stage.release()
    second = cluster.wait_for("child_ready", slot=0, count=2)["child"]

    assert cluster.wait_for("child_died")["reason"] == "remote_stop"
    assert cluster.restarts("remote_stop") == 1
    assert stage.notes() == ["began a", "ended a"]
    stage.wait_members(second, pids[1])
    stage.push("record", "b")
    stage.wait_noted("ran b")


@BOTH_WAYS
def test_tstp_for_one_child_quiets_it_alone(stage: Stage, send: Callable[[Stage, int, str], None]) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = cluster.wait_ready(2)

    send(stage, pids[0], "TSTP")
    cluster.wait_for("worker_quiet", pid=pids[0])
    stage.push("record", "a")
    stage.push("record", "b", queue="other")

    stage.wait_noted("ran b")
    wait_until(lambda: cluster.readiness() == (503, "slot 0 is quiet"), "readiness to name the quiet slot")
    wait_until(lambda: stage.queued_args() == ["a"], "it to be back in its queue, if it woke the process")
    assert all(is_alive(pid) for pid in pids.values())
    assert cluster.seen("worker_quiet", pid=pids[1]) == []
    send(stage, pids[0], "CONT")
    stage.wait_noted("ran a")


def test_a_child_killed_after_it_was_quieted_by_hand_is_replaced_by_one_that_serves(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = cluster.wait_ready()[0]
    os.kill(pid, signal.SIGTSTP)
    cluster.wait_for("worker_quiet", pid=pid)
    stage.push("record", "a")

    os.kill(pid, signal.SIGKILL)

    stage.wait_noted("ran a")
    replacement = cluster.wait_for("child_ready", count=2)["child"]
    assert cluster.seen("worker_quiet", pid=replacement) == []
