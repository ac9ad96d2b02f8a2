"""Transport through the control socket: HTTP to one supervisor on this host.  It works while Redis is away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from math import inf
from typing import Any
from urllib.parse import urlencode

from kiqcluster.control.cluster_document import ClusterStatus, process_rows, status_from_http
from kiqcluster.control.control_messages import Message
from kiqcluster.control.process_registry import read_number
from kiqcluster.control.transports import Answer, NoSuchProcess
from kiqcluster.errors import KiqError, UsageError
from kiqcluster.ipc import local_http
from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq import ruby_json

__all__ = ["RunningJob", "SocketTransport"]

REQUEST_TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job.  since: epoch seconds."""

    identity: str
    name: str
    jid: str
    since: float


class SocketTransport:
    """Sends to the supervisor that listens at a path."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._has_answered = False
        self._sent_at = inf
        self._clock = SystemClock()

    def send(self, message: Message) -> Sequence[Answer]:
        """See Transport."""
        fields = {"by": message.by, "id": message.id}
        if message.lease is not None:
            fields["lease"] = f"{message.lease:.3f}"
        if message.whose:
            fields["whose"] = message.whose
        if message.jid:
            fields["jid"] = message.jid
        code, document = self._ask("POST", f"/{message.action}?{urlencode(fields)}")
        self._sent_at = self._clock.monotonic()
        error = None if code in (200, 202) else str(document.get("error") or f"it answered {code}")
        name = str(document.get("supervisor") or self._path)
        return [Answer(name, error)]

    def statuses(self) -> Mapping[str, ClusterStatus]:
        """See Transport."""
        try:
            code, document = self._ask("GET", "/status")
        except NoSuchProcess:
            if not self._has_answered:
                raise
            return {}  # it has ended
        if code != 200:
            raise KiqError(f"{self._path} answered {code} to GET /status: is it the socket of kiqcluster?")
        status = status_from_http(document, self._path, self._clock.monotonic() - self._sent_at)
        return {status.name: status}

    def running(self) -> list[RunningJob]:
        """Return the running jobs, by process.  Raises NoSuchProcess, KiqError."""
        code, document = self._ask("GET", "/status")
        if code != 200:
            raise KiqError(f"{self._path} answered {code} to GET /status: is it the socket of kiqcluster?")
        return [
            RunningJob(
                str(process.get("identity") or ""), str(job["class"]), str(job["jid"]), read_number(job.get("since"))
            )
            for slot in document.get("slots") or []
            for process in process_rows(slot)
            for job in process.get("running") or ()
        ]

    def _ask(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object.  Raises NoSuchProcess, KiqError."""
        try:
            code, body = local_http.request(self._path, method, target, REQUEST_TIMEOUT_SECONDS)
            document = ruby_json.decode(body or b"{}")
        except (FileNotFoundError, ConnectionError) as error:
            raise NoSuchProcess(
                f"nobody answers at {self._path} ({error}); is the supervisor running, and its `control` that path?"
            ) from error
        except TimeoutError as error:
            yet = f"; it may still be done: `kiqctl ps --socket {self._path}` shows it"
            late = f"{self._path} did not answer within {REQUEST_TIMEOUT_SECONDS:.0f} s"
            raise KiqError(f"{late}{yet}" if method == "POST" else late) from error
        except OSError as error:
            raise UsageError(f"{self._path} cannot be used as a control socket ({error.strerror or error})") from error
        except (HTTPException, ruby_json.Undecodable) as error:
            raise KiqError(f"{self._path} is not the socket of a supervisor ({error!r})") from error
        self._has_answered = True
        return code, document if isinstance(document, dict) else {}
