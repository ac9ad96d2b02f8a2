"""Processes that are killed, one or all: no job is lost, nothing is left behind."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from kiqcluster.control import process_registry
from kiqcluster.control.stacks import read_stacks
from kiqcluster.process.config import STOP_GRACE_SECONDS
from tests.kit import http_get, is_alive, wait_until
from tests.proc import children, count_descriptors, wait_exited
from tests.process.kiqctl import Kiqctl
from tests.stage import Stage, pid_of

# a child


def test_a_killed_child_is_replaced_and_its_jobs_run_again(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    for word in ("a", "b", "c"):
        stage.push("stubborn", word)
    stage.wait_noted("began a", "began b")
    first = cluster.wait_ready()[0]

    os.kill(first, signal.SIGKILL)
    second = cluster.wait_for("child_ready", count=2)["child"]

    report = cluster.wait_for("child_died", child=first)
    assert report["reason"] == "killed"
    assert len(report["running"]) == 2  # it is known what ran
    stage.release()
    stage.wait_noted("ended a", "ended b", "ended c")
    stage.wait_settled()
    assert sorted(stage.notes()).count("began a") == 2
    stage.wait_members(second)
    assert cluster.restarts("killed") == 1
    assert cluster.stop() == 0


def test_units_reserved_with_the_job_that_kills_its_process_run_too(stage: Stage) -> None:
    for word in ("a", "b", "c"):
        stage.push("suicide", word)

    # Each of the three may run beside both others when they kill, so it may see three deaths, its own among them.
    cluster = stage.run_cluster("default", "-c", "3", KIQ_MAX_RETRIES_AFTER_INTERRUPTION="4")

    stage.wait_noted("ended a", "ended b", "ended c")
    stage.wait_settled()
    assert stage.queued() == []
    assert cluster.restarts("boot") == 0  # a job that kills its process at once is no failure to boot
    assert cluster.stop() == 0


def test_what_a_dead_child_ran_goes_before_what_was_queued_behind_it(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2")
    for word in ("a", "b", "c"):
        stage.push("stubborn", word)
    stage.wait_noted("began a", "began b")
    cluster.signal(signal.SIGTSTP)  # so that the replacement takes nothing
    cluster.wait_for("worker_quiet")

    os.kill(cluster.wait_ready()[0], signal.SIGKILL)
    cluster.wait_for("recovered", units=2)

    assert stage.queued_args() == ["a", "b", "c"]


def test_the_replacement_recovers_on_the_word_of_the_supervisor_alone(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = stage.occupy(cluster)[0]
    (identity,) = stage.members()
    elsewhere = "00000001 another-host another-namespace 1 0.00"
    stage.store.call("HSET", "kiq:members", identity, elsewhere)

    os.kill(pid, signal.SIGKILL)

    cluster.wait_for("recovered", identity=identity, units=1)
    stage.wait_members(cluster.wait_for("child_ready", count=2)["child"])
    wait_until(lambda: stage.notes() == ["began a", "began a"], "the job to run again")
    assert [pid_of(name) for name in stage.holders()] == [cluster.pids()[0]]


def test_a_sibling_recovers_the_units_of_a_slot_that_cannot_boot_again(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, pathlib
        from tests.apps.basic import stubborn
        assert not pathlib.Path("broken").exists()
    """)
    cluster = stage.run_cluster("default", "other", "-c", "1", "--directory", str(tmp_path), app=app)
    pids = stage.occupy(cluster, 2)
    (tmp_path / "broken").touch()

    os.kill(pids[0], signal.SIGKILL)

    cluster.wait_for("recovered", pid=pids[1], units=1)
    cluster.wait_for("child_backoff", slot=0)
    stage.wait_members(pids[1])
    assert stage.queued_args() == ["a"]
    (tmp_path / "broken").unlink()
    stage.release()
    stage.wait_noted("ended a")  # once the slot is back


def test_a_sibling_recovers_while_the_replacement_still_imports(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import pathlib, time
        from tests.apps.basic import stubborn
        while pathlib.Path("slow").exists():
            time.sleep(0.01)
    """)
    cluster = stage.run_cluster("default", "other", "-c", "1", "--directory", str(tmp_path), app=app)
    pids = stage.occupy(cluster, 2)
    (tmp_path / "slow").touch()

    os.kill(pids[0], signal.SIGKILL)

    cluster.wait_for("recovered", pid=pids[1], units=1)
    assert stage.queued_args() == ["a"]
    assert len(cluster.seen("child_ready")) == 2
    (tmp_path / "slow").unlink()
    stage.release()
    stage.wait_noted("ended a")


def test_a_killed_child_takes_the_processes_of_its_jobs_along(stage: Stage) -> None:
    app = stage.write_application("""
        import subprocess
        from kiqcluster import job
        from tests.apps.basic import note

        @job(retry=0)
        def start_process():
            process = subprocess.Popen(["sleep", "600"])
            note(process.pid)
            process.wait()
    """)
    cluster = stage.run_cluster("default", "-c", "2", app=app, KIQ_HEALTH_SILENCE_TIMEOUT="4")
    stage.push("start_process")
    wait_until(lambda: stage.notes(), "the job to start its process")

    os.kill(cluster.wait_ready()[0], signal.SIGSTOP)
    cluster.wait_for("child_died", reason="silent")

    wait_exited(int(stage.notes()[0]))
    assert cluster.restarts("silent") == 1


@pytest.mark.parametrize("respawns", [3, pytest.param(30, marks=pytest.mark.full)])
def test_respawns_leave_no_zombie_and_no_descriptor(stage: Stage, respawns: int) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    cluster.wait_ready(2)
    wait_until(lambda: len(children(cluster.pid)) == 2, "the catalogue child to be reaped")
    before = count_descriptors(cluster.pid)

    for count in range(2, respawns + 2):
        os.kill(cluster.pids()[0], signal.SIGKILL)
        cluster.wait_for("child_ready", slot=0, count=count)

    assert sorted(children(cluster.pid)) == sorted(cluster.pids().values())
    assert all(is_alive(pid) for pid in cluster.pids().values())
    wait_until(lambda: count_descriptors(cluster.pid) == before, f"{before} open descriptors")
    assert cluster.restarts("killed") == respawns
    stage.wait_members(*cluster.pids().values())


# the cluster


def test_a_cluster_killed_as_a_whole_is_recovered_by_the_next_one_on_its_host(stage: Stage) -> None:
    first = stage.run_cluster("default", "other", "-c", "1")
    stage.push("stubborn", "a")
    stage.push("stubborn", "b", queue="other")
    stage.wait_noted("began a", "began b")
    old = first.wait_ready(2)
    for pid in (first.pid, *old.values()):
        os.kill(pid, signal.SIGKILL)
    wait_exited(*old.values())
    assert len(stage.holders()) == 2  # nobody was left to put them back

    second = stage.run_cluster("default", "-c", "1")
    new = second.wait_ready()

    stage.wait_members(*new.values())
    stage.release()
    stage.wait_noted("ended a")
    stage.wait_settled()
    assert stage.queued_args("other") == ["b"]


def test_when_the_supervisor_is_killed_running_jobs_finish_and_nothing_is_left(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = stage.occupy(cluster, 2)

    os.kill(cluster.pid, signal.SIGKILL)
    cluster.wait_for("worker_orphaned", pid=pids[0])
    cluster.wait_for("worker_quiet", pid=pids[0])
    stage.push("record", "later")
    wait_exited(pids[1])
    assert is_alive(pids[0])
    stage.release()

    wait_exited(pids[0])
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["later"]
    assert stage.members() == stage.holders() == set()
    assert stage.store.call("SMEMBERS", "processes") == []


def test_when_the_supervisor_is_killed_a_job_out_of_time_is_put_back(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.3")
    stage.push("stubborn", "a")
    stage.push("record", "b")
    stage.wait_noted("began a")
    pid = cluster.wait_ready()[0]

    os.kill(cluster.pid, signal.SIGKILL)

    wait_exited(pid)
    assert stage.queued_args() == ["a", "b"]
    assert stage.queued()[0]["interrupted_count"] == 1
    assert stage.members() == stage.holders() == set()


def test_when_the_supervisor_is_killed_a_child_that_still_imports_ends(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, time
        if "KIQ_SLOT" in os.environ:  # in children, not in the catalogue
            open("importing", "w").close()
            time.sleep(600)
    """)
    cluster = stage.run_cluster("default", "--directory", str(tmp_path), app=app)
    pid = cluster.wait_for("child_started")["child"]
    wait_until((tmp_path / "importing").exists, "the child to import")

    os.kill(cluster.pid, signal.SIGKILL)

    wait_exited(pid)


def test_when_the_supervisor_is_killed_the_catalogue_child_ends(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, pathlib, time
        pathlib.Path("pid").write_text(str(os.getpid()))
        time.sleep(600)
    """)
    cluster = stage.run_cluster("default", "--directory", str(tmp_path), app=app)
    pidfile = tmp_path / "pid"
    wait_until(lambda: pidfile.exists() and pidfile.read_text(), "the catalogue child to import")
    pid = int(pidfile.read_text())

    os.kill(cluster.pid, signal.SIGKILL)

    wait_exited(pid)


def test_when_the_supervisor_is_killed_a_child_whose_startup_handler_hangs_ends(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import time
        from kiqcluster import on

        @on("startup")
        def hang():
            open("starting", "w").close()
            time.sleep(600)
    """)
    cluster = stage.run_cluster("default", "--directory", str(tmp_path), app=app, KIQ_HEALTH_BOOT_TIMEOUT="4")
    pid = cluster.wait_for("child_started")["child"]
    wait_until((tmp_path / "starting").exists, "the startup handler to hang")

    os.kill(cluster.pid, signal.SIGKILL)

    wait_exited(pid)


@pytest.mark.full
def test_when_the_supervisor_is_killed_a_child_whose_shutdown_handler_hangs_ends_after_the_grace(
    stage: Stage, tmp_path: Path
) -> None:
    app = stage.write_application("""
        import time
        from kiqcluster import on

        @on("shutdown")
        def hang():
            open("stopping", "w").close()
            time.sleep(600)
    """)
    timeout = 0.3
    cluster = stage.run_cluster("default", "-t", str(timeout), "--directory", str(tmp_path), app=app)
    pid = cluster.wait_ready()[0]
    killed = time.monotonic()

    os.kill(cluster.pid, signal.SIGKILL)

    wait_until((tmp_path / "stopping").exists, "the shutdown handler to hang")
    wait_exited(pid)
    assert time.monotonic() - killed >= timeout + STOP_GRACE_SECONDS


def test_when_the_supervisor_is_killed_a_child_whose_job_holds_the_interpreter_ends(stage: Stage) -> None:
    # If it sees the supervisor's end before the job holds the interpreter, it has until the deadline of a stop.
    cluster = stage.run_cluster("default", "-c", "2", "-t", "0.3", KIQ_HEALTH_SILENCE_TIMEOUT="4")
    stage.push("hold_interpreter", "a")
    stage.wait_noted("holds a")
    pid = cluster.wait_ready()[0]

    os.kill(cluster.pid, signal.SIGKILL)

    wait_exited(pid)


# silence


def test_a_silent_child_is_killed_and_replaced_and_its_jobs_run(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1", KIQ_HEALTH_SILENCE_TIMEOUT="4")
    stage.push("stubborn", "a")
    stage.push("stubborn", "b", queue="other")
    stage.wait_noted("began a", "began b")
    pids = cluster.wait_ready(2)

    os.kill(pids[0], signal.SIGSTOP)
    report = cluster.wait_for("child_died", slot=0)
    second = cluster.wait_for("child_ready", slot=0, count=2)["child"]

    assert report["reason"] == "silent"
    assert not is_alive(pids[0])
    assert cluster.restarts("silent") == 1
    stage.release()
    stage.wait_noted("ended a", "ended b")
    stage.wait_settled()
    assert cluster.pids() == {0: second, 1: pids[1]}  # busy all the time with one long job, but not silent
    assert stage.notes().count("began b") == 1


def passed_on(stage: Stage) -> list[str]:
    """Return the stacks in Redis that another process has passed on."""
    return [each.text for each in read_stacks(stage.store, stage.members()).values() if not each.is_own]


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="without the lock nobody can hold it")
def test_a_child_whose_job_holds_the_interpreter_is_told_of_and_replaced_as_silent(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "2", KIQ_HEALTH_SILENCE_TIMEOUT="10")
    pids = cluster.wait_ready()
    pid, other = pids[0], pids[1]
    jid = stage.push("hold_interpreter", "a")
    stage.wait_noted("holds a")

    report = cluster.wait_for("child_unresponsive", child=pid)
    stacks = cluster.wait_for("child_stacks", child=pid)["stacks"]
    status, _, readiness = http_get(cluster.port, "/readiness")
    slot, _ = cluster.slots()
    wait_until(
        lambda: any(each.is_unresponsive for each in process_registry.list_processes(stage.store)), "Redis to show it"
    )
    dump = Kiqctl(stage.redis.url)("dump", f"{socket.gethostname()}:{pid}")
    cluster.wait_for("child_stacks", child=pid, count=2)
    wait_until(lambda: any("in hold_interpreter" in each for each in passed_on(stage)), "Redis to have the stacks")
    count = cluster.metric('kiqcluster_children{state="unresponsive"}')
    death = cluster.wait_for("child_died", child=pid)
    cluster.wait_for("child_ready", count=3)

    assert [(each["jid"], each["class"]) for each in report["running"]] == [(jid, "hold_interpreter")]
    assert "in hold_interpreter" in stacks
    assert (status, b"does not respond" in readiness) == (503, True)
    assert (slot["state"], slot["busy"], count) == ("unresponsive", 1, 1.0)
    assert (death["reason"], cluster.restarts("silent"), cluster.restarts("killed")) == ("silent", 1, 0)
    assert [(each["jid"], each["class"]) for each in death["running"]] == [(jid, "hold_interpreter")]
    assert death["running"][0]["seconds"] >= 8.0
    assert "in hold_interpreter" in death["stacks"]
    assert dump.returncode == 0, dump.stderr
    assert [each for each in cluster.events if each["event"] == "threads" and each["pid"] == other] == []
    assert "want of memory" not in death["msg"]


def test_a_job_that_ends_its_process_with_the_code_of_a_stop_counts_as_a_crash(stage: Stage) -> None:
    app = stage.write_application("""
        import os
        from kiqcluster import job

        @job(retry=0)
        def leave():
            os._exit(0)
    """)
    cluster = stage.run_cluster("default", "-c", "1", app=app)
    jid = stage.push("leave")

    death = cluster.wait_for("child_died")

    assert (death["reason"], [each["jid"] for each in death["running"]]) == ("crash", [jid])


def test_a_child_that_was_silent_for_less_than_the_limit_goes_on(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", KIQ_HEALTH_SILENCE_TIMEOUT="30")
    pid = cluster.wait_ready()[0]
    os.kill(pid, signal.SIGSTOP)
    stage.push("record", "a")

    os.kill(pid, signal.SIGCONT)

    stage.wait_noted("ran a")
    assert cluster.pids() == {0: pid}


# by hand


def test_a_hung_job_is_ended_with_its_process_and_alone_to_blame(stage: Stage, tmp_path: Path) -> None:
    kiqctl = Kiqctl(None)
    control = str(tmp_path / "control")
    cluster = stage.run_cluster(
        "default", "-c", "2", KIQ_CONTROL=control, KIQ_MAX_RETRIES_AFTER_INTERRUPTION="1", KIQ_HEALTH_RECOVER_AFTER="60"
    )  # fmt: skip
    stage.push("stubborn", "beside")
    stage.wait_noted("began beside")
    pid = cluster.wait_ready()[0]
    hung = stage.push("hold_interpreter", "a")
    stage.wait_noted("holds a")

    unknown = kiqctl("kill", "nobody", "--socket", control)
    done = kiqctl("kill", hung[:8], "--socket", control)  # as a table shortens it

    assert (unknown.returncode, done.returncode) == (1, 0), (unknown.stderr, done.stderr)
    assert cluster.wait_for("child_died", child=pid)["reason"] == "job_killed"
    cluster.wait_for("child_ready", count=2)
    wait_until(lambda: [each["jid"] for each in stage.dead()] == [hung], "the hung job to be buried")
    wait_until(lambda: stage.notes().count("began beside") == 2, "the other one to run again")
    stage.release()
    stage.wait_noted("ended beside")
    assert cluster.restarts("job_killed") == 1
