"""HTTP: a responder inside the supervisor's loop, for scrapers and probes.  It never blocks and never waits.

GET and HEAD of a few fixed paths; one request per connection; a connection that is slow, talks too much or is
one too many is closed.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kiqcluster.clock import Clock
from kiqcluster.config import parse_listen
from kiqcluster.errors import ExitCode, UsageError

__all__ = ["Connection", "Handler", "Listener", "Report", "Response", "open_listener"]

MOST_CONNECTIONS = 64
LONGEST_REQUEST = 8_192  # bytes
PATIENCE = 10.0  # seconds from accept to the last byte sent
REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class Response:
    """What a path answers."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Mapping[str, str]], Response]  # request headers, lower case → response
Report = Callable[[str, Exception], None]  # told the path and what its handler raised


def open_listener(address: str) -> socket.socket | None:
    """Return a listening socket for HOST:PORT or unix:PATH, None for `off`.

    Raises UsageError: exit 7 for an address in use, exit 2 for one that cannot be used at all.
    """
    place = parse_listen(address)
    if place is None:
        return None
    try:
        sock = _open_unix(place) if isinstance(place, str) else _open_tcp(*place)
        sock.listen(MOST_CONNECTIONS)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = "another process has it, perhaps another supervisor; name another address, or --listen off"
            raise UsageError(f"--listen {address} is in use: {advice}", ExitCode.ADDRESS_IN_USE) from error
        raise UsageError(
            f"--listen {address} cannot be used ({error.strerror or error}); name another address, or --listen off"
        ) from error
    sock.setblocking(False)
    return sock


def _open_tcp(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(where)
    except OSError:
        sock.close()
        raise
    return sock


def _open_unix(path: str) -> socket.socket:
    if Path(path).is_socket() and not _answers(path):
        Path(path).unlink()  # left behind by a supervisor that was killed
    elif Path(path).exists() and not Path(path).is_socket():
        raise FileExistsError(errno.EEXIST, "a file of that name is there, and it is no socket")
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


class Connection:
    """One client: reads a request, writes a response."""

    def __init__(self, sock: socket.socket, routes: Mapping[str, Handler], report: Report, deadline: float) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.deadline = deadline
        self._routes = routes
        self._report = report
        self._incoming = bytearray()
        self._outgoing = b""

    @property
    def is_writing(self) -> bool:
        return bool(self._outgoing)

    def advance(self) -> bool:
        """Read or write what can be; return False when the connection is done."""
        try:
            if not self._outgoing and not self._read():
                return False
            if self._outgoing:
                self._outgoing = self._outgoing[self.socket.send(self._outgoing) :]
                return bool(self._outgoing)
        except BlockingIOError:
            return True
        except OSError:  # the client has gone
            return False
        return True

    def _read(self) -> bool:
        data = self.socket.recv(LONGEST_REQUEST)
        if not data:
            return False
        self._incoming += data
        head, end, _ = bytes(self._incoming).partition(b"\r\n\r\n")
        if end:
            self._outgoing = self._respond(head)
        elif len(self._incoming) > LONGEST_REQUEST:
            self._outgoing = _serialize(Response(400, b"request too long\n", "text/plain"), with_body=True)
        return True

    def _respond(self, head: bytes) -> bytes:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _serialize(Response(400, b"not an HTTP request\n", "text/plain"), with_body=True)
        method, path = words[0], words[1].partition("?")[0]
        if method not in ("GET", "HEAD"):
            response = Response(405, b"GET and HEAD only\n", "text/plain", {"Allow": "GET, HEAD"})
            return _serialize(response, with_body=True)
        handler = self._routes.get(path)
        if handler is None:
            paths = ", ".join(self._routes)
            return _serialize(Response(404, f"try {paths}\n".encode(), "text/plain"), with_body=method == "GET")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        try:
            response = handler(headers)
        except Exception as error:  # noqa: BLE001  # a page that fails must not end the loop that watches the children
            self._report(path, error)
            response = Response(500, b"it failed; the log says how\n", "text/plain")
        return _serialize(response, with_body=method == "GET")


def _serialize(response: Response, *, with_body: bool) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status} {REASONS[response.status]}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (response.body if with_body else b"")


class Listener:
    """The listening socket and its connections."""

    def __init__(self, sock: socket.socket, routes: Mapping[str, Handler], report: Report, clock: Clock) -> None:
        self.socket = sock
        self._routes = routes
        self._report = report
        self._clock = clock
        self.connections: list[Connection] = []

    def accept(self) -> Connection | None:
        """Return a new connection; None when there is none, or one too many (it is closed)."""
        try:
            sock, _ = self.socket.accept()
        except OSError:  # it went away between the loop's select and this
            return None
        if len(self.connections) >= MOST_CONNECTIONS:
            sock.close()
            return None
        connection = Connection(sock, self._routes, self._report, self._clock.monotonic() + PATIENCE)
        self.connections.append(connection)
        return connection

    def overdue(self) -> list[Connection]:
        """Return the connections whose patience has run out."""
        now = self._clock.monotonic()
        return [connection for connection in self.connections if connection.deadline <= now]

    def drop(self, connection: Connection) -> None:
        self.connections.remove(connection)
        connection.socket.close()

    def close(self) -> None:
        """Close everything; in a child this leaves the supervisor's own descriptors alone."""
        for connection in self.connections:
            connection.socket.close()
        self.connections.clear()
        self.socket.close()
