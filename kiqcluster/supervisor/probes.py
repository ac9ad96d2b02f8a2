"""Probes: what the supervisor answers on /metrics, /liveness and /readiness.

Runs in: the supervisor's loop.  It registers its own sockets with the loop's selector; nothing here waits.
"""

from __future__ import annotations

import selectors
import traceback
from collections.abc import Callable, Mapping, Sequence

from kiqcluster import rubyjson
from kiqcluster.clock import Clock
from kiqcluster.events import Events
from kiqcluster.supervisor.children import Slot
from kiqcluster.supervisor.http import Connection, Handler, Listener, Response, open_listener
from kiqcluster.supervisor.metrics import ClusterMetrics

__all__ = ["Probes", "why_not_ready"]

OK = b'{"status":"ok"}\n'


def why_not_ready(slots: Sequence[Slot], *, is_quiet: bool, is_stopping: bool) -> str | None:
    """Return why the cluster should get no traffic, None when it is ready.  Pure."""
    if is_stopping:
        return "stopping"
    if not slots:
        return "the application is being imported"
    for slot in slots:
        child = slot.child
        if child is None or not child.is_ready:
            waits_for = f": {child.waits_for}" if child is not None and child.waits_for else ""
            return f"slot {slot.number} is in {slot.state}{waits_for}"
        if child.quiet or is_quiet:
            return f"slot {slot.number} is quiet"
        if not child.redis:
            return f"slot {slot.number} cannot reach Redis"
    return None


class Probes:
    """The listener of --listen and its connections.

    Raises UsageError (exit 2 or 7) when the address cannot be used.  not_ready: returns the reason, or None.
    """

    def __init__(
        self,
        address: str,
        selector: selectors.BaseSelector,
        clock: Clock,
        metrics: ClusterMetrics,
        not_ready: Callable[[], str | None],
        events: Events,
    ) -> None:
        self._selector = selector
        self._metrics = metrics
        self._not_ready = not_ready
        self._events = events
        self._faulty: set[str] = set()  # paths whose failure has been told: scrapers come back every few seconds
        sock = open_listener(address)
        self._listener = None if sock is None else Listener(sock, self._routes(), self._report, clock)
        if sock is not None:
            selector.register(sock, selectors.EVENT_READ, self._accept)

    def drop_overdue(self) -> None:
        """Close connections that take too long."""
        for connection in self._listener.overdue() if self._listener is not None else ():
            self._drop(connection)

    def close(self) -> None:
        """Close everything; in a child this leaves the supervisor's own descriptors alone."""
        if self._listener is not None:
            self._listener.close()

    def _routes(self) -> dict[str, Handler]:
        return {
            "/metrics": self._answer_metrics,
            "/liveness": lambda _: Response(200, OK),  # whoever reads this answer has seen the loop turn
            "/readiness": self._answer_readiness,
        }

    def _answer_metrics(self, headers: Mapping[str, str]) -> Response:
        content_type, text = self._metrics.render(headers.get("accept", ""))
        return Response(200, text, content_type)

    def _answer_readiness(self, _headers: Mapping[str, str]) -> Response:
        reason = self._not_ready()
        if reason is None:
            return Response(200, OK)
        return Response(503, rubyjson.encode({"status": "not ready", "reason": reason}) + b"\n")

    def _report(self, path: str, error: Exception) -> None:
        if path not in self._faulty:
            self._faulty.add(path)
            trace = "".join(traceback.format_exception(error))
            self._events.emit("page_failed", path=path, error=repr(error), traceback=trace)

    def _accept(self) -> None:
        connection = None if self._listener is None else self._listener.accept()
        if connection is not None:
            self._selector.register(connection.socket, selectors.EVENT_READ, lambda: self._advance(connection))

    def _advance(self, connection: Connection) -> None:
        if not connection.advance():
            self._drop(connection)
            return
        wanted = selectors.EVENT_WRITE if connection.is_writing else selectors.EVENT_READ
        self._selector.modify(connection.socket, wanted, lambda: self._advance(connection))

    def _drop(self, connection: Connection) -> None:
        if self._listener is not None:
            self._selector.unregister(connection.socket)
            self._listener.drop(connection)
