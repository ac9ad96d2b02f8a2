"""The Redis of a run: a server of our own, without persistence, on TCP; what it counts; and a slow way to it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from kiqcluster.store import embedded

__all__ = ["Counters", "Server", "free_port"]

ROOT = Path(__file__).resolve().parent.parent
ANSWER_TIMEOUT_SECONDS = 10.0  # until a server that does not answer is given up


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server has counted since it started.

    commands: run, those within scripts too.  reads: from its sockets; one that a client waits for is a round trip.
    cpu: seconds, user and system.
    """

    commands: int
    reads: int
    cpu: float

    def since(self, before: Counters) -> Counters:
        """Return what came between two looks, the look itself left out."""
        return Counters(self.commands - before.commands - 1, self.reads - before.reads - 1, self.cpu - before.cpu)


class Server:
    """A running server; the same for all peers of a run."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("redis-server") or embedded.find_server()
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"
        settings = ["--port", str(self._port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        # A simulated fleet connects from several addresses of this host, for one has too few ports.
        settings += ["--maxclients", "50000", "--protected-mode", "no"]
        with (folder / "redis.log").open("wb") as log:
            self._process = subprocess.Popen([program, *settings, "--dir", str(folder)], stdout=log, stderr=log)
        wait_for_port(self._port)
        self.redis = redis.Redis(port=self._port, decode_responses=True)

    def description(self) -> str:
        """Return the server's name, version and settings."""
        info = self.redis.info("server")
        name = info.get("server_name", "redis")
        return f"{name} {info[f'{name}_version']}, no persistence, TCP on 127.0.0.1"

    def counters(self) -> Counters:
        info = self.redis.info()
        cpu = info["used_cpu_user"] + info["used_cpu_sys"]
        return Counters(info["total_commands_processed"], info["total_reads_processed"], cpu)

    @contextmanager
    def far_away(self, seconds: float) -> Iterator[str]:
        """Yield a URL by which every round trip takes that much longer."""
        port = free_port()
        options = ["--listen", str(port), "--to", f"127.0.0.1:{self._port}", "--latency", f"{seconds / 2}s"]
        proxy = subprocess.Popen([sys.executable, "-m", "tests.proxy", *options], cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            wait_for_port(port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            proxy.kill()
            proxy.wait()

    def close(self) -> None:
        self.redis.close()
        self._process.kill()
        self._process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    """Return once somebody listens there.  Raises TimeoutError."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"nobody listened on port {port} within {ANSWER_TIMEOUT_SECONDS:g} s")
