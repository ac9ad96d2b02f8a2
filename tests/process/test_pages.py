"""/startup, /status and the control socket of a real cluster, and what a crowd of idle clients can do to it."""

from __future__ import annotations

import os
import signal
import socket
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.process.version import VERSION
from kiqcluster.sidekiq import ruby_json
from kiqcluster.supervisor.http.server import MAX_CONNECTIONS
from tests.kit import connect, http_get, wait_until
from tests.proc import count_descriptors
from tests.stage import Stage, pid_of

IDLE_CLIENTS = 300


def status(where: int | Path) -> Any:
    return ruby_json.decode(http_get(where, "/status")[2])


def order(where: Path, path: str) -> tuple[int, Any]:
    """Give an order; return status and answer."""
    code, _, body = http_get(where, path, "POST")
    return code, ruby_json.decode(body)


@pytest.fixture
def control(tmp_path: Path) -> Path:
    """Where a test's control socket is, if its cluster has that pidfile."""
    return tmp_path / "kiq.pid.sock"


@pytest.fixture
def pidfile(tmp_path: Path) -> str:
    return f"--pidfile={tmp_path / 'kiq.pid'}"


# pages


def test_a_process_that_serves_is_said_to_reach_redis_from_its_first_word_on(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1")

    def published() -> Any:
        fields = [
            stage.store.call("HGET", identity, "kiq_cluster") for identity in stage.store.call("SMEMBERS", "processes")
        ]
        rows = [row for field in fields if field for row in ruby_json.decode(field)["children"]]
        return [row for row in rows if row["state"] == "ready"]

    (row,) = wait_until(published, "the process to be published as ready")

    assert row["redis"] is True


def test_startup_is_over_once_every_slot_was_ready_and_does_not_come_again(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, pathlib, time
        gate = "gate" + os.environ.get("KIQ_SLOT", "")
        while "KIQ_SLOT" in os.environ and not pathlib.Path(gate).exists():
            time.sleep(0.01)
    """)
    cluster = stage.run_cluster("default", "other", "-c", "1", "--directory", str(tmp_path), app=app)
    (tmp_path / "gate0").touch()
    cluster.wait_for("child_ready", slot=0)
    code, _, body = http_get(cluster.port, "/startup")
    assert (code, ruby_json.decode(body)) == (503, {"status": "starting", "reason": "slot 1 is in booting"})

    (tmp_path / "gate1").touch()
    cluster.wait_for("child_ready", slot=1)
    assert http_get(cluster.port, "/startup")[0] == 200
    (tmp_path / "gate1").unlink()
    os.kill(cluster.pids()[1], signal.SIGKILL)
    cluster.wait_for("child_started", slot=1, count=2)
    assert cluster.readiness() == (503, "slot 1 is in booting")
    assert http_get(cluster.port, "/startup")[0] == 200
    (tmp_path / "gate1").touch()


def test_a_quorum_is_enough_to_be_ready_and_to_have_started(stage: Stage, tmp_path: Path) -> None:
    app = stage.write_application("""
        import os, pathlib, time
        while os.environ.get("KIQ_SLOT") == "1" and not pathlib.Path("gate").exists():
            time.sleep(0.01)
    """)
    cluster = stage.run_cluster(
        "default", "other", "-c", "1", "--directory", str(tmp_path), app=app, KIQ_HEALTH_READY_QUORUM="1"
    )
    cluster.wait_for("child_ready", slot=0)

    wait_until(lambda: cluster.readiness() == (200, ""), "readiness by one slot of two")
    assert http_get(cluster.port, "/startup")[0] == 200
    cluster.signal(signal.SIGTSTP)
    wait_until(lambda: cluster.readiness()[0] == 503, "quiet to be told")
    assert cluster.readiness()[1] == "0 of 1 slots are ready: slot 0 is quiet"
    (tmp_path / "gate").touch()


def test_status_tells_what_each_slot_is_and_does(stage: Stage) -> None:
    cluster = stage.run_cluster("default=2,low", "other", "-c", "2")
    pids = stage.occupy(cluster, 2)
    wait_until(lambda: status(cluster.port)["slots"][0]["busy"] == 1, "a beat of the slot that runs a job")
    wait_until(lambda: cluster.readiness() == (200, ""), "a beat of each slot")

    document = status(cluster.port)

    assert (document["version"], document["pid"], document["state"]) == (VERSION, cluster.pid, "running")
    assert (document["ready"], document["reason"], document["quiet"], document["roll"]) == (True, None, None, None)
    first, second = document["slots"]
    assert (first["pid"], second["pid"]) == (pids[0], pids[1])
    assert pid_of(first["identity"]) == pids[0]
    assert (first["queues"], first["mode"], first["concurrency"]) == ({"default": 2, "low": 1}, "weighted", 2)
    assert (first["state"], first["busy"], second["busy"], first["last_death"]) == ("ready", 1, 0, None)
    assert first["rss"] > 1e6
    assert 0 <= first["last_beat_ago"] <= first["uptime"]
    stage.release()


def test_status_tells_how_a_child_died_and_what_it_ran(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    pid = stage.occupy(cluster)[0]

    os.kill(pid, signal.SIGKILL)
    cluster.wait_for("child_ready", count=2)

    slot = status(cluster.port)["slots"][0]
    death = slot["last_death"]
    assert slot["restarts"] == {"killed": 1}
    assert (death["how"], death["reason"], len(death["running"])) == ("was killed by SIGKILL", "killed", 1)
    assert death["uptime"] > 0
    stage.release()


# the control socket


def test_the_control_socket_is_beside_the_pidfile_and_its_owners_alone(
    stage: Stage, pidfile: str, control: Path
) -> None:
    cluster = stage.run_cluster("default", "-c", "1", pidfile, "--listen=off")
    cluster.wait_ready()

    assert stat.S_IMODE(control.stat().st_mode) == 0o600
    assert cluster.wait_for("supervisor_started")["control"] == str(control)
    for path in ("/liveness", "/startup", "/status", "/metrics"):
        assert http_get(control, path)[0] == 200
    wait_until(lambda: http_get(control, "/readiness")[0] == 200, "readiness")
    assert cluster.stop() == 0
    assert not control.exists()


def test_one_that_a_killed_supervisor_left_behind_is_taken_over(stage: Stage, pidfile: str, control: Path) -> None:
    first = stage.run_cluster("default", "-c", "1", pidfile, "--listen=off")
    first.wait_ready()
    first.process.kill()
    first.wait()
    assert control.exists()

    second = stage.run_cluster("default", "-c", "1", pidfile, "--listen=off")
    second.wait_ready()

    assert status(control)["pid"] == second.pid


def test_a_setting_says_where_it_is_and_a_place_that_cannot_be_is_refused(stage: Stage, tmp_path: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", KIQ_CONTROL=str(tmp_path / "orders"))
    cluster.wait_ready()
    assert status(tmp_path / "orders")["pid"] == cluster.pid

    assert stage.run_cluster("default", KIQ_CONTROL=str(tmp_path / "nowhere" / "orders")).wait() == 2
    assert stage.run_cluster("default", KIQ_CONTROL=str(tmp_path / "orders")).wait() == 7


def test_without_a_pidfile_it_is_in_the_users_own_folder(stage: Stage, tmp_path: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", XDG_RUNTIME_DIR=str(tmp_path))
    cluster.wait_ready()

    assert status(tmp_path / f"kiqcluster-{cluster.pid}.sock")["pid"] == cluster.pid
    assert cluster.stop() == 0
    assert list(tmp_path.glob("*.sock")) == []


def test_where_nobody_named_it_a_cluster_does_without(stage: Stage, tmp_path: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", XDG_RUNTIME_DIR=str(tmp_path / "nowhere"))
    cluster.wait_ready()

    assert len(cluster.seen("control_off")) == 1
    assert cluster.wait_for("supervisor_started")["control"].startswith("none")
    assert http_get(cluster.port, "/liveness")[0] == 200


def test_a_quiet_by_order_lasts_as_long_as_it_says_and_ends_by_order(stage: Stage, pidfile: str, control: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", pidfile)
    cluster.wait_ready()

    code, document = order(control, "/quiet?lease=15m&by=deploy")

    assert (code, document["quiet"]["by"]) == (200, "deploy")
    assert 890 < document["quiet"]["lease_remaining"] <= 900
    wait_until(lambda: status(control)["slots"][0]["quiet"], "the slot to be quiet")
    stage.push("record", "a")
    assert cluster.metric("kiqcluster_quiet") == 1
    wait_until(lambda: stage.queued_args() == ["a"], "the job to be in its queue, if it woke the process")
    code, document = order(control, "/resume?by=deploy")
    assert (code, document["quiet"]) == (200, None)
    stage.wait_noted("ran a")


def test_a_lease_that_ends_lets_the_queue_move_and_is_counted(stage: Stage, pidfile: str, control: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", pidfile)
    cluster.wait_ready()

    assert order(control, "/quiet?lease=1s&by=deploy")[0] == 200
    wait_until(lambda: cluster.metric("kiqcluster_quiet_lease_expirations_total") == 1, "the lease to end")
    stage.push("record", "a")
    stage.wait_noted("ran a")

    assert cluster.metric("kiqcluster_quiet") == 0


def test_a_stop_by_order_drains_and_meanwhile_nothing_else_can_be_done(
    stage: Stage, pidfile: str, control: Path
) -> None:
    cluster = stage.run_cluster("default", "-c", "1", pidfile)
    stage.occupy(cluster)

    code, document = order(control, "/stop")
    assert (code, document["state"]) == (202, "stopping")
    refused, answer = order(control, "/quiet")

    assert refused == 409
    assert "stopping" in answer["error"]
    stage.release()
    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]


def test_a_lease_that_is_none_changes_nothing(stage: Stage, pidfile: str, control: Path) -> None:
    stage.run_cluster("default", "-c", "1", pidfile).wait_ready()

    code, answer = order(control, "/quiet?lease=soon")

    assert (code, "90s" in answer["error"]) == (400, True)
    assert status(control)["quiet"] is None


def test_orders_are_taken_on_the_control_socket_only(stage: Stage, pidfile: str, control: Path) -> None:
    cluster = stage.run_cluster("default", "-c", "1", pidfile)
    wait_until(lambda: control.exists(), "the control socket")

    for action in ("quiet", "resume", "roll", "reload", "stop", "dump"):
        assert http_get(cluster.port, f"/{action}", "POST")[::2] == (405, b"GET, HEAD only\n"), action
        assert http_get(control, f"/{action}")[0] == 405, action
    assert status(control)["quiet"] is None


def test_workers_hold_none_of_the_sockets(stage: Stage, pidfile: str, control: Path) -> None:
    """A worker that outlives its supervisor must not keep anybody waiting at a socket that nobody answers."""
    cluster = stage.run_cluster("default", "-c", "1", pidfile)
    stage.occupy(cluster)
    cluster.process.kill()
    cluster.wait()

    for where in (cluster.port, control):
        with pytest.raises(ConnectionRefusedError):
            http_get(where, "/liveness")
    stage.release()


# crowds


def test_a_client_that_is_heard_and_closed_in_the_same_turn_ends_nothing(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    before = count_descriptors(cluster.pid)

    with ExitStack() as crowd:
        clients = [crowd.enter_context(connect(cluster.port)) for _ in range(MAX_CONNECTIONS)]
        wait_until(lambda: count_descriptors(cluster.pid) >= before + MAX_CONNECTIONS, "all of them to be accepted")
        cluster.signal(signal.SIGSTOP)
        for _ in range(MAX_CONNECTIONS // 2):  # each takes the place of one that has been idle for longest
            crowd.enter_context(connect(cluster.port))
        for client in clients:
            client.sendall(b"GET /met")
        cluster.signal(signal.SIGCONT)

        assert http_get(cluster.port, "/liveness")[0] == 200
        stage.push("record", "a")
        stage.wait_noted("ran a")

    assert cluster.stop() == 0


@pytest.mark.quiet
def test_hundreds_of_clients_that_only_connect_keep_no_scraper_out(stage: Stage) -> None:
    """They hold 64 sockets at most, and the loop turns; slack is for other work of the machine."""
    cluster = stage.run_cluster("default", "-c", "1")
    cluster.wait_ready()
    before = count_descriptors(cluster.pid)

    with ExitStack() as crowd:
        for number in range(IDLE_CLIENTS):
            sock = crowd.enter_context(socket.create_connection(("127.0.0.1", cluster.port), 5))
            if number % 2:
                sock.sendall(b"GET /met")
            if number % 100 == 50:
                assert http_get(cluster.port, "/metrics")[0] == 200
                assert count_descriptors(cluster.pid) <= before + MAX_CONNECTIONS + 1

        assert http_get(cluster.port, "/liveness")[0] == 200
        assert cluster.metric("kiqcluster_supervisor_longest_turn_seconds") < 0.5
        stage.push("record", "a")
        stage.wait_noted("ran a")
