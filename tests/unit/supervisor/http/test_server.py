"""HTTP over a real socketpair: what is answered, and what is cut off."""

from __future__ import annotations

import socket
from collections.abc import Generator, Iterator

import pytest

from kiqcluster.supervisor.http.server import (
    MAX_REQUEST_BYTES,
    Connection,
    Request,
    Response,
    Routes,
    connection_limit,
)
from tests.kit import ManualClock


def hello(request: Request) -> Response:
    return Response(200, f"hello {request.headers.get('x-name', 'nobody')}\n".encode(), "text/plain")


def echo(request: Request) -> Response:
    return Response(200, repr(dict(request.query)).encode(), "text/plain")


def large(request: Request) -> Response:
    return Response(503, b"x" * 2_000_000, headers={"Retry-After": "1"})


def faulty(request: Request) -> Response:
    raise ZeroDivisionError("on purpose")


def slow(request: Request) -> Generator[None, None, Response]:
    yield
    yield
    return Response(200, b"at last", "text/plain")


def faulty_in_the_end(request: Request) -> Generator[None, None, Response]:
    yield
    raise ZeroDivisionError("on purpose")


ROUTES: Routes = {
    "/hello": {"GET": hello},
    "/echo": {"GET": echo, "POST": echo},
    "/large": {"GET": large},
    "/faulty": {"GET": faulty},
    "/slow": {"GET": slow},
    "/late": {"GET": faulty_in_the_end},
    "/order": {"POST": echo},
}


def ignore(path: str, error: Exception) -> None:
    """Hear of a failure that no test looks at."""


class Client:
    """The other end of a connection."""

    def __init__(self) -> None:
        self.socket, server = socket.socketpair()
        self.socket.setblocking(False)
        self.failures: list[tuple[str, str]] = []
        self.clock = ManualClock(100.0)
        self.connection = Connection(
            server, ROUTES, lambda path, error: self.failures.append((path, str(error))), self.clock
        )

    def exchange(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """Send a request and let the connection do its work; return status, headers, body."""
        self.socket.sendall(request)
        data = b""
        while self.connection.advance():
            if self.connection.is_working:
                self.connection.work(self.clock.monotonic() + 1)
            data += self.available()
        self.connection.socket.close()
        while chunk := self.available():
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        return int(status), dict(line.split(": ", 1) for line in lines), body

    def available(self) -> bytes:
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

    def test_a_query_reaches_the_handler_decoded(self, client: Client) -> None:
        body = client.exchange(b"GET /echo?lease=15m&by=Ann%20B+C&x&y=1&y=2 HTTP/1.1\r\n\r\n")[2]

        assert body == b"{'lease': '15m', 'by': 'Ann B C', 'x': '', 'y': '2'}"

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
        ("request_line", "status", "allowed"),
        [
            ("GET /order", 405, "POST"),
            ("HEAD /order", 405, "POST"),
            ("PUT /echo", 405, "GET, HEAD, POST"),
            ("POST /order", 200, ""),
            ("POST /echo", 200, ""),
            ("POST /nowhere", 404, ""),
            ("PUT /nowhere", 405, "GET, HEAD, POST"),
        ],
    )
    def test_every_path_has_its_methods(self, client: Client, request_line: str, status: int, allowed: str) -> None:
        answer = client.exchange(f"{request_line} HTTP/1.1\r\n\r\n".encode())

        assert (answer[0], answer[1].get("Allow", "")) == (status, allowed)

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

    def test_a_head_that_is_too_long_is_refused(self, client: Client) -> None:
        status, _, body = client.exchange(b"GET /hello HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST_BYTES)

        assert (status, body) == (431, b"a request has at most 8192 bytes\n")

    @pytest.mark.parametrize(("length", "status"), [("5", 200), ("0", 200), ("-1", 400), ("x", 400), ("²", 400)])
    def test_a_body_is_read_and_ignored(self, client: Client, length: str, status: int) -> None:
        head = f"POST /echo HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode()

        assert client.exchange(head + b"a b=c"[: 5 if length == "5" else 0])[0] == status

    @pytest.mark.parametrize("length", [MAX_REQUEST_BYTES + 1, 10**30])
    def test_a_body_that_is_too_long_is_refused_before_it_comes(self, client: Client, length: int) -> None:
        assert client.exchange(f"POST /echo HTTP/1.1\r\nContent-Length: {length}\r\n\r\n".encode())[0] == 413

    def test_the_answer_waits_for_the_end_of_the_body(self, client: Client) -> None:
        client.socket.sendall(b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\nab")
        assert client.connection.advance() is True
        assert not client.connection.is_writing

        assert client.exchange(b"c")[0] == 200

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


class TestWork:
    """Answers that take longer than a moment."""

    def test_it_goes_on_in_steps_until_its_time_is_over(self, client: Client) -> None:
        client.socket.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert client.connection.advance() is True
        assert client.connection.is_working

        assert client.connection.work(client.clock.monotonic()) is False
        assert client.connection.advance() is True
        assert not client.connection.is_writing
        assert client.connection.work(client.clock.monotonic() + 1) is True
        assert client.exchange(b"")[::2] == (200, b"at last")

    def test_a_failure_is_reported_and_answered(self, client: Client) -> None:
        assert client.exchange(b"GET /late HTTP/1.1\r\n\r\n")[0] == 500
        assert client.failures == [("/late", "on purpose")]

    def test_a_head_has_the_length_and_no_body(self, client: Client) -> None:
        status, headers, body = client.exchange(b"HEAD /slow HTTP/1.1\r\n\r\n")

        assert (status, headers["Content-Length"], body) == (200, "7", b"")


class TestExpiry:
    def test_who_has_begun_a_request_is_told(self, client: Client) -> None:
        client.socket.sendall(b"GET /hel")
        client.connection.advance()
        client.connection.expire()

        assert client.available().startswith(b"HTTP/1.1 408 Request Timeout\r\n")

    def test_who_has_said_nothing_is_told_nothing(self, client: Client) -> None:
        client.connection.advance()
        client.connection.expire()

        assert client.available() == b""

    def test_who_reads_too_slowly_gets_no_second_answer(self, client: Client) -> None:
        client.socket.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        client.connection.advance()
        client.connection.expire()

        assert b"408" not in client.available()


@pytest.mark.parametrize(("max_files", "limit"), [(-1, 64), (1_048_576, 64), (256, 64), (70, 17), (3, 1)])
def test_connections_leave_files_for_the_supervisor_where_there_are_few(max_files: int, limit: int) -> None:
    assert connection_limit(max_files) == limit
