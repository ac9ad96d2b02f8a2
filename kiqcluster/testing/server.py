"""A private Redis server of a test, which the test can start, stall and kill."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kiqcluster.errors import StoreError
from kiqcluster.store import Store, embedded
from kiqcluster.testing.waiting import wait_until

__all__ = ["RedisServer", "free_port", "freeze", "is_alive"]

LOG_TAIL_LINES = 10  # lines of the log that a failure shows


class RedisServer:
    """A server on a unix socket in its own folder; the constructor starts it.

    `url` is its address (redis://127.0.0.1:PORT/0), where it listens as well from the first time that somebody asks for
    it.  A suite that forbids TCP (pytest --disable-socket --allow-unix-socket) uses `store()`.

    durable: whether every acknowledged write is on disk, and survives a kill.  program: a server to run instead of the
    extra's or the one on PATH.  settings: further words of its command line.  A `with` block closes it.  Raises
    UsageError if there is no server program.
    """

    def __init__(self, *, durable: bool = False, program: str | None = None, settings: Sequence[str] = ()) -> None:
        self._program = program or embedded.find_server()
        self.directory = Path(tempfile.mkdtemp(prefix="kiq-redis-"))
        self.socket = self.directory / "redis.sock"
        self._port = 0  # none yet
        self._durable = durable
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._own_store = self.store()  # what each test asks for costs no connection
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def port(self) -> int:
        if not self._port:
            self._port = free_port()
            if self._is_running():
                self._own_store.call("CONFIG", "SET", "port", self._port)
        return self._port

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, also after a kill, and wait until it answers.

        Raises AssertionError with its log if it ends.
        """
        settings = [
            *("--port", str(self._port)),
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
        if self._process is not None and not self._is_running():
            log = self.directory / "log"
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
            tail = "\n".join(text.splitlines()[-LOG_TAIL_LINES:])
            raise AssertionError(
                f"{self._program} did not start, exit {self._process.returncode}; its log ends:\n{tail}"
            )
        try:
            return bool(self._own_store.call("PING") == b"PONG")
        except StoreError:
            return False

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def store(self, db: int = 0) -> Store:
        """Return a Store on one of its databases, through the unix socket."""
        return Store(f"unix://{self.socket}?db={db}")

    def clear(self) -> None:
        """Delete all data of all databases.  One round trip."""
        self._own_store.call("FLUSHALL")

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Freeze the server for a `with` block; it runs commands that arrive meanwhile afterwards."""
        assert self._process is not None
        freeze(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the server, like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> RedisServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and remove its folder."""
        self._own_store.close()
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def free_port() -> int:
    """Return a free TCP port of this host that the kernel gives to no other process for a minute.

    The kernel hands out no port on which a connection has just ended (TIME_WAIT), yet a server may bind it by number.
    """
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()  # this end first, so that TIME_WAIT is at our port
        return port


def is_alive(pid: int) -> bool:
    """Return whether a process is alive; a zombie is not, once all its threads have ended and its files are closed."""
    try:
        return any(_state(task) not in ("", "Z") for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return False


def freeze(pid: int) -> None:
    """Freeze a process, and wait until each of its threads has stopped: the signal takes effect with a delay."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    if tasks.exists():  # not on macOS
        wait_until(lambda: all(_state(task) == "T" for task in tasks.iterdir()), f"process {pid} to stand still")


def _state(process: Path) -> str:
    """Return the state letter of a process or thread, given its folder in /proc; "" if it has ended."""
    try:
        return (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return ""
