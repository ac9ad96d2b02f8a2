"""HTTP over a real socketpair: what is answered, and what is cut off."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.supervisor.http import (
    LONGEST_REQUEST,
    MOST_CONNECTIONS,
    PATIENCE,
    Connection,
    Listener,
    Response,
    open_listener,
)
from tests.kit import ManualClock


def hello(headers: Mapping[str, str]) -> Response:
    return Response(200, f"hello {headers.get('x-name', 'nobody')}\n".encode(), "text/plain")


def large(headers: Mapping[str, str]) -> Response:
    return Response(503, b"x" * 2_000_000, headers={"Retry-After": "1"})


def faulty(headers: Mapping[str, str]) -> Response:
    raise ZeroDivisionError("on purpose")


ROUTES = {"/hello": hello, "/large": large, "/faulty": faulty}


def ignore(path: str, error: Exception) -> None:
    """Hear of a failure that no test looks at."""


class Client:
    """The other end of a connection."""

    def __init__(self) -> None:
        self.socket, server = socket.socketpair()
        self.socket.setblocking(False)
        self.failures: list[tuple[str, str]] = []
        self.connection = Connection(
            server, ROUTES, lambda path, error: self.failures.append((path, str(error))), deadline=10.0
        )

    def exchange(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request and let the connection do its work; return status, headers, body."""
        self.socket.sendall(request)
        data = b""
        while self.connection.advance():
            data += self._available()
        self.connection.socket.close()
        while chunk := self._available():
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        return int(status), dict(line.split(": ", 1) for line in lines), body

    def _available(self) -> bytes:
        try:
            return self.socket.recv(1 << 20)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self.socket.close()
        self.connection.socket.close()


@pytest.fixture
def client() -> Iterator[Client]:
    """A client that has just connected."""
    client = Client()
    yield client
    client.close()


class TestRequests:
    @pytest.mark.parametrize("version", ["1.0", "1.1"])
    def test_a_get_is_answered_and_the_connection_closed(self, client: Client, version: str) -> None:
        status, headers, body = client.exchange(f"GET /hello HTTP/{version}\r\nHost: x\r\n\r\n".encode())

        assert (status, body) == (200, b"hello nobody\n")
        assert (headers["Content-Type"], headers["Content-Length"]) == ("text/plain", "13")
        assert headers["Connection"] == "close"

    def test_a_head_is_a_get_without_its_body(self, client: Client) -> None:
        status, headers, body = client.exchange(b"HEAD /hello HTTP/1.1\r\n\r\n")

        assert (status, headers["Content-Length"], body) == (200, "13", b"")

    def test_headers_reach_the_handler_in_lower_case(self, client: Client) -> None:
        assert client.exchange(b"GET /hello HTTP/1.1\r\nX-NAME:  Ann \r\n\r\n")[2] == b"hello Ann\n"

    def test_a_query_does_not_matter(self, client: Client) -> None:
        assert client.exchange(b"GET /hello?x=1&y=? HTTP/1.1\r\n\r\n")[0] == 200

    @pytest.mark.parametrize("path", ["/", "/hello/", "/HELLO", "/%2e", "hello", "*"])
    def test_another_path_is_not_found_and_told_which_there_are(self, client: Client, path: str) -> None:
        status, _, body = client.exchange(f"GET {path} HTTP/1.1\r\n\r\n".encode())

        assert status == 404
        assert b"/hello" in body

    def test_a_head_of_another_path_has_no_body_either(self, client: Client) -> None:
        assert client.exchange(b"HEAD /none HTTP/1.1\r\n\r\n")[::2] == (404, b"")

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "get", "TRACE"])
    def test_another_method_is_not_allowed(self, client: Client, method: str) -> None:
        status, headers, _ = client.exchange(f"{method} /hello HTTP/1.1\r\n\r\n".encode())

        assert (status, headers["Allow"]) == (405, "GET, HEAD")

    @pytest.mark.parametrize(
        "request_line",
        [
            b"",
            b"GET",
            b"GET /hello",
            b"GET /hello FTP/1",
            b"GET  /hello HTTP/1.1",
            b"\xff\x00\x01",
            b"HTTP/1.1 200 OK X",
            b"PRI * HTTP/2.0",
            b"\x16\x03\x01\x02",
        ],
    )
    def test_what_is_no_http_is_a_bad_request(self, client: Client, request_line: bytes) -> None:
        assert client.exchange(request_line + b"\r\n\r\n")[0] == 400

    def test_a_request_that_is_too_long_is_one_too(self, client: Client) -> None:
        status, _, body = client.exchange(b"GET /hello HTTP/1.1\r\nX: " + b"x" * LONGEST_REQUEST)

        assert (status, body) == (400, b"request too long\n")

    def test_a_response_has_its_status_and_headers(self, client: Client) -> None:
        status, headers, body = client.exchange(b"GET /large HTTP/1.1\r\n\r\n")

        assert (status, headers["Retry-After"], len(body)) == (503, "1", 2_000_000)

    def test_a_handler_that_fails_is_reported_and_answered(self, client: Client) -> None:
        status, _, body = client.exchange(b"GET /faulty?x=1 HTTP/1.1\r\n\r\n")

        assert status == 500
        assert b"on purpose" not in body
        assert client.failures == [("/faulty", "on purpose")]


class TestPace:
    def test_a_request_may_come_byte_by_byte(self, client: Client) -> None:
        request = b"GET /hello HTTP/1.1\r\n\r\n"
        for byte in request[:-1]:
            client.socket.send(bytes([byte]))
            assert client.connection.advance() is True
            assert not client.connection.is_writing

        assert client.exchange(request[-1:])[0] == 200

    def test_with_nothing_to_read_it_waits(self, client: Client) -> None:
        assert client.connection.advance() is True
        assert not client.connection.is_writing

    def test_a_client_that_does_not_read_blocks_nobody(self, client: Client) -> None:
        client.socket.sendall(b"GET /large HTTP/1.1\r\n\r\n")

        for _ in range(5):
            assert client.connection.advance() is True
        assert client.connection.is_writing

    @pytest.mark.parametrize("sent", [b"", b"GET /hel"])
    def test_a_client_that_leaves_early_is_done(self, client: Client, sent: bytes) -> None:
        client.socket.sendall(sent)
        client.connection.advance()
        client.socket.close()

        assert client.connection.advance() is False

    def test_a_client_that_leaves_during_the_response_is_done(self, client: Client) -> None:
        client.socket.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert client.connection.advance() is True
        client.socket.close()

        assert client.connection.advance() is False


class TestListener:
    @pytest.fixture
    def listener(self, tmp_path: Path) -> Iterator[Listener]:
        sock = open_listener(f"unix:{tmp_path / 'http.sock'}")
        assert sock is not None
        listener = Listener(sock, ROUTES, ignore, ManualClock(100.0))
        yield listener
        listener.close()

    def connect(self, listener: Listener) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(1)
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
        with first, pytest.raises(UsageError) as caught:
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

    def test_one_too_many_is_closed_at_once(self, listener: Listener) -> None:
        clients = [self.connect(listener) for _ in range(MOST_CONNECTIONS)]
        assert all(listener.accept() is not None for _ in clients)

        extra = self.connect(listener)
        assert listener.accept() is None
        assert extra.recv(1) == b""

        listener.drop(listener.connections[0])
        next_one = self.connect(listener)
        assert listener.accept() is not None
        for sock in (*clients, extra, next_one):
            sock.close()

    def test_a_slow_client_is_overdue_when_its_patience_has_run_out(self, tmp_path: Path) -> None:
        clock = ManualClock(100.0)
        sock = open_listener(f"unix:{tmp_path / 'slow.sock'}")
        assert sock is not None
        listener = Listener(sock, ROUTES, ignore, clock)
        with self.connect(listener):
            connection = listener.accept()

            clock.time += PATIENCE - 0.1
            assert listener.overdue() == []
            clock.time += 0.1
            assert listener.overdue() == [connection]
        listener.close()
