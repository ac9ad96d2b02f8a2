"""Listeners: addresses that can be used or not, files that are left behind, and who goes when there are too many."""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.supervisor.http.server import (
    MAX_CONNECTIONS,
    REQUEST_TIMEOUT_SECONDS,
    Listener,
    Request,
    Response,
    Routes,
    open_listener,
)
from tests.kit import TIMEOUT_SECONDS, ManualClock


def large(request: Request) -> Response:
    return Response(200, b"x" * 2_000_000)


def ignore(path: str, error: Exception) -> None:
    """Hear of a failure that no test looks at."""


ROUTES: Routes = {"/large": {"GET": large}}


class TestListener:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock(100.0)

    @pytest.fixture
    def listener(self, tmp_path: Path, clock: ManualClock) -> Iterator[Listener]:
        sock = open_listener(f"unix:{tmp_path / 'http.sock'}")
        assert sock is not None
        listener = Listener(sock, ROUTES, ignore, clock)
        yield listener
        listener.close()

    def connect(self, listener: Listener) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(TIMEOUT_SECONDS)
        sock.connect(listener.socket.getsockname())
        return sock

    def test_off_is_no_listener(self) -> None:
        assert open_listener("off") is None

    @pytest.mark.parametrize("address", ["", "8082", "host", "host:", "host:http", "host:-1", "host:65536", ":"])
    def test_an_address_that_is_none_is_a_usage_error(self, address: str) -> None:
        with pytest.raises(UsageError) as caught:
            open_listener(address)

        assert caught.value.exit_code == ExitCode.USAGE

    def test_an_address_in_use_has_a_code_of_its_own(self, listener: Listener) -> None:
        with pytest.raises(UsageError) as caught:
            open_listener(f"unix:{listener.socket.getsockname()}")

        assert caught.value.exit_code == ExitCode.ADDRESS_IN_USE

    def test_a_port_in_use_too(self) -> None:
        first = open_listener("127.0.0.1:0")
        assert first is not None
        with (
            first,
            pytest.raises(UsageError, match=r"write another port, for example --listen 127\.0\.0\.1:\d+, or") as caught,
        ):
            open_listener(f"127.0.0.1:{first.getsockname()[1]}")

        assert caught.value.exit_code == ExitCode.ADDRESS_IN_USE

    @pytest.mark.parametrize(
        ("address", "word"),
        [
            ("192.0.2.1:0", "assign"),
            ("unix:/nonexistent/http.sock", "No such file"),
            (f"unix:/tmp/{'x' * 200}", "too long"),
        ],
    )
    def test_what_nobody_uses_and_nobody_can_has_the_code_of_usage(self, address: str, word: str) -> None:
        with pytest.raises(UsageError, match=word) as caught:
            open_listener(address)

        assert caught.value.exit_code == ExitCode.USAGE

    def test_a_socket_left_behind_is_taken_over(self, tmp_path: Path) -> None:
        left_behind = socket.socket(socket.AF_UNIX)
        left_behind.bind(str(tmp_path / "http.sock"))
        left_behind.close()

        sock = open_listener(f"unix:{tmp_path / 'http.sock'}")

        assert sock is not None
        sock.close()

    def test_a_file_that_is_no_socket_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "http.sock").write_text("precious")

        with pytest.raises(UsageError) as caught:
            open_listener(f"unix:{tmp_path / 'http.sock'}")

        assert caught.value.exit_code == ExitCode.USAGE
        assert (tmp_path / "http.sock").read_text() == "precious"

    def test_nobody_there_is_no_connection(self, listener: Listener) -> None:
        assert listener.accept() is None

    def test_nobody_is_surplus_while_there_is_room(self, listener: Listener) -> None:
        clients = [self.connect(listener) for _ in range(MAX_CONNECTIONS)]
        assert all(listener.accept() is not None for _ in clients)

        assert listener.connection_to_drop() is None
        for sock in clients:
            sock.close()

    def test_of_one_too_many_the_one_that_is_idle_for_longest_goes(
        self, listener: Listener, clock: ManualClock
    ) -> None:
        clients = [self.connect(listener) for _ in range(MAX_CONNECTIONS + 1)]
        clients[0].sendall(b"GET /large HTTP/1.1\r\n\r\n")  # it has asked
        connections = []
        for _ in clients:
            connection = listener.accept()
            assert connection is not None
            connection.advance()
            connections.append(connection)
            clock.time += 0.01
        clients[1].sendall(b"GET /l")  # it says something
        connections[1].advance()

        assert listener.connection_to_drop() is connections[2]
        for sock in clients:
            sock.close()

    def test_the_newest_is_never_surplus(self, listener: Listener, clock: ManualClock) -> None:
        clients = [self.connect(listener) for _ in range(MAX_CONNECTIONS + 1)]
        connections = []
        for sock in clients:
            if sock is not clients[-1]:
                sock.sendall(b"GET /large HTTP/1.1\r\n\r\n")
            connection = listener.accept()
            assert connection is not None
            connections.append(connection)
            if sock is not clients[-1]:
                connection.advance()
            clock.time += 0.01

        assert listener.connection_to_drop() is connections[0]
        for sock in clients:
            sock.close()

    def test_a_control_socket_is_its_owners_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "control.sock"
        sock = open_listener(f"unix:{path}", is_control=True)

        assert sock is not None
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        sock.close()

    def test_a_listener_removes_its_file_and_no_other(self, listener: Listener, tmp_path: Path) -> None:
        path = tmp_path / "http.sock"
        path.unlink()
        with socket.socket(socket.AF_UNIX) as another:
            another.bind(str(path))
            listener.remove()
            assert path.exists()

        path.unlink()
        sock = open_listener(f"unix:{path}")
        assert sock is not None
        ours = Listener(sock, ROUTES, ignore, ManualClock())
        ours.close()
        assert path.exists()
        ours.remove()
        assert not path.exists()

    def test_a_slow_client_is_overdue_when_its_patience_has_run_out(self, tmp_path: Path) -> None:
        clock = ManualClock(100.0)
        sock = open_listener(f"unix:{tmp_path / 'slow.sock'}")
        assert sock is not None
        listener = Listener(sock, ROUTES, ignore, clock)
        with self.connect(listener):
            connection = listener.accept()

            clock.time += REQUEST_TIMEOUT_SECONDS - 0.1
            assert listener.overdue() == []
            clock.time += 0.1
            assert listener.overdue() == [connection]
        listener.close()
