"""Boots that fail, hang or have to wait: what is refused, with which exit code, and what is not."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from tests.kit import http_get, wait_until
from tests.proc import wait_exited
from tests.stage import Stage

# the application


@pytest.mark.parametrize(
    "source",
    [
        "import no_such_module",
        "raise RuntimeError('no database')",
        "def broken(:",
        "raise SystemExit(0)",
        "import os; os._exit(0)",
        "import os; os.abort()",
        "from kiqcluster import job\n@job(queue='')\ndef nameless(): pass",
    ],
)
def test_an_application_that_does_not_load_is_exit_3_and_nothing_is_started(stage: Stage, source: str) -> None:
    app = stage.write_application("pass")
    Path(app).write_text(source)

    cluster = stage.run_cluster("default", app=app)

    assert cluster.wait() == 3
    cluster.wait_for("catalogue_failed")
    assert cluster.seen("child_started") == []


@pytest.mark.parametrize(
    ("source", "how"),
    [
        ("import os; os._exit(7)", "exited with 7"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "was killed by SIGKILL"),
        ("import os; os.abort()", "application.py"),
    ],
)
def test_an_import_that_ends_its_process_says_how_and_where(stage: Stage, source: str, how: str) -> None:
    app = stage.write_application("pass")
    Path(app).write_text(source)

    cluster = stage.run_cluster("default", app=app)

    assert cluster.wait() == 3
    assert how in cluster.wait_for("catalogue_failed")["error"]


# `tests.apps` registers no job, `docs` is a folder without any module.
@pytest.mark.parametrize(
    "app", ["no_such_module", "no/such/file.py", "tests.apps.basic:no_such_factory", "tests.apps", "docs"]
)
def test_an_application_that_is_not_there_is_exit_3(stage: Stage, app: str) -> None:
    assert stage.run_cluster("default", app=app).wait() == 3


def test_an_import_that_hangs_is_exit_3_after_the_boot_timeout(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, pathlib, subprocess, time
        process = subprocess.Popen(["sleep", "600"])
        pathlib.Path("pids").write_text(f"{os.getpid()} {process.pid}")
        time.sleep(600)
    """)

    cluster = stage.run_cluster("default", "--directory", str(tmp_path), app=app, KIQ_HEALTH_BOOT_TIMEOUT="3")

    assert cluster.wait() == 3
    assert "application.py" in str(cluster.wait_for("catalogue_failed")["error"])  # where it hangs
    assert cluster.seen("child_started") == []
    wait_exited(*map(int, (tmp_path / "pids").read_text().split()))


def test_an_application_that_loads_in_no_child_is_exit_3(stage: Stage) -> None:
    app = stage.write_application("""
        import os
        assert "KIQ_SLOT" not in os.environ, "children cannot load this"
    """)

    cluster = stage.run_cluster("default", "other", app=app)

    assert cluster.wait() == 3
    cluster.wait_for("cluster_gave_up", code=3)


def test_children_that_never_become_ready_are_exit_4_after_the_boot_timeout(stage: Stage) -> None:
    app = stage.write_application("""
        import os, time
        if "KIQ_SLOT" in os.environ:
            time.sleep(600)
    """)

    cluster = stage.run_cluster(
        "default", "other", app=app, KIQ_HEALTH_BOOT_TIMEOUT="3"
    )  # the catalogue child has to do with it, too

    assert cluster.wait() == 4
    assert len(cluster.seen("child_overdue")) == 2
    wait_exited(*(each["child"] for each in cluster.seen("child_started")))


def test_a_startup_handler_that_fails_in_every_child_is_exit_3(stage: Stage) -> None:
    app = stage.write_application("""
        from kiqcluster import on

        @on("startup")
        def connect():
            raise ConnectionError("no database")
    """)

    cluster = stage.run_cluster("default", "other", app=app)

    assert cluster.wait() == 3


def test_numbers_of_slots_that_there_are_not_are_said_to_be_odd(stage: Stage) -> None:
    cluster = stage.run_cluster("default", KIQ_HEALTH_READY_QUORUM="5", KIQ_ROLL_MIN_SERVING="9")
    cluster.wait_ready()

    problems = [each["problem"].split()[0] for each in cluster.seen("setting_doubtful")]

    assert problems == ["health.ready_quorum", "roll.min_serving"]
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready all the same")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process cannot be given a name so cheaply")
def test_the_system_can_tell_the_processes_of_a_cluster_apart(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other")
    pids = cluster.wait_ready(2)

    names = {pid: Path(f"/proc/{pid}/comm").read_text().strip() for pid in (cluster.pid, *pids.values())}

    assert names == {cluster.pid: "kiqcluster", pids[0]: "kiq slot 0", pids[1]: "kiq slot 1"}


def test_a_slot_that_fails_to_boot_backs_off_while_the_others_serve(stage: Stage) -> None:
    app = stage.write_application("""
        import os
        from tests.apps.basic import record

        assert os.environ.get("KIQ_SLOT") != "1", "not in this slot"
    """)
    cluster = stage.run_cluster("default", "other", app=app)

    cluster.wait_for("child_backoff", slot=1, failures=2)

    assert cluster.restarts("boot", slot=1) == 2  # before it is tried again
    stage.push("record", "a")
    stage.wait_noted("ran a")
    assert cluster.readiness()[1].startswith("slot 1 is in ")
    assert cluster.seen("child_died", slot=0) == []
    assert all(each["seconds"] > 0 for each in cluster.seen("child_backoff"))
    assert cluster.stop() == 0


def test_a_job_that_kills_its_process_at_once_is_no_failure_to_boot(stage: Stage) -> None:
    for number in range(6):  # each kills a child that has only just become ready
        stage.push("suicide", str(number))

    cluster = stage.run_cluster("default", "-c", "1")

    stage.wait_noted(*(f"ended {number}" for number in range(6)))
    stage.wait_settled()
    assert cluster.restarts("boot") == 0
    assert cluster.stop() == 0


# Redis


@pytest.mark.own_redis
def test_redis_away_at_boot_is_waited_for(stage: Stage) -> None:
    stage.redis.kill()

    cluster = stage.run_cluster("default")

    cluster.wait_for("child_started")
    wait_until(lambda: "cannot reach Redis" in cluster.readiness()[1], "readiness to say what it waits for")
    assert cluster.readiness()[0] == 503
    assert http_get(cluster.port, "/liveness")[0] == 200
    stage.redis.start()
    cluster.wait_ready()
    stage.push("record", "a")
    stage.wait_noted("ran a")
    wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready")
    assert len(cluster.seen("child_started")) == 1
    assert cluster.stop() == 0


@pytest.mark.own_redis
def test_redis_away_for_longer_than_the_boot_timeout_is_no_failure(stage: Stage) -> None:
    stage.redis.kill()
    limit = 3.0
    cluster = stage.run_cluster("default", KIQ_HEALTH_BOOT_TIMEOUT=str(limit))
    pid = cluster.wait_for("child_started")["child"]

    born = psutil.Process(pid).create_time()
    wait_until(lambda: time.time() - born > 1.5 * limit, "more than the boot timeout to pass")
    stage.redis.start()
    assert cluster.wait_ready() == {0: pid}


@pytest.mark.own_redis
@pytest.mark.parametrize("credentials", ["", ":wrong@", "nobody:secret@"])
def test_a_wrong_password_is_exit_5(stage: Stage, credentials: str) -> None:
    stage.store.call("CONFIG", "SET", "requirepass", "secret")

    cluster = stage.run_cluster("default", "other", f"--redis=redis://{credentials}127.0.0.1:{stage.redis.port}/0")

    assert cluster.wait() == 5
    cluster.wait_for("cluster_gave_up", code=5)
    assert not any("wrong" in line for line in cluster.lines if '"msg"' in line)


@pytest.mark.own_redis
def test_the_right_password_is_taken_and_never_shown(stage: Stage) -> None:
    stage.store.call("CONFIG", "SET", "requirepass", "secret")

    cluster = stage.run_cluster("default", f"--redis=redis://:secret@127.0.0.1:{stage.redis.port}/0")

    cluster.wait_ready()
    assert cluster.stop() == 0
    assert not any("secret" in line for line in cluster.lines)


def test_redis_older_than_7_is_exit_5(stage: Stage) -> None:
    with old_redis("6.2.14") as port:
        cluster = stage.run_cluster("default", f"--redis=redis://127.0.0.1:{port}/0")

        assert cluster.wait() == 5


@contextmanager
def old_redis(version: str) -> Iterator[int]:
    """Answer INFO as a server of another version does, and +OK to everything else; yield the port."""

    def serve(connection: socket.socket) -> None:
        with connection, suppress(ConnectionError):  # the client may leave with an answer unread
            while data := connection.recv(65_536):
                for command in re.findall(rb"^\*\d+\r\n\$\d+\r\n(\w+)", data, re.MULTILINE):
                    info = f"# Server\r\nredis_version:{version}\r\n".encode()
                    is_info = command.upper() == b"INFO"
                    connection.sendall(b"$%d\r\n%s\r\n" % (len(info), info) if is_info else b"+OK\r\n")

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
