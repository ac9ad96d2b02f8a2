"""Endpoints: /metrics, health checks and /status for everybody; orders on the control socket.

Runs in: the supervisor's loop.  It registers its own sockets with the loop's selector; nothing here waits.
1. open      the listener of --listen, and the control socket, which is its owner's alone
2. accept    … and read, answer, close
3. advance   once a turn: frames that wait to be taken in, then the page that has been asked for first

While `is_busy`, the loop should not sleep.
"""

from __future__ import annotations

import difflib
import selectors
import traceback
import zlib
from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from itertools import count
from typing import Any

from kiqcluster.control.orders import ACTIONS
from kiqcluster.errors import UsageError
from kiqcluster.ipc.negotiation import CONTENT_TYPES, Format, accepts_gzip, choose_format
from kiqcluster.process.clock import Clock
from kiqcluster.process.durations import parse_duration
from kiqcluster.process.events import Events
from kiqcluster.sidekiq import ruby_json
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.http.server import (
    MAX_CONNECTIONS,
    Connection,
    Handler,
    Listener,
    Request,
    Response,
    Routes,
    open_listener,
)
from kiqcluster.supervisor.http.status import for_everybody, status_document, why_not_ready, why_not_started
from kiqcluster.supervisor.metrics.page import ClusterMetrics

__all__ = ["Control", "Endpoints"]

SLICE_SECONDS = 0.005  # seconds of each turn for frames and pages
COMPRESSION_CHUNK_BYTES = 131_072  # bytes that are compressed in one step
MAX_TEXT_CHARACTERS = 200  # characters of a name or id
OK_BODY = b'{"status":"ok"}\n'
DONE_AT_ONCE = ("quiet", "resume", "dump")
ORDERS = {action: 200 if action in DONE_AT_ONCE else 202 for action in ACTIONS}  # → status

COMMON_PARAMETERS = ("by", "id")  # parameters of every order
PARAMETERS = {
    "quiet": (*COMMON_PARAMETERS, "lease"),
    "resume": (*COMMON_PARAMETERS, "whose"),
    "kill": (*COMMON_PARAMETERS, "jid"),
}

Control = Callable[[Mapping[str, object]], str | None]  # does what a message says; returns why not
Shown = Callable[[Mapping[str, Any]], dict[str, Any]]  # of a status


class Endpoints:
    """The listeners and their connections.

    supervisor: its name in Redis.  quorum: returns how many slots must be ready, None for all.  control: takes orders.
    """

    def __init__(
        self,
        state: ClusterState,
        supervisor: str,
        quorum: Callable[[], int | None],
        metrics: ClusterMetrics,
        control: Control,
        selector: selectors.BaseSelector,
        clock: Clock,
        events: Events,
    ) -> None:
        self._state = state
        self._supervisor = supervisor
        self._quorum = quorum
        self._metrics = metrics
        self._control = control
        self._selector = selector
        self._clock = clock
        self._events = events
        self._has_started = False
        self._orders = count(1)
        self._failed_paths: set[str] = set()  # paths whose failure has been told: scrapers come back every few seconds
        self._listeners: list[Listener] = []
        self._waiting: deque[tuple[Listener, Connection]] = deque()  # whose answers are worked on

    # open

    def listen(self, address: str) -> None:
        """Serve the pages there.  Raises UsageError (exit 2 or 7) when the address cannot be used."""
        self._add(address, self._pages(for_everybody), is_control=False)

    def open_control_socket(self, path: str, *, is_required: bool) -> bool:
        """Serve pages and orders on a control socket; return whether that is possible.

        is_required: raise UsageError if not; otherwise it is only logged.
        """
        try:
            self._add(f"unix:{path}", {**self._pages(dict), **self._order_routes()}, is_control=True)
        except UsageError as error:
            if is_required:
                raise
            self._events.emit("control_off", path=path, error=str(error))
            return False
        return True

    def _add(self, address: str, routes: Routes, *, is_control: bool) -> None:
        sock = open_listener(address, is_control=is_control)
        if sock is not None:
            listener = Listener(sock, routes, self._report, self._clock)
            self._listeners.append(listener)
            self._start_accepting(listener)

    def _start_accepting(self, listener: Listener) -> None:
        listener.accept_again_at = 0.0
        self._selector.register(listener.socket, selectors.EVENT_READ, partial(self._accept, listener))

    def close(self) -> None:
        """Close everything; in a child this leaves the supervisor's own descriptors and files alone."""
        for listener in self._listeners:
            listener.close()

    def remove(self) -> None:
        """Remove the files of sockets, at the supervisor's end."""
        for listener in self._listeners:
            listener.remove()

    # a turn

    @property
    def is_busy(self) -> bool:
        """Whether there is work that no descriptor announces."""
        return self._metrics.is_behind or bool(self._waiting)

    def advance(self) -> None:
        """Work on frames and pages for SLICE_SECONDS; close connections that take too long."""
        until = self._clock.monotonic() + SLICE_SECONDS
        try:
            self._metrics.catch_up(until)
        except Exception as error:  # noqa: BLE001  # a child that sends nonsense must not end the loop that watches it
            self._report("/metrics", error)
        while self._waiting and self._clock.monotonic() < until:
            listener, connection = self._waiting[0]
            if connection.work(until):
                self._waiting.popleft()
                self._selector.register(
                    connection.socket, selectors.EVENT_WRITE, partial(self._advance, listener, connection)
                )
        for listener in self._listeners:
            if listener.accept_again_at and self._clock.monotonic() >= listener.accept_again_at:
                self._start_accepting(listener)
            for connection in listener.overdue():
                connection.expire()
                self._drop(listener, connection)

    def _accept(self, listener: Listener) -> None:
        for _ in range(MAX_CONNECTIONS):  # then the loop goes on; who else has connected waits a turn
            connection = listener.accept()
            if connection is None:
                if listener.accept_again_at:
                    self._selector.unregister(listener.socket)
                return
            self._selector.register(
                connection.socket, selectors.EVENT_READ, partial(self._advance, listener, connection)
            )
            self._advance(listener, connection)  # most have sent their request by now
            if (surplus := listener.connection_to_drop()) is not None:
                self._drop(listener, surplus)

    def _advance(self, listener: Listener, connection: Connection) -> None:
        if not connection.advance():
            self._drop(listener, connection)
        elif connection.is_working:
            self._selector.unregister(connection.socket)
            self._waiting.append((listener, connection))
        else:
            wanted = selectors.EVENT_WRITE if connection.is_writing else selectors.EVENT_READ
            self._selector.modify(connection.socket, wanted, partial(self._advance, listener, connection))

    def _drop(self, listener: Listener, connection: Connection) -> None:
        if connection.is_working:
            self._waiting.remove((listener, connection))
        else:
            self._selector.unregister(connection.socket)
        listener.drop(connection)

    # pages

    def _pages(self, shown: Shown) -> dict[str, dict[str, Handler]]:
        """Return the routes of the pages.  shown: returns the part of a status that these clients may see."""
        pages: dict[str, Handler] = {
            "/metrics": self._answer_metrics,
            "/liveness": lambda _: Response(200, OK_BODY),  # whoever reads this answer has seen the loop turn
            "/readiness": self._answer_readiness,
            "/startup": self._answer_startup,
            "/status": lambda _: self._answer_status(200, shown),
        }
        return {path: {"GET": handler} for path, handler in pages.items()}

    def _answer_metrics(self, request: Request) -> Generator[None, None, Response]:
        form = choose_format(request.headers.get("accept", ""))
        return self._scrape(form, is_compressed=accepts_gzip(request.headers.get("accept-encoding", "")))

    def _scrape(self, form: Format, *, is_compressed: bool) -> Generator[None, None, Response]:
        body = yield from self._metrics.scrape(form)
        if not is_compressed:
            return Response(200, body, CONTENT_TYPES[form])
        deflate = zlib.compressobj(1, wbits=31)
        pieces = []
        for at in range(0, len(body), COMPRESSION_CHUNK_BYTES):
            pieces.append(deflate.compress(body[at : at + COMPRESSION_CHUNK_BYTES]))
            yield
        return Response(200, b"".join((*pieces, deflate.flush())), CONTENT_TYPES[form], {"Content-Encoding": "gzip"})

    def _answer_readiness(self, _request: Request) -> Response:
        reason = why_not_ready(self._state, self._quorum())
        return Response(200, OK_BODY) if reason is None else _refusal("not ready", reason)

    def _answer_startup(self, _request: Request) -> Response:
        reason = None if self._has_started else why_not_started(self._state.slots, self._quorum())
        self._has_started = reason is None
        return Response(200, OK_BODY) if reason is None else _refusal("starting", reason)

    def _answer_status(self, status: int, shown: Shown = dict) -> Response:
        document = status_document(self._state, self._supervisor, self._quorum(), self._clock.monotonic())
        return Response(status, ruby_json.encode(shown(document)) + b"\n")

    def _report(self, path: str, error: Exception) -> None:
        if path not in self._failed_paths:
            self._failed_paths.add(path)
            trace = "".join(traceback.format_exception(error))
            self._events.emit("page_failed", path=path, error=repr(error), traceback=trace)

    # orders

    def _order_routes(self) -> dict[str, dict[str, Handler]]:
        return {f"/{action}": {"POST": partial(self._order, action)} for action in ORDERS}

    def _order(self, action: str, request: Request) -> Response:
        """Carry out an order, and answer with the status after it."""
        known = PARAMETERS.get(action, COMMON_PARAMETERS)
        if (strange := next((name for name in request.query if name not in known), None)) is not None:
            near = difflib.get_close_matches(strange, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
            return _malformed(f"/{action} has no parameter {_printable(strange)!r}; {hint}")
        text = request.query.get("lease", "")
        try:
            lease = parse_duration(text) if text else None
        except ValueError as error:
            return _malformed(f"lease: {error}")
        message = {
            "action": action,
            "scope": "cluster",
            "lease": lease,
            "by": _printable(request.query.get("by")) or "control socket",
            "id": _printable(request.query.get("id")) or f"order-{next(self._orders)}",
        }
        if whose := _printable(request.query.get("whose")):
            message["whose"] = whose
        if jid := _printable(request.query.get("jid")):
            message["jid"] = jid
        why_not = self._control(message)
        if why_not is not None:
            return Response(409, ruby_json.encode({"error": str(why_not)}) + b"\n")
        return self._answer_status(ORDERS[action])


def _printable(text: str | None) -> str:
    """Return a text of a client without characters that logs and pages cannot show."""
    return "".join(filter(str.isprintable, text or ""))[:MAX_TEXT_CHARACTERS]


def _malformed(problem: str) -> Response:
    return Response(400, ruby_json.encode({"error": problem}) + b"\n")


def _refusal(status: str, reason: str) -> Response:
    return Response(503, ruby_json.encode({"status": status, "reason": reason}) + b"\n")
