"""What a job or a handler forks off is no worker.  Beside many other jobs: tests/chaos/test_forks.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.kit import ROOT, is_alive, wait_until
from tests.proc import children, sockets, wait_exited
from tests.stage import Stage


def test_a_child_holds_no_socket_of_its_worker_and_its_signals_are_its_own(stage: Stage) -> None:
    app = stage.write_application("""
        import os, time
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def fork():
            pid = os.fork()
            if pid == 0:
                time.sleep(600)
            note("child", pid)
            os.waitpid(pid, 0)
    """)
    for _ in range(4):
        stage.push("fork")
    cluster = stage.run_cluster("default", "-c", "4", app=app)
    wait_until(lambda: len(stage.notes()) == 4, "four children")
    (worker,) = cluster.wait_ready(1).values()
    pids = [int(line.split()[1]) for line in stage.notes()]

    def held() -> set[str]:
        return {held for pid in pids for held in sockets(pid) & sockets(worker) if held.startswith("socket:")}

    wait_until(lambda: not held(), "the children to let go of the worker's sockets")
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    for pid, number in zip(pids, signals, strict=True):
        os.kill(pid, number)

    wait_exited(*pids)
    stage.wait_settled()
    stage.push("record", "afterwards")
    stage.wait_noted("ran afterwards")
    assert cluster.seen("child_died") == cluster.seen("cluster_stopping") == []
    assert children(worker) == []


def test_a_fork_ends_where_the_applications_code_does_wherever_it_was_made(stage: Stage) -> None:
    """Each parent waits for its child: one that went on would hold it up, or run what follows twice."""
    app = stage.write_application("""
        import os
        from kiqcluster import death_handler, error_handler, job, on, server_middleware
        from tests.apps.basic import note

        def fork(where):
            pid = os.fork()
            if pid:
                note("forked", where, os.waitpid(pid, 0)[1])
            return pid == 0

        @on("startup")
        def starting():
            fork("startup")

        @on("shutdown")
        def stopping():
            if fork("shutdown"):
                raise SystemExit(2)

        @server_middleware.add
        def around(run, proceed):
            fork("before")
            outcome = proceed()
            fork("after")
            return outcome

        @error_handler
        def on_error(error, context):
            fork("error")

        @death_handler
        def on_death(payload, error):
            if fork("death"):
                raise ValueError("in the child")

        @job(retries_exhausted=lambda payload, error: fork("hook"), retry=0)
        def fail():
            note("ran")
            raise ValueError("on purpose")

        pid = os.fork()
        if pid:
            os.waitpid(pid, 0)
    """)
    stage.push("fail", retry=0)

    cluster = stage.run_cluster("default", "-c", "1", app=app)

    wait_until(lambda: stage.dead(), "the job to be buried")
    stage.wait_settled()
    assert cluster.stop() == 0
    assert stage.notes() == [
        "forked startup 0",
        "forked before 0",
        "ran",
        "forked hook 0",
        "forked death 256",
        "forked error 0",
        "forked shutdown 512",
    ]
    assert len(cluster.seen("child_started")) == len(cluster.seen("child_ready")) == 1


def test_a_fork_in_c_runs_none_of_the_jobs_at_hand(stage: Stage) -> None:
    """C code that tells Python nothing: no at-fork hook runs in the child, which comes back as a copy of the worker."""
    app = stage.write_application("""
        import ctypes, os, sys
        from kiqcluster import job
        from tests.apps.basic import note

        @job
        def fork_in_c(number):
            sys.setswitchinterval(60)  # a thread that asks for the interpreter now would be waited for in the child
            pid = ctypes.PyDLL(None).fork()
            sys.setswitchinterval(0.005)
            if pid:
                note("forked", number, os.waitpid(pid, 0)[1])

        @job
        def remember(number):
            note("ran", number)
    """)
    for number in range(5):
        stage.push("fork_in_c", number)
        for more in range(10):
            stage.push("remember", 10 * number + more)

    cluster = stage.run_cluster("default", "-c", "1", app=app)

    wait_until(lambda: len(stage.notes()) >= 55, "all jobs to run")
    stage.wait_settled()
    assert sorted(stage.notes()) == sorted(
        [*(f"forked {number} 0" for number in range(5)), *(f"ran {number}" for number in range(50))]
    )
    assert cluster.seen("child_died") == []


def test_a_forked_process_of_a_web_server_enqueues_on_a_connection_of_its_own(stage: Stage, tmp_path: Path) -> None:
    server = tmp_path / "server.py"
    server.write_text("""
import os
from kiqcluster import Client
from kiqcluster.process.runtime import current_setup

store = current_setup().current_store()
Client().push({"class": "Work", "args": [0]})
pids = []
for number in range(4):
    if (pid := os.fork()) == 0:
        for _ in range(25):
            Client().push({"class": "Work", "args": [number]})
        store.call("SADD", "connections", store.call("CLIENT", "ID"))
        os._exit(0)
    pids.append(pid)
for _ in range(25):
    Client().push({"class": "Work", "args": [4]})
store.call("SADD", "connections", store.call("CLIENT", "ID"))
raise SystemExit(sum(os.waitpid(pid, 0)[1] for pid in pids))
""")

    environ = {**os.environ, "REDIS_URL": stage.redis.url, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, str(server)], env=environ, check=True, timeout=30)

    assert stage.store.call("LLEN", "queue:default") == 126
    assert stage.store.call("SCARD", "connections") == 5


def test_what_a_job_has_started_ends_with_its_worker(stage: Stage) -> None:
    app = stage.write_application("""
        import subprocess
        from kiqcluster import job
        from tests.apps.basic import note

        @job()
        def start(session):
            process = subprocess.Popen(["sleep", "600"], start_new_session=session)
            note("started", process.pid)
            process.wait()
    """)
    stage.push("start", False)
    stage.push("start", True)
    cluster = stage.run_cluster("default", "-c", "2", app=app)
    wait_until(lambda: len(stage.notes()) == 2, "both to be started")
    first = {int(line.split()[1]) for line in stage.notes()}
    apart = {pid for pid in first if os.getsid(pid) == pid}

    os.kill(cluster.wait_ready(1)[0], signal.SIGKILL)

    wait_exited(*(first - apart))
    assert all(map(is_alive, apart))
    wait_until(lambda: len(stage.notes()) == 4, "both to be started again")
    second = {int(line.split()[1]) for line in stage.notes()} - first
    cluster.signal(signal.SIGQUIT)
    assert cluster.wait() == 0
    for pid in {pid for pid in first | second if is_alive(pid)}:
        assert os.getsid(pid) == pid
        os.kill(pid, signal.SIGKILL)
