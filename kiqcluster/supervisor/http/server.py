"""HTTP: a responder inside the supervisor's loop, for scrapers, probes and kiqctl.  It never blocks and never waits.

1. read     a request, within REQUEST_TIMEOUT_SECONDS and MAX_REQUEST_BYTES
2. work     on the answer, where that takes longer than a moment: in steps, whenever the loop has time
3. write    the answer, and close: one request per connection

At most MAX_CONNECTIONS are open, and fewer where `ulimit -n` is low.  With one more, the one that has been idle for
longest is closed: clients that only connect keep no others out.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl

from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.process.clock import Clock
from kiqcluster.process.config import listen_error, parse_listen

__all__ = [
    "MAX_CONNECTIONS",
    "Connection",
    "Handler",
    "Listener",
    "Report",
    "Request",
    "Response",
    "Routes",
    "Work",
    "connection_limit",
    "open_listener",
]

MAX_CONNECTIONS = 64
BACKLOG = 1_024  # connections that the kernel holds for us; it drops what is beyond, and a scraper with it
MAX_REQUEST_BYTES = 8_192  # of the head, and of the body
REQUEST_TIMEOUT_SECONDS = 10.0  # from accept to the last byte sent
RESOURCE_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})  # to accept a connection with
ACCEPT_PAUSE_SECONDS = 1.0  # after which it is tried again: until then whoever connects waits in the backlog
PRIVATE_UMASK = 0o177  # umask of a socket that is its owner's alone


@dataclass(frozen=True, slots=True)
class Request:
    """A request.  query and headers: of several of one name the last; headers in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """A response."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


Work = Generator[None, None, Response]  # yields after every millisecond or so
Handler = Callable[[Request], Response | Work]
Routes = Mapping[str, Mapping[str, Handler]]  # path → method → handler; whoever answers GET answers HEAD
Report = Callable[[str, Exception], None]  # told the path and what its handler raised


class Malformed(Exception):
    """The client has sent something other than a request that we accept."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.response = _plain(status, reason)


def _plain(status: int, text: str, **headers: str) -> Response:
    return Response(status, f"{text}\n".encode(), "text/plain", headers)


# sockets


def open_listener(address: str, *, is_control: bool = False) -> socket.socket | None:
    """Return a listening socket for HOST:PORT or unix:PATH, None for `off`.

    is_control: it is the control socket, where only its owner may connect.
    Raises UsageError: exit 7 for an address in use, exit 2 for one that cannot be used at all.
    """
    place = parse_listen(address)
    if place is None:
        return None
    try:
        sock = _open_unix(place, is_private=is_control) if isinstance(place, str) else _open_tcp(*place)
        sock.listen(BACKLOG)
    except OSError as error:
        if not is_control:
            raise listen_error(address, error, can_be_off=True) from error
        is_taken = error.errno == errno.EADDRINUSE
        why = "is in use by another process" if is_taken else f"cannot be used ({error.strerror or error})"
        message = f"the control socket {place} {why}; set `control` to another path"
        raise UsageError(message, ExitCode.ADDRESS_IN_USE if is_taken else ExitCode.USAGE) from error
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


def _open_unix(path: str, *, is_private: bool) -> socket.socket:
    if Path(path).is_socket() and not _answers(path):
        Path(path).unlink()  # left behind by a supervisor that was killed
    elif Path(path).exists() and not Path(path).is_socket():
        raise FileExistsError(errno.EEXIST, "a file of that name is there, and it is no socket")
    sock = socket.socket(socket.AF_UNIX)
    try:
        with _umask(PRIVATE_UMASK) if is_private else nullcontext():
            sock.bind(path)
    except OSError:
        sock.close()
        raise
    return sock


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    """Make files with this umask.  The process has one thread, so nobody else makes any meanwhile."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


# requests


def _parse(head: bytes) -> Request:
    """Return the request of a head.  Raises Malformed."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise Malformed(400, "not an HTTP request")
    path, _, query = words[1].partition("?")
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Request(words[0], path, dict(parse_qsl(query, keep_blank_values=True)), headers)


def _body_length(request: Request) -> int:
    """Return how many bytes follow the head; nothing reads them, but who closes before loses the answer."""
    text = request.headers.get("content-length", "0")
    if not (text.isascii() and text.isdigit()):
        raise Malformed(400, "Content-Length is not a number")
    if len(text) > 9 or int(text) > MAX_REQUEST_BYTES:
        raise Malformed(413, "nothing here takes that much")
    return int(text)


def _find(routes: Routes, request: Request) -> Handler | Response:
    """Return the handler of a request, or an error response."""
    here = routes.get(request.path)
    methods = sorted({method for each in (routes.values() if here is None else (here,)) for method in each})
    wanted = "GET" if request.method == "HEAD" else request.method
    if wanted not in methods:
        allowed = ", ".join("GET, HEAD" if method == "GET" else method for method in methods)
        return _plain(405, f"{allowed} only", Allow=allowed)
    return _plain(404, f"try {', '.join(routes)}") if here is None else here[wanted]


def _serialize(response: Response, *, with_body: bool) -> bytes:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        **response.headers,
    }
    phrase = HTTPStatus(response.status).phrase
    lines = [f"HTTP/1.1 {response.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (response.body if with_body else b"")


class Connection:
    """One client: reads a request, writes a response.  active_at: when bytes last moved."""

    def __init__(self, sock: socket.socket, routes: Routes, report: Report, clock: Clock) -> None:
        sock.setblocking(False)
        self.socket = sock
        self.active_at = clock.monotonic()
        self.deadline = self.active_at + REQUEST_TIMEOUT_SECONDS
        self._routes = routes
        self._report = report
        self._clock = clock
        self._incoming = bytearray()
        self._request: Request | None = None
        self._work: Work | None = None
        self._outgoing = memoryview(b"")

    @property
    def is_working(self) -> bool:
        return self._work is not None

    @property
    def is_writing(self) -> bool:
        return bool(self._outgoing)

    @property
    def priority(self) -> tuple[bool, float]:
        """The connection of the least priority is closed first: one without a request, and the longest idle."""
        return self.is_working or self.is_writing, self.active_at

    def advance(self) -> bool:
        """Read or write what can be; return False when the connection is done."""
        try:
            if not self._outgoing and not self.is_working and not self._read():
                return False
            if self._outgoing:
                self._outgoing = self._outgoing[self.socket.send(self._outgoing) :]
                self.active_at = self._clock.monotonic()
                return bool(self._outgoing)
        except BlockingIOError:
            return True
        except OSError:  # the client has gone
            return False
        return True

    def work(self, until: float) -> bool:
        """Work on the answer until a moment of the monotonic clock; return whether it is ready."""
        assert self._work is not None
        assert self._request is not None
        try:
            while self._clock.monotonic() < until:
                next(self._work)
        except StopIteration as end:
            self._answer(end.value)
        except Exception as error:  # noqa: BLE001  # as in _start
            self._fail(error)
        else:
            return False
        self._work = None
        return True

    def expire(self) -> None:
        """Answer 408 to a client that has begun a request."""
        if self._incoming and not self._outgoing and not self.is_working:
            self._answer(_plain(408, f"a request has {REQUEST_TIMEOUT_SECONDS:g} s"))
            self.advance()

    def _read(self) -> bool:
        data = self.socket.recv(MAX_REQUEST_BYTES)
        if not data:
            return False
        self.active_at = self._clock.monotonic()
        self._incoming += data
        try:
            if self._is_complete():
                self._start()
        except Malformed as error:
            self._answer(error.response)
        return True

    def _is_complete(self) -> bool:
        """Return whether a whole request has come.  Raises Malformed."""
        end = self._incoming.find(b"\r\n\r\n")
        if end < 0 or end > MAX_REQUEST_BYTES:
            if len(self._incoming) > MAX_REQUEST_BYTES:
                raise Malformed(431, f"a request has at most {MAX_REQUEST_BYTES} bytes")
            return False
        if self._request is None:
            self._request = _parse(bytes(self._incoming[:end]))
        return len(self._incoming) >= end + 4 + _body_length(self._request)

    def _start(self) -> None:
        """Answer the request, or begin to work on the answer."""
        assert self._request is not None
        found = _find(self._routes, self._request)
        try:
            answer = found if isinstance(found, Response) else found(self._request)
        except Exception as error:  # noqa: BLE001  # a page that fails must not end the loop that watches the children
            self._fail(error)
            return
        if isinstance(answer, Response):
            self._answer(answer)
        else:
            self._work = answer

    def _fail(self, error: Exception) -> None:
        assert self._request is not None
        self._report(self._request.path, error)
        self._answer(_plain(500, "it failed; the log says how"))

    def _answer(self, response: Response) -> None:
        is_head = self._request is not None and self._request.method == "HEAD"
        self._outgoing = memoryview(_serialize(response, with_body=not is_head))


class Listener:
    """The listening socket and its connections."""

    def __init__(self, sock: socket.socket, routes: Routes, report: Report, clock: Clock) -> None:
        self.socket = sock
        self._routes = routes
        self._report = report
        self._clock = clock
        self._path = sock.getsockname() if sock.family == socket.AF_UNIX else ""
        self._inode = _inode(self._path)
        self.connections: list[Connection] = []
        self.accept_again_at = 0.0  # monotonic seconds; 0 while it accepts

        self._limit = connection_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[0])

    def accept(self) -> Connection | None:
        """Return a new connection, None when there is none.  See connection_to_drop."""
        try:
            sock, _ = self.socket.accept()
        except OSError as error:  # it went away between the loop's select and this; or there is no descriptor left
            if error.errno in RESOURCE_ERRORS:  # it would be readable all the time
                self.accept_again_at = self._clock.monotonic() + ACCEPT_PAUSE_SECONDS
            return None
        connection = Connection(sock, self._routes, self._report, self._clock)
        self.connections.append(connection)
        return connection

    def connection_to_drop(self) -> Connection | None:
        """Return the connection to close when there is one too many; never the newest."""
        if len(self.connections) <= self._limit:
            return None
        return min(self.connections[:-1], key=lambda connection: connection.priority)

    def overdue(self) -> list[Connection]:
        """Return the connections whose deadline is over."""
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

    def remove(self) -> None:
        """Remove the socket's file, unless another has taken its place."""
        if self._path and self._inode == _inode(self._path):
            Path(self._path).unlink(missing_ok=True)


def connection_limit(max_files: int) -> int:
    """Return how many connections a listener keeps.  max_files: of this process, -1 for any number.

    A quarter of them: there may be two listeners, and a child needs files as well.
    """
    return MAX_CONNECTIONS if max_files < 0 else max(1, min(MAX_CONNECTIONS, max_files // 4))


def _inode(path: str) -> int:
    try:
        return Path(path).stat().st_ino if path else 0
    except OSError:
        return 0
