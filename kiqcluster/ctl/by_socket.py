"""By the control socket: HTTP to one supervisor on this host; Redis may be away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from math import inf
from typing import Any
from urllib.parse import urlencode

from kiqcluster import localhttp, rubyjson
from kiqcluster.clock import SystemClock
from kiqcluster.ctl.ways import Answer, Child, NobodyThere, View, Worker, number_of, report_of
from kiqcluster.errors import KiqError, UsageError
from kiqcluster.fleet import Message

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
        view = _view_of(document, self._path, self._clock.monotonic() - self._told_at)
        return {view.name: view}

    def running(self) -> list[Running]:
        """Return the jobs that run at this moment, by process.  Raises NobodyThere, KiqError."""
        status, document = self._ask("GET", "/status")
        if status != 200:
            raise KiqError(f"{self._path} answered {status} to GET /status: is it the socket of kiqcluster?")
        return [
            Running(str(process.get("identity") or ""), str(job["class"]), str(job["jid"]), number_of(job.get("since")))
            for slot in document.get("slots") or []
            for process in _processes_of(slot)
            for job in process.get("running") or ()
        ]

    def running_jids(self) -> list[str]:
        """Return the ids of the jobs that run at this moment.  Raises NobodyThere, KiqError."""
        return [each.jid for each in self.running()]

    def _ask(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object.  Raises NobodyThere, KiqError."""
        try:
            status, body = localhttp.request(self._path, method, target, TIMEOUT)
            document = rubyjson.decode(body or b"{}")
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
        except (HTTPException, rubyjson.Undecodable) as error:
            raise KiqError(f"{self._path} is not the socket of a supervisor ({error!r})") from error
        self._was_there = True
        return status, document if isinstance(document, dict) else {}


def _view_of(status: Mapping[str, Any], path: str, since: float) -> View:
    """Return what GET /status says.

    since: seconds since something was asked for.  A beat from before says nothing of what that has led to: until there
    is one from afterwards, a worker counts as one that still fetches.
    """
    quiet = status.get("quiet") or {}
    slots = status.get("slots") or []
    version = str(status.get("version") or "")
    return View(
        name=str(status.get("supervisor") or path),
        host=str(status.get("host") or ""),
        version=version,
        slots=len(slots),
        workers=tuple(_worker_of(process, since, version) for slot in slots for process in _processes_of(slot)),
        quiet_by=str(quiet.get("by") or ""),
        lease_remaining=quiet.get("lease_remaining"),
        roll=report_of(status.get("roll")),
        reload=report_of(status.get("reload")),
        stopping=status.get("state") == "stopping",
        restart_needed=str(status.get("restart_needed") or ""),
        reload_needed=str(status.get("reload_needed") or ""),
        roll_needed=str(status.get("roll_needed") or ""),
        children=tuple(child for slot in slots for child in _children_of(slot)),
        now=SystemClock.now(),
        deploy=str(status.get("deploy") or ""),
    )


def _children_of(slot: Mapping[str, Any]) -> Iterator[Child]:
    """Yield what is said of each process of a slot; of the slot itself, where there is none."""
    number, processes = int(slot.get("slot") or 0), list(_processes_of(slot))
    died_at = (slot.get("last_death") or {}).get("at")
    for process in processes or [slot]:
        yield Child.read(number, {**process, "restarts": slot.get("unplanned_restarts"), "died_at": died_at})


def _processes_of(slot: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the processes of a slot: what serves, what will, and what was replaced and still runs something."""
    shared = {name: slot.get(name) for name in ("queues", "concurrency")}
    for process in (slot, slot.get("successor") or {}, *slot.get("leaving", ())):
        if process.get("pid"):
            yield {**process, **shared}


def _worker_of(slot: Mapping[str, Any], since: float, version: str) -> Worker:
    age = float(slot.get("last_beat_ago") or 0.0)
    has_beaten = slot.get("last_beat_ago") is not None and (age < since or since < 0)
    return Worker(
        identity=str(slot.get("identity") or ""),
        pid=int(slot.get("pid") or 0),
        queues=tuple(slot.get("queues") or ()),
        concurrency=int(slot.get("concurrency") or 0),
        busy=int(slot.get("busy") or 0),
        quiet=bool(slot.get("quiet")) and has_beaten,
        rss=int(slot.get("rss") or 0),
        age=age,
        uptime=slot.get("uptime"),
        version=version,
    )
