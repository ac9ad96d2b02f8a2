"""By the control socket: HTTP to one supervisor on this host; Redis may be away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from math import inf
from typing import Any
from urllib.parse import urlencode

from kiqcluster.clock import SystemClock
from kiqcluster.control.cluster_document import View, number_of, processes_of, view_of_status
from kiqcluster.control.control_messages import Message
from kiqcluster.control.transports import Answer, NobodyThere
from kiqcluster.errors import KiqError, UsageError
from kiqcluster.ipc import local_http
from kiqcluster.sidekiq import ruby_json

__all__ = ["Running", "SocketWay"]

TIMEOUT = 10.0  # seconds that one request may take


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs.  since: epoch seconds."""

    identity: str
    name: str
    jid: str
    since: float


class SocketWay:
    """To the supervisor that listens at a path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._was_there = False
        self._told_at = inf
        self._clock = SystemClock()

    def tell(self, message: Message) -> Sequence[Answer]:
        """See Way."""
        fields = {"by": message.by, "id": message.id}
        if message.lease is not None:
            fields["lease"] = f"{message.lease:.3f}"
        if message.whose:
            fields["whose"] = message.whose
        if message.jid:
            fields["jid"] = message.jid
        status, document = self._ask("POST", f"/{message.action}?{urlencode(fields)}")
        self._told_at = self._clock.monotonic()
        error = None if status in (200, 202) else str(document.get("error") or f"it answered {status}")
        name = str(document.get("supervisor") or self._path)
        return [Answer(name, error)]

    def look(self) -> Mapping[str, View]:
        """See Way."""
        try:
            status, document = self._ask("GET", "/status")
        except NobodyThere:
            if not self._was_there:
                raise
            return {}  # it has ended since
        if status != 200:
            raise KiqError(f"{self._path} answered {status} to GET /status: is it the socket of kiqcluster?")
        view = view_of_status(document, self._path, self._clock.monotonic() - self._told_at)
        return {view.name: view}

    def running(self) -> list[Running]:
        """Return the jobs that run at this moment, by process.  Raises NobodyThere, KiqError."""
        status, document = self._ask("GET", "/status")
        if status != 200:
            raise KiqError(f"{self._path} answered {status} to GET /status: is it the socket of kiqcluster?")
        return [
            Running(str(process.get("identity") or ""), str(job["class"]), str(job["jid"]), number_of(job.get("since")))
            for slot in document.get("slots") or []
            for process in processes_of(slot)
            for job in process.get("running") or ()
        ]

    def _ask(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object.  Raises NobodyThere, KiqError."""
        try:
            status, body = local_http.request(self._path, method, target, TIMEOUT)
            document = ruby_json.decode(body or b"{}")
        except (FileNotFoundError, ConnectionError) as error:
            raise NobodyThere(
                f"nobody answers at {self._path} ({error}); is the supervisor running, and its `control` that path?"
            ) from error
        except TimeoutError as error:
            yet = f"; it may still be done: `kiqctl ps --socket {self._path}` shows it"
            late = f"{self._path} did not answer within {TIMEOUT:.0f} s"
            raise KiqError(f"{late}{yet}" if method == "POST" else late) from error
        except OSError as error:
            raise UsageError(f"{self._path} cannot be used as a control socket ({error.strerror or error})") from error
        except (HTTPException, ruby_json.Undecodable) as error:
            raise KiqError(f"{self._path} is not the socket of a supervisor ({error!r})") from error
        self._was_there = True
        return status, document if isinstance(document, dict) else {}
