"""Fake supervisors, as kiqctl meets them: in Redis through their processes, or behind a control socket.

They do what they are told by the test, also what no sound supervisor does: stay silent, refuse, die half-way.
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kiqcluster.control.control_messages import Message
from kiqcluster.control.stacks import Stacks, encode_stacks
from kiqcluster.store import Store
from tests.kit import wait_until

Answer = str | None  # what a supervisor says to a message: None, or why not


def process_fields(identity: str, **other: Any) -> dict[str, Any]:
    """Return the hash that a worker process publishes.  other: fields, and members of `info`, that differ."""
    host, pid, _ = identity.split(":")
    info = {
        "hostname": host,
        "started_at": 1_795_168_700.5,
        "pid": int(pid),
        "tag": "shop",
        "concurrency": 5,
        "queues": ["default"],
        "labels": ["kiqcluster"],
        "identity": identity,
        "version": "0.1.0",
        "application": "",
        "routing": "",
        "shards": "",
    }
    fields = {"concurrency": 5, "busy": 0, "beat": 1_795_168_740.5, "quiet": "false", "rss": 40_000, "rtt_us": 90}
    info |= {name: value for name, value in other.items() if name in info}
    fields |= {name: value for name, value in other.items() if name not in info}
    if "kiq_cluster" in other and "kiq_supervisor" not in other and (state := _object(other["kiq_cluster"])):
        fields["kiq_supervisor"] = f"{state.get('at', 0.0)!r} {state.get('supervisor', '')}"
    return {"info": json.dumps(info), **{name: value for name, value in fields.items() if value is not None}}


def _object(raw: str) -> dict[str, Any]:
    try:
        value = json.loads(raw)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def publish(store: Store, identity: str, ttl: int = 60, **other: Any) -> None:
    """Have a process show in Redis."""
    words = [word for pair in process_fields(identity, **other).items() for word in pair]
    store.pipeline([("HSET", identity, *words), ("EXPIRE", identity, ttl), ("SADD", "processes", identity)])


class FakeSupervisor:
    """A supervisor with worker processes that show in Redis and read their messages.

    deaf: processes that read nothing.  mortal: those that die of the first message.  received: (identity, message).
    answer: what the supervisor says to a message; None: it does what it is asked.  is_silent: it says nothing at all.
    Messages of scope process are obeyed by the worker that reads them, if `obeys_alone`.
    beat: of its workers, by their clock.
    """

    def __init__(self, store: Store, host: str = "app-1", workers: int = 2, pid: int = 100) -> None:
        self._store = store
        self.name = f"{host}:{pid}:{'a' * 12}"
        self.workers = [f"{host}:{pid + number + 1}:{'b' * 12}" for number in range(workers)]
        self.deaf: set[str] = set()
        self.mortal: set[str] = set()
        self.received: list[tuple[str, Message]] = []
        self.answer: Callable[[Message], Answer] = lambda _: None
        self.is_silent = False
        self.obeys_alone = False
        self.beat = 1_795_168_740.5
        self.quiet_alone: set[str] = set()
        self.busy = dict.fromkeys(self.workers, 0)
        self.state: dict[str, Any] = {
            "supervisor": self.name,
            "slots": workers,
            "quiet_by": "",
            "quiet_since": None,
            "lease_remaining": None,
            "roll": None,
            "reload": None,
            "stopping": False,
            "version": "0.1.0",
            "restart_needed": "",
            "answers": {},
        }
        self._stopping = threading.Event()
        self._rounds = 0
        self._lock = threading.RLock()
        self.publish()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    @property
    def actions(self) -> list[str]:
        """What was asked, in order."""
        return [message.action for _, message in self.received]

    def publish(self) -> None:
        """Have every worker beat."""
        with self._lock:
            for worker in self.workers:
                quiet = "true" if self.state["quiet_by"] or worker in self.quiet_alone else "false"
                cluster = json.dumps(self.state)
                publish(self._store, worker, busy=self.busy[worker], quiet=quiet, beat=self.beat, kiq_cluster=cluster)

    def change(self, **state: Any) -> None:
        with self._lock:
            self.state |= state
            self.publish()

    def run_jobs(self, *numbers: int) -> None:
        """Have the workers run so many jobs each."""
        with self._lock:
            self.busy = dict(zip(self.workers, numbers, strict=True))
            self.publish()

    def deafen(self, *workers: str) -> None:
        """Have workers read nothing from now on: a read that has begun before is waited for."""
        self.deaf = {*self.deaf, *workers}
        began = self._rounds
        wait_until(lambda: self._rounds > began + 1, "the last read to end")

    def die(self, worker: str) -> None:
        """Have a worker vanish."""
        with self._lock:
            self.workers = [each for each in self.workers if each != worker]
            self._store.pipeline([("UNLINK", worker), ("SREM", "processes", worker)])

    def end_roll(self, state: str = "done", error: str = "") -> None:
        self.change(roll={**self.state["roll"], "state": state, "error": error})

    def end_reload(self, state: str = "done", error: str = "") -> None:
        self.change(reload={**self.state["reload"], "state": state, "error": error})

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _read(self) -> None:
        connection = self._store.connection()
        while not self._stopping.is_set():
            self._rounds += 1
            listening = [worker for worker in self.workers if worker not in self.deaf]
            if not listening:
                self._stopping.wait(0.02)
                continue
            keys = [f"kiq:control:{worker}" for worker in listening]
            try:
                (reply,) = connection.exchange([("BLPOP", *keys, "0.05")])
            except Exception:  # the server is away
                self._stopping.wait(0.05)
                continue
            if reply is not None:
                self._take(reply[0].decode().removeprefix("kiq:control:"), Message.read(reply[1]))
        connection.close()

    def _take(self, worker: str, message: Message) -> None:
        if worker in self.mortal:
            self.die(worker)
            return
        with self._lock:
            self.received.append((worker, message))
            if self.is_silent:
                return
            if message.action == "dump":
                self._tell_stacks()
            if message.scope == "process":
                if self.obeys_alone:
                    self.quiet_alone = self.quiet_alone | {worker} if message.action == "quiet" else set()
                    self.publish()
                return
            error = self.answer(message)
            if error is None:
                self._obey(message)
            self.change(answers={**self.state["answers"], message.id: error})

    def _tell_stacks(self) -> None:
        """Have all workers tell what their threads are doing."""
        for worker in self.workers:
            told = Stacks(self.beat, f"--- kiq.processor/1: Job j1\n  in {worker}")
            self._store.call("SET", self._store.keys.stacks(worker), encode_stacks(told), "EX", 60)

    def _obey(self, message: Message) -> None:
        match message.action:
            case "quiet":
                self.state |= {"quiet_by": message.by, "lease_remaining": message.lease}
            case "resume":
                self.state |= {"quiet_by": "", "lease_remaining": None}
            case "rollback":  # there is nothing to bring back
                self.state["roll"] = {"id": message.id, "state": "done", "done": 0, "of": 0, "error": ""}
            case "roll":
                self.state["roll"] = {
                    "id": message.id,
                    "state": "rolling",
                    "done": 0,
                    "of": len(self.workers),
                    "error": "",
                }
            case "reload":
                self.state["reload"] = {"id": message.id, "state": "reloading", "error": "", "ended_at": None}


class FakeControlSocket:
    """A supervisor's control socket.  asked: (method, path, query) of each request.

    refusal: what a POST is answered with, as 409.  document: of /status.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.refusal = ""
        self.document: dict[str, Any] = {
            "version": "0.1.0",
            "pid": 100,
            "host": "app-1",
            "supervisor": f"app-1:100:{'a' * 12}",
            "started_at": 1_795_168_700.5,
            "state": "running",
            "ready": True,
            "reason": None,
            "quiet": None,
            "generation": 0,
            "roll": None,
            "restart_needed": "",
            "slots": [self._slot(0), self._slot(1)],
        }

    @staticmethod
    def _slot(number: int) -> dict[str, Any]:
        return {
            "slot": number,
            "state": "ready",
            "generation": 0,
            "pid": 101 + number,
            "identity": f"app-1:{101 + number}:{'b' * 12}",
            "queues": {"default": 1},
            "mode": "random",
            "redis": True,
            "concurrency": 5,
            "busy": 0,
            "processed": 0,
            "prefetched": 0,
            "quiet": False,
            "rss": 40_960_000,
            "uptime": 60.0,
            "last_beat_ago": 0.5,
            "backoff": 0,
            "waits_for": "",
            "restarts": {},
            "last_death": None,
        }

    def set_slots(self, **fields: Any) -> None:
        self.document["slots"] = [{**slot, **fields} for slot in self.document["slots"]]

    def wait_asked(self, method: str, path: str, times: int = 1) -> None:
        wait_until(
            lambda: [(m, p) for m, p, _ in self.asked].count((method, path)) >= times, f"{times} times {method} {path}"
        )

    def reply(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        place = urlsplit(target)
        query = dict(parse_qsl(place.query))
        self.asked.append((method, place.path, query))
        if method == "POST" and self.refusal:
            return 409, {"error": self.refusal}
        if method == "POST" and place.path == "/quiet":
            lease = float(query["lease"]) if "lease" in query else 3_600.0
            self.document["quiet"] = {"by": query["by"], "since": 1.0, "lease_remaining": lease}
            self.set_slots(quiet=True)
        elif method == "POST" and place.path == "/resume":
            self.document["quiet"] = None
            self.set_slots(quiet=False)
        elif method == "POST" and place.path == "/roll":
            self.document["roll"] = {"id": query["id"], "state": "rolling", "done": 0, "of": 2, "error": ""}
            return 202, self.document
        elif method == "POST" and place.path == "/reload":
            self.document["reload"] = {"id": query["id"], "state": "reloading", "error": "", "ended_at": None}
            return 202, self.document
        return 200, self.document


@contextmanager
def fake_control_socket(path: Path) -> Iterator[FakeControlSocket]:
    """Listen at a path, over HTTP, for a `with` block."""
    behind = FakeControlSocket(path)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            status, document = behind.reply(self.command, self.path)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = answer  # noqa: N815  # the base class calls them so

        def address_string(self) -> str:
            return "unix"

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield behind
        finally:
            server.shutdown()
            thread.join()
