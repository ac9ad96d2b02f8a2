"""What our tests share beside kiqcluster.testing, whose first user they are; what they use of it is to be had here.

Everything waits for an event or a stored state; nothing sleeps and hopes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from kiqcluster import testing
from kiqcluster.testing import RedisServer
from kiqcluster.testing.server import free_port, freeze, is_alive
from kiqcluster.testing.waiting import NEVER_SET as PAUSE  # waiting for it is how a poll pauses
from tests import forkserver

__all__ = [
    "PAUSE",
    "ROOT",
    "TIMEOUT_SECONDS",
    "Cluster",
    "JobsMiscounted",
    "ManualClock",
    "RedisServer",
    "cluster",
    "connect",
    "free_port",
    "freeze",
    "http_get",
    "is_alive",
    "is_in",
    "is_ready",
    "require",
    "require_module",
    "unavailable",
    "wait_until",
]

# For threads and programs that should take a fraction of a second; only a fault, or a very busy machine, takes as long.
TIMEOUT_SECONDS = 60.0
T = TypeVar("T")
ROOT = Path(__file__).resolve().parent.parent


def wait_until(condition: Callable[[], T], what: str, seconds: float = TIMEOUT_SECONDS) -> T:
    """Return the condition's first truthy value, as the kit's function of that name, which gives up sooner."""
    __tracebackhide__ = True
    return testing.wait_until(condition, what, seconds)


def require(program: str, package: str) -> str:
    """Return the path of a program, or skip the test loudly; fail where KIQ_REQUIRE_ALL=1 (CI) says so."""
    found = shutil.which(program)
    if found is None:
        unavailable(f"{program} is not installed (Debian: apt-get install {package})")
    return found


def require_module(name: str) -> None:
    """Do the same for a module of an extra or of the group dev.  At the level of a module it skips the whole file."""
    if importlib.util.find_spec(name) is None:
        unavailable(f"{name} is not installed (make .venv/.dev)")


def unavailable(message: str) -> NoReturn:
    """Skip the test for what this machine lacks; fail it where KIQ_REQUIRE_ALL=1 (CI) says so."""
    if os.environ.get("KIQ_REQUIRE_ALL") == "1":
        pytest.fail(f"KIQ_REQUIRE_ALL=1, but {message}")
    pytest.skip(message, allow_module_level=True)


class JobsMiscounted(AssertionError):
    """A job was lost or ran twice, or a counter fell: no matter of time, so that the test may not run again."""


COUNTER = re.compile(r"^(kiqcluster_\w+_(?:total|bucket|count)(?:\{.*\})?) (\S+)", re.MULTILINE)  # of a page of metrics
# Rolls do not bake, and what is due runs within a second; a test of either says otherwise.
SOON = {"KIQ_ROLL_BAKE_TIME": "0", "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.5"}


class Cluster(testing.Cluster):
    """A cluster that runs from the root of the repository, where its application is found, and that waits little."""

    timeout_seconds = TIMEOUT_SECONDS
    _popen = forkserver.Popen

    def __init__(
        self,
        arguments: Sequence[str],
        environ: dict[str, str] | None = None,
        cwd: Path = ROOT,
        stdin: int = subprocess.DEVNULL,
        through: Sequence[str] = (),
    ) -> None:
        super().__init__(arguments, {**SOON, **(environ or {})}, cwd, stdin, through)
        self._counters: dict[str, float] = {}  # as the last scrape had them

    def metric(self, sample: str) -> float:
        """Return the value of a sample as /metrics writes it, `name{label="value",…}`; 0 while it is not there."""
        text = self._scrape()
        found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def metric_families(self) -> dict[str, Metric]:
        """Return the metrics of a scrape, by the name that their samples have."""
        page = self._scrape("Accept: application/openmetrics-text\r\n")
        suffixes = {"counter": "_total", "info": "_info"}
        return {family.name + suffixes.get(family.type, ""): family for family in parse_openmetrics(page)}  # type: ignore[no-untyped-call]

    def _scrape(self, headers: str = "") -> str:
        """Return the page of metrics.  Raises JobsMiscounted if a counter has fallen since the last one."""
        page = http_get(self.port, "/metrics", headers=headers)[2].decode()
        counters = {name: float(value) for name, value in COUNTER.findall(page)}
        fallen = [
            f"{name} from {self._counters[name]:g} to {now:g}"
            for name, now in counters.items()
            if now < self._counters.get(name, 0.0)
        ]
        self._counters |= counters
        if fallen:
            raise JobsMiscounted(f"counters fell: {', '.join(fallen)}")
        return page

    def restarts(self, reason: str, slot: int = 0) -> float:
        """Return how often a slot's process was replaced for that reason."""
        return self.metric(f'kiqcluster_child_restarts_total{{reason="{reason}",slot="{slot}"}}')

    def slots(self) -> list[dict[str, Any]]:
        """Return what /status says of each slot."""
        found: list[dict[str, Any]] = json.loads(http_get(self.port, "/status")[2])["slots"]
        return found

    def readiness(self) -> tuple[int, str]:
        """Return status and reason of /readiness."""
        status, _, body = http_get(self.port, "/readiness")
        return status, json.loads(body).get("reason", "")

    def is_ready(self) -> bool:
        return is_ready(self.port)

    def wait_children(self, *pids: int) -> None:
        """Wait until the supervisor has these children and no others, zombies included.

        A child that reads the application's catalogue reports it, and exits a moment later.
        """
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        wait_until(lambda: {int(word) for word in path.read_text().split()} == set(pids), f"{pids} to be the children")


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


def is_ready(port: int) -> bool:
    """Return whether the cluster that listens at a port is ready."""
    try:
        return http_get(port, "/readiness")[0] == 200
    except OSError:  # it does not listen yet
        return False


def is_in(thread: threading.Thread, function: str) -> bool:
    """Return whether a thread is in that function, or in one that it has called."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


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

    def process_cpu(self) -> float:
        return self.used
