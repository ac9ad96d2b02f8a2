"""kiqctl by the control socket: one supervisor, no Redis; a fake one answers."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.control import socket_transport
from kiqcluster.control.control_messages import new_message
from kiqcluster.control.socket_transport import SocketTransport
from kiqcluster.errors import KiqError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.durations import parse_duration
from tests.fake_supervisor import FakeControlSocket, fake_control_socket
from tests.kit import free_port, wait_until
from tests.process.kiqctl import Kiqctl


@pytest.fixture
def kiqctl() -> Iterator[Kiqctl]:
    """Run kiqctl where no Redis is."""
    running = Kiqctl(f"redis://127.0.0.1:{free_port()}/0")
    yield running
    running.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[FakeControlSocket]:
    with fake_control_socket(tmp_path / "control.sock") as supervisor:
        yield supervisor


def test_quiet_is_a_post_with_lease_and_name(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    done = kiqctl("quiet", "--lease", "15m", "--socket", str(supervisor.path))

    assert done.returncode == 0, done.stderr
    method, path, query = supervisor.asked[0]
    assert (method, path, parse_duration(query["lease"])) == ("POST", "/quiet", 900)
    assert query["by"].startswith("kiqctl@")
    assert "15m left" in done.stdout


@pytest.mark.parametrize(("text", "seconds"), [("0", 0), ("0.5", 0.5), ("30d", 2_592_000), ("1157d", 99_964_800)])
def test_every_lease_is_sent_in_a_form_that_a_supervisor_reads(
    kiqctl: Kiqctl, supervisor: FakeControlSocket, text: str, seconds: float
) -> None:
    kiqctl("quiet", "--lease", text, "--socket", str(supervisor.path))

    assert parse_duration(supervisor.asked[0][2]["lease"]) == seconds


def test_without_a_lease_the_supervisors_own_holds(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    assert kiqctl("quiet", "--socket", str(supervisor.path)).returncode == 0

    assert "lease" not in supervisor.asked[0][2]


@pytest.mark.parametrize("action", ["resume", "reload", "roll"])
def test_the_others_are_posts_too(kiqctl: Kiqctl, supervisor: FakeControlSocket, action: str) -> None:
    assert kiqctl(action, "--socket", str(supervisor.path)).returncode == 0

    assert supervisor.asked[0][:2] == ("POST", f"/{action}")


def test_a_refusal_is_an_error_with_its_reason(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    supervisor.refusal = "the cluster is stopping"

    done = kiqctl("roll", "--wait", "--json", "--socket", str(supervisor.path))

    assert done.returncode == 1
    (cluster,) = json.loads(done.stdout)["clusters"]
    assert cluster["error"] == "the cluster is stopping"


def test_with_wait_quiet_ends_when_nothing_runs(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    supervisor.set_slots(busy=2, last_beat_ago=0.0)

    running = kiqctl.start("quiet", "--wait", "--socket", str(supervisor.path))
    kiqctl.wait_printed(running, "4 jobs still run")
    supervisor.set_slots(busy=0)

    assert kiqctl.end(running).returncode == 0


def test_beats_from_before_the_quiet_do_not_count(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    """A job may have begun since: only a beat from afterwards knows."""
    supervisor.set_slots(busy=0, last_beat_ago=60.0)

    running = kiqctl.start("quiet", "--wait", "--socket", str(supervisor.path))
    supervisor.wait_asked("GET", "/status", times=5)
    assert running.process.poll() is None
    supervisor.set_slots(last_beat_ago=0.0)

    assert kiqctl.end(running).returncode == 0


def test_with_wait_roll_ends_with_the_roll_of_that_id(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    supervisor.document["roll"] = {"id": "earlier", "state": "done", "done": 2, "of": 2, "error": ""}

    running = kiqctl.start("roll", "--wait", "--socket", str(supervisor.path))
    wait_until(lambda: supervisor.document["roll"]["state"] == "rolling", "it to roll")
    supervisor.document["roll"] = {**supervisor.document["roll"], "state": "done", "done": 2}

    assert kiqctl.end(running).returncode == 0


def test_a_roll_that_fails_is_an_error(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    running = kiqctl.start("roll", "--wait", "--socket", str(supervisor.path))
    wait_until(lambda: supervisor.document["roll"], "it to roll")
    supervisor.document["roll"] = {**supervisor.document["roll"], "state": "failed", "error": "it did not boot"}
    done = kiqctl.end(running)

    assert done.returncode == 1
    assert "it did not boot" in done.stderr


def test_with_wait_reload_ends_with_the_reload_of_that_id(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    supervisor.document["reload"] = {"id": "earlier", "state": "failed", "error": "no TOML", "ended_at": 1.0}

    running = kiqctl.start("reload", "--wait", "--socket", str(supervisor.path))
    wait_until(lambda: supervisor.document["reload"]["state"] == "reloading", "it to reload")
    supervisor.document["reload"] = {**supervisor.document["reload"], "state": "failed", "error": "no module appx"}
    done = kiqctl.end(running)

    assert done.returncode == 1
    assert "no module appx" in done.stderr


def test_a_resume_says_whose_quiet_it_may_end(supervisor: FakeControlSocket) -> None:
    SocketTransport(str(supervisor.path)).send(new_message("resume", name="deploy", whose="deploy"))

    assert supervisor.asked[0][2]["whose"] == "deploy"


def test_an_order_that_is_not_answered_may_be_done_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_transport, "REQUEST_TIMEOUT_SECONDS", 0.2)
    path = tmp_path / "frozen.sock"
    with socket.socket(socket.AF_UNIX) as frozen:  # as the supervisor's, while it is stopped
        frozen.bind(str(path))
        frozen.listen()

        with pytest.raises(KiqError, match="may still be done") as caught:
            SocketTransport(str(path)).send(new_message("quiet"))
        with pytest.raises(KiqError, match="did not answer within") as statuses:
            SocketTransport(str(path)).statuses()

    assert f"kiqctl ps --socket {path}" in str(caught.value)
    assert "may be" not in str(statuses.value)


def test_ps_shows_what_status_says(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    supervisor.set_slots(busy=2)
    supervisor.document["slots"][1]["pid"] = None  # it waits for its next try

    (shown,) = json.loads(kiqctl("ps", "--json", "--socket", str(supervisor.path)).stdout)["clusters"]

    assert (shown["name"], shown["slots"], shown["busy"]) == (supervisor.document["supervisor"], 2, 2)
    assert [worker["pid"] for worker in shown["workers"]] == [101]
    assert shown["workers"][0]["queues"] == ["default"]


@pytest.mark.parametrize("words", [["quiet"], ["ps"], ["roll", "--wait"]])
def test_nobody_at_that_path_is_an_error(kiqctl: Kiqctl, tmp_path: Path, words: list[str]) -> None:
    left_behind = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as once:
        once.bind(str(left_behind))

    for path in (left_behind, tmp_path / "missing.sock"):
        done = kiqctl(*words, "--socket", str(path))
        assert done.returncode == 1
        assert str(path) in done.stderr
        assert "Traceback" not in done.stderr


def test_a_path_that_is_too_long_for_a_socket_is_exit_2(kiqctl: Kiqctl, tmp_path: Path) -> None:
    done = kiqctl("quiet", "--socket", str(tmp_path / ("x" * 200)))

    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_what_listens_there_may_be_something_else(kiqctl: Kiqctl, tmp_path: Path) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        running = kiqctl.start("quiet", "--socket", str(path))
        client, _ = other.accept()
        client.recv(65_536)
        client.sendall(b"-ERR unknown command\r\n")
        client.close()
        done = kiqctl.end(running)

    assert done.returncode == 1
    assert "is not the socket of a supervisor" in done.stderr
    assert "Traceback" not in done.stderr


def test_busy_shows_what_runs_at_this_moment(kiqctl: Kiqctl, supervisor: FakeControlSocket) -> None:
    since = SystemClock.now() - 90
    supervisor.set_slots(running=[{"jid": "b4a5", "class": "SendInvoice", "since": since}])
    place = ("--socket", str(supervisor.path))

    output = kiqctl("busy", *place).stdout
    assert "SendInvoice" in output
    assert "2 jobs in 2 processes" in output
    document = json.loads(kiqctl("busy", "--json", *place).stdout)
    assert document["busy"] == 2
    assert (document["jobs"][0]["jid"], document["jobs"][0]["class"], document["jobs"][0]["age"]) == (
        "b4a5",
        "SendInvoice",
        0.0,
    )
    assert document["jobs"][0]["seconds"] >= 90
    assert json.loads(kiqctl("busy", "--class", "Other", "--json", *place).stdout)["busy"] == 0
    assert kiqctl("busy", "--queue", "mailers", *place).returncode == 2
