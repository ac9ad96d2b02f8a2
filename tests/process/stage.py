"""What process tests look at: the jobs' ledger, the state in Redis, and what /proc says of a process."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from kiqcluster import Client
from kiqcluster.config import Config
from kiqcluster.control import process_registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.kit import PAUSE, ROOT, Cluster, free_port, http_get, is_alive, wait_until


def push(store: Store, name: str, *args: Any, **options: Any) -> str:
    """Enqueue a job by name and return its jid; options: queue, and any payload key."""
    jid = Client(store, Setup(config=Config())).push({"class": name, "args": list(args), **options})
    assert jid is not None
    return jid


def push_many(store: Store, name: str, arguments: list[list[Any]], **options: Any) -> list[str]:
    """Enqueue a job for each list of arguments and return their jids."""
    jids = Client(store, Setup(config=Config())).push_bulk({"class": name, "args": arguments, **options})
    return [jid for jid in jids if jid is not None]


def ledger(store: Store) -> list[str]:
    """Return what the jobs have noted (tests/apps/basic.py), in order."""
    return [line.decode() for line in store.call("LRANGE", "ledger", 0, -1)]


def wait_noted(store: Store, *lines: str) -> None:
    """Wait until the jobs have noted these lines, among others."""
    wait_until(lambda: set(lines) <= set(ledger(store)), f"the ledger to hold {lines}")


def occupy(cluster: Cluster, store: Store, slots: int = 1) -> dict[int, int]:
    """Have the job a run in slot 0 until `release`; return slot → pid once that many slots are ready."""
    push(store, "stubborn", "a")
    wait_noted(store, "began a")
    return cluster.wait_ready(slots)


def release(store: Store) -> None:
    """Let the stubborn jobs of tests/apps/basic.py end."""
    store.call("RPUSH", "release", "now")


def queued(store: Store, queue: str = "default") -> list[Any]:
    """Return the payloads that wait, the one to be fetched next first."""
    return [ruby_json.decode(raw) for raw in reversed(store.call("LRANGE", f"queue:{queue}", 0, -1))]


def words(payloads: list[Any]) -> list[str]:
    """Return the first argument of each."""
    return [payload["args"][0] for payload in payloads]


def dead(store: Store) -> list[Any]:
    return [ruby_json.decode(raw) for raw in store.call("ZRANGE", "dead", 0, -1)]


def identities(store: Store) -> set[str]:
    """Return the members: who may reserve."""
    return {name.decode() for name in store.call("HKEYS", "kiq:members")}


def holders(store: Store) -> set[str]:
    """Return the identities that hold units."""
    return {key.decode().removeprefix("kiq:inflight:") for key in store.call("KEYS", "kiq:inflight:*")}


def pid_of(identity: str) -> int:
    return int(identity.rsplit(":", 2)[1])


def wait_settled(store: Store) -> None:
    """Wait until no process holds a unit."""
    wait_until(lambda: not holders(store), "every unit to be settled")


def wait_only_live(store: Store, *pids: int) -> None:
    """Wait until the members are exactly these processes, and nobody else holds units."""

    def only_live() -> bool:
        return {pid_of(name) for name in identities(store)} == set(pids) and holders(store) <= identities(store)

    wait_until(only_live, f"kiq:members and kiq:inflight to name only the processes {pids}")


def wait_gone(*pids: int) -> None:
    """Wait until no process of these lives."""
    wait_until(lambda: not any(is_alive(pid) for pid in pids), f"the processes {pids} to end")


def wait_children(cluster: Cluster, *pids: int) -> None:
    """Wait until the supervisor has these children and no others, zombies included.

    A catalogue child tells what it has found, good or bad, and ends a moment later.
    """
    wait_until(lambda: sorted(children(cluster.pid)) == sorted(pids), f"{pids} to be the only children")


def metric(cluster: Cluster, sample: str) -> float:
    """Return the value of a sample as it is written on /metrics, `name{label="value",…}`; 0 while it is not there."""
    text = http_get(cluster.port, "/metrics")[2].decode()
    found = re.search(rf"^{re.escape(sample)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def families(cluster: Cluster) -> dict[str, Metric]:
    """Return the metrics of a scrape by name, as their samples have it."""
    page = http_get(cluster.port, "/metrics", headers="Accept: application/openmetrics-text\r\n")[2].decode()
    added = {"counter": "_total", "info": "_info"}
    return {family.name + added.get(family.type, ""): family for family in parse_openmetrics(page)}


def restarts(cluster: Cluster, reason: str, slot: int = 0) -> float:
    return metric(cluster, f'kiqcluster_child_restarts_total{{reason="{reason}",slot="{slot}"}}')


def told(store: Store) -> list[Mapping[str, Any]]:
    """Return what supervisors are doing, as each of their processes shows it in Redis."""
    return [process.cluster for process in process_registry.list_processes(store) if process.cluster is not None]


def wait_told(store: Store, what: str, condition: Callable[[Mapping[str, Any]], Any]) -> Mapping[str, Any]:
    """Wait until a process shows that its supervisor is at something; return what it shows."""
    return wait_until(lambda: next(filter(condition, told(store)), None), what)


def wait_roll(store: Store, state: str) -> Mapping[str, Any]:
    """Wait until the latest rolling restart shows as rolling, done or failed; return its report."""
    is_there = wait_told(store, f"a roll to be {state}", lambda each: each["roll"] and each["roll"]["state"] == state)
    report: Mapping[str, Any] = is_there["roll"]
    return report


def slots(cluster: Cluster) -> list[dict[str, Any]]:
    """Return what /status says of each slot."""
    found: list[dict[str, Any]] = ruby_json.decode(http_get(cluster.port, "/status")[2])["slots"]
    return found


def readiness(cluster: Cluster) -> tuple[int, str]:
    """Return status and reason."""
    status, _, body = http_get(cluster.port, "/readiness")
    return status, ruby_json.decode(body).get("reason", "")


def is_ready(port: int) -> bool:
    """Return whether the cluster that listens there is ready."""
    try:
        return http_get(port, "/readiness")[0] == 200
    except OSError:  # it does not listen yet
        return False


def fill_output(pid: int) -> None:
    """Fill the pipe that a process writes its log to."""
    writer = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY | os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"x" * select.PIPE_BUF)
    except BlockingIOError:
        os.close(writer)


@contextmanager
def unread_cluster(*arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a cluster whose output nobody reads; yield it and its port once it is ready and its output full."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "kiqcluster", *arguments, "--listen", f"127.0.0.1:{port}"],
        cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        wait_until(lambda: is_ready(port), "the cluster to be ready")
        fill_output(process.pid)
        yield process, port
    finally:
        for pid in children(process.pid) if process.poll() is None else ():
            os.kill(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        process.stdout.close()


def open_files(pid: int) -> set[str]:
    """Return what a process holds open: paths, `socket:[inode]`, `pipe:[inode]`."""
    targets = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.add(str(fd.readlink()))
        except FileNotFoundError:  # closed since it was listed
            continue
    return targets


def sockets(pid: int) -> set[str]:
    """Return the sockets and pipes that a process holds open, as `socket:[inode]`."""
    return {target for target in open_files(pid) if target.startswith(("socket:", "pipe:"))}


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> list[int]:
    """Return the pids of a process' children, zombies included."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Capacity:
    """Looks at a cluster for a `with` block: how few slots were ready, how many processes there were at most."""

    def __init__(self, cluster: Cluster) -> None:
        self.fewest_ready, self.most_processes, self.looks = 1_000.0, 0, 0
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._over.is_set():
            self.fewest_ready = min(self.fewest_ready, metric(self._cluster, 'kiqcluster_children{state="ready"}'))
            self.most_processes = max(self.most_processes, len(_workers(self._cluster)))
            self.looks += 1
            PAUSE.wait(0.01)

    def __enter__(self) -> Capacity:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _workers(cluster: Cluster) -> set[int]:
    """Return the pids of the workers that live; not the processes that look at the application."""
    return {each["child"] for each in cluster.seen("child_started")} & {
        pid for pid in children(cluster.pid) if is_alive(pid)
    }


class Releases:
    """Releases of an application side by side, and the link `current` to one of them, as Capistrano has them.

    Each is a module `shop`; a job of it, `release`, notes the release that runs it.
    """

    def __init__(self, directory: Path) -> None:
        self.current = directory / "current"
        self._directory = directory / "releases"

    def deploy(self, name: str, source: str = "") -> None:
        """Write a release and move the link to it."""
        place = self._directory / name
        place.mkdir(parents=True, exist_ok=True)
        (place / "shop.py").write_text(f"{HEAD.format(name=name)}\n{dedent(source)}")
        link = self._directory / "next"
        link.symlink_to(place)
        link.rename(self.current)

    def path(self, name: str) -> str:
        return str((self._directory / name).resolve())

    def run(self, run_cluster: Callable[..., Cluster], *arguments: str, **environ: str) -> Cluster:
        """Start a cluster on what `current` leads to."""
        return run_cluster(*arguments, "--directory", str(self.current), app="shop", **environ)


HEAD = """
import os, pathlib, threading, time
from kiqcluster import job, on
from tests.apps.basic import nap, note, record, stubborn

@job()
def release():
    note("release", {name!r})

@job()
def where():
    note("slot", os.environ["KIQ_SLOT"], "pid", os.getpid())
"""
