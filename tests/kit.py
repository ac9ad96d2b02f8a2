"""The test kit: a real Redis server, a real cluster, and waits with a deadline.

Everything waits for an event or a stored state; nothing sleeps and hopes.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest

from kiqcluster.store import Store, embedded

T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 20.0  # seconds that a test waits for what should take a fraction of one
PAUSE = threading.Event()  # never set: waiting for it is how a poll pauses


def wait_until(condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
    """Return the condition's first truthy value; fail the test with `what` after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            pytest.fail(f"waited {seconds:g} s in vain for: {what}")
        PAUSE.wait(0.01)


def require(program: str, package: str) -> str:
    """Return the path of a program, or skip the test loudly; fail where KIQ_REQUIRE_ALL=1 (CI) says so."""
    found = shutil.which(program)
    if found is None:
        unavailable(f"{program} is not installed (Debian: apt-get install {package})")
    return found


def unavailable(message: str) -> NoReturn:
    """Skip the test for what this machine lacks; fail it where KIQ_REQUIRE_ALL=1 (CI) says so."""
    if os.environ.get("KIQ_REQUIRE_ALL") == "1":
        pytest.fail(f"KIQ_REQUIRE_ALL=1, but {message}")
    pytest.skip(message)


class RedisServer:
    """A server of our own on a unix socket and a TCP port, in a folder of its own; started and killed at will.

    durable: whatever it has acknowledged is on disk, and there again when it is started after a kill.
    settings: further words of its command line.
    """

    def __init__(self, *, durable: bool = False, program: str | None = None, settings: Sequence[str] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kiq-redis-"))
        self.socket = self.directory / "redis.sock"
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._program = program or embedded.find_server()
        self._durable = durable
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        settings = [
            *("--port", str(self.port)),
            *("--bind", "127.0.0.1"),
            *("--unixsocket", str(self.socket)),
            *("--dir", str(self.directory)),
            *("--save", ""),
            *("--appendonly", "yes" if self._durable else "no"),
            *("--appendfsync", "always"),
            *("--logfile", str(self.directory / "log")),
            *self._settings,
        ]
        self._process = subprocess.Popen([self._program, *settings], stdout=subprocess.DEVNULL)
        wait_until(self._answers, "the Redis server to answer")

    def _answers(self) -> bool:
        try:
            return bool(self.store().call("PING") == b"PONG")
        except Exception:
            return False

    def store(self, db: int = 0) -> Store:
        return Store(f"unix://{self.socket}?db={db}")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Stop the server in its tracks for a `with` block; what arrives meanwhile runs afterwards."""
        assert self._process is not None
        freeze(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the server as a power cut does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Cluster:
    """A real `kiqcluster` with its children, watched through its JSON log.

    events: every event so far, as `{"event": name, "pid": …, …}`, of all its processes.
    through: a program that the command is handed to.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: dict[str, str] | None = None,
        cwd: Path = ROOT,
        stdin: int = subprocess.DEVNULL,
        through: Sequence[str] = (),
    ) -> None:
        self.port = free_port()
        self.events: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self._changed = threading.Condition()
        listen = (
            [] if any(word.startswith("--listen") for word in arguments) else ["--listen", f"127.0.0.1:{self.port}"]
        )
        command = [
            *through,
            sys.executable,
            "-m",
            "kiqcluster",
            *arguments,
            *listen,
            "--log-format",
            "json",
            "--log-level",
            "debug",
        ]
        self.process = subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **(environ or {})}, stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def _read(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            line = raw.decode(errors="replace").rstrip()
            with self._changed:
                self.lines.append(line)
                try:
                    fields = json.loads(line)
                except ValueError:
                    fields = {}
                if isinstance(fields, dict) and "event" in fields:
                    self.events.append(fields)
                self._changed.notify_all()

    def seen(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of that name and with those fields, so far."""
        with self._changed:
            return [
                each
                for each in self.events
                if each["event"] == event and all(each.get(k) == v for k, v in fields.items())
            ]

    def wait_for(self, event: str, seconds: float = PATIENCE, count: int = 1, **fields: Any) -> dict[str, Any]:
        """Return the `count`-th event of that name and with those fields; fail the test after the deadline."""
        deadline = time.monotonic() + seconds
        while True:
            found = self.seen(event, **fields)
            if len(found) >= count:
                return found[count - 1]
            left = deadline - time.monotonic()
            if left <= 0 or (self.process.poll() is not None and not self._reader.is_alive()):
                tail = "\n".join(self.lines[-40:])
                pytest.fail(f"waited in vain for event {event} {fields} ({len(found)}/{count}); the log ends:\n{tail}")
            with self._changed:
                self._changed.wait(min(left, 0.1))

    def wait_ready(self, slots: int = 1) -> dict[int, int]:
        """Wait until that many slots are ready; return slot → pid of the latest child."""
        for slot in range(slots):
            self.wait_for("child_ready", slot=slot)
        return self.pids()

    def pids(self) -> dict[int, int]:
        return {each["slot"]: each["child"] for each in self.seen("child_ready")}

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = PATIENCE) -> int:
        """Return the exit code; fail the test when the supervisor does not end in time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            tail = "\n".join(self.lines[-40:])
            pytest.fail(f"the supervisor did not end within {seconds:g} s; the log ends:\n{tail}")

    def stop(self) -> int:
        """TERM, and the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def close(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        killed: set[int] = set()
        deadline = time.monotonic() + 5
        while self._reader.is_alive() and time.monotonic() < deadline:  # while anybody holds its output
            for pid in {each["child"] for each in self.seen("child_started")} - killed:
                killed.add(pid)
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            self._reader.join(0.01)


@contextmanager
def cluster(*arguments: str, environ: dict[str, str] | None = None, cwd: Path = ROOT) -> Iterator[Cluster]:
    """Run a cluster for a `with` block."""
    running = Cluster(arguments, environ, cwd)
    try:
        yield running
    finally:
        running.close()


def connect(where: int | Path) -> socket.socket:
    """Connect to a port of this host, or to a unix socket."""
    if isinstance(where, int):
        return socket.create_connection(("127.0.0.1", where), 5)
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(5)
    sock.connect(str(where))
    return sock


def http_get(where: int | Path, path: str, method: str = "GET", headers: str = "") -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of one request.  where: see connect."""
    with connect(where) as sock:
        sock.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
        data = b""
        while chunk := sock.recv(65_536):
            data += chunk
    head, _, body = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    return int(lines[0].split()[1]), fields, body


def is_alive(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    return _state(Path(f"/proc/{pid}")) not in ("", "Z")


def freeze(pid: int) -> None:
    """Stop a process in its tracks, and wait until each of its threads stands still: the signal takes its time."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    if tasks.exists():  # not on macOS
        wait_until(lambda: all(_state(task) == "T" for task in tasks.iterdir()), f"process {pid} to stand still")


def _state(process: Path) -> str:
    """Return the state letter of a process or thread, given its folder in /proc; nothing for one that has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


class ManualClock:
    """A clock that stands still until a test moves it.  used: CPU seconds."""

    def __init__(self, now: float = 1_795_168_740.5) -> None:
        self.time = now
        self.used = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def cpu(self) -> float:
        return self.used
