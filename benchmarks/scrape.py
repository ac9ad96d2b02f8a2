"""What /metrics costs the supervisor: 20 workers × 200 job classes, every series of which changes every second.

    python -m benchmarks.scrape [--workers 20] [--classes 200] [--scrapes 20]

The supervisor's pages and its loop in small, with real frames over socketpairs.  The workers' numbers are kept by one
process of their own, and the scraper is another, so that what is measured is the supervisor's alone.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import multiprocessing
import os
import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from kiqcluster.ipc.frames import Channel
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.tallies import Tally
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.http.endpoints import Endpoints
from kiqcluster.supervisor.metrics.page import ClusterMetrics
from kiqcluster.worker.metrics.metrics_delta import MetricsDelta

CLOCK = SystemClock()
FORK = multiprocessing.get_context("fork")
SOCKET_BUFFER_BYTES = 1 << 22  # that wait in a socket: a worker never waits for the supervisor
UNUSED_PID = 1 << 22  # beyond every pid: processes that are not there are not looked at

Turn = tuple[float, float]  # seconds; seconds of CPU, which tell of nobody else on the machine


# the workers


class Worker:
    """The numbers of one worker, and its end of the socketpair."""

    def __init__(self, theirs: socket.socket, classes: int) -> None:
        self._channel = Channel(theirs)
        self._metrics = JobMetrics(10, list)
        self._metrics_delta = MetricsDelta()
        self._tallies = self._metrics.tallies()
        for index in range(classes):
            self._tallies[f"Namespace::SomeRather{index}LongWorker", f"queue_{index}"] = Tally()

    def work(self, index: int) -> None:
        """Run a job of each class."""
        for tally in self._tallies.values():
            tally.add(Done(), 0.01 * (index % 50), 0.01 * index, was_retried=False, used=0.005)

    def tell(self) -> None:
        for frame in self._metrics_delta.changed(self._metrics.changed()):
            self._channel.send("metrics", **frame)


def keep_numbers(ends: Sequence[socket.socket], classes: int, orders: Connection) -> None:
    """Be all workers: at each order every class runs once in each, and all is told."""
    workers = [Worker(end, classes) for end in ends]
    index = 0
    while orders.recv():
        for worker in workers:
            if index:
                worker.work(index)
            worker.tell()
        index += 1
        orders.send("told")


# the scraper


def scrape(path: str, encoding: str) -> tuple[float, bytes]:
    """Return how long a scrape took, and its body."""
    began = time.monotonic()
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(path)
        sock.sendall(f"GET /metrics HTTP/1.1\r\nAccept-Encoding: {encoding}\r\n\r\n".encode())
        parts = []
        while part := sock.recv(1 << 20):
            parts.append(part)
    return time.monotonic() - began, b"".join(parts).partition(b"\r\n\r\n")[2]


def scrape_on_order(path: str, orders: Connection) -> None:
    """Scrape at each order, which is the encoding; answer with seconds, bytes sent, bytes."""
    while encoding := orders.recv():
        took, body = scrape(path, encoding)
        orders.send((took, len(body), len(gzip.decompress(body) if encoding == "gzip" else body)))


# the supervisor


@dataclass
class Supervisor:
    """The loop of kiqcluster.supervisor.supervisor in small: select, frames, pages."""

    selector: selectors.BaseSelector
    metrics: ClusterMetrics
    endpoints: Endpoints
    turns: list[Turn] = field(default_factory=list)

    def turn(self) -> None:
        ready = self.selector.select(0.0 if self.endpoints.is_busy else 0.01)
        began, used = CLOCK.monotonic(), CLOCK.cpu()
        for key, _ in ready:
            key.data()
        self.endpoints.advance()
        self.turns.append((CLOCK.monotonic() - began, CLOCK.cpu() - used))

    def take_in(self, slot: Slot, child: Child) -> None:
        for frame in child.channel.receive():
            self.metrics.add_frame(slot, child, frame)

    def turn_until(self, answered: Connection) -> None:
        """Turn until somebody has answered and nothing waits."""
        while not answered.poll() or self.endpoints.is_busy or self.selector.select(0.0):
            self.turn()


def make_supervisor(ends: Sequence[socket.socket], path: str) -> Supervisor:
    state, selector = ClusterState(), selectors.DefaultSelector()
    metrics = ClusterMetrics(state, CLOCK, Events())
    endpoints = Endpoints(state, "", lambda: None, metrics, lambda _: None, selector, CLOCK, Events())
    endpoints.listen(f"unix:{path}")
    supervisor = Supervisor(selector, metrics, endpoints)
    for number, end in enumerate(ends):
        slot = Slot(SlotPlan(number, parse_group("*"), {}, "random", 1))
        slot.child = Child(UNUSED_PID + number, Channel(end), started_at=0.0, beat=LastBeat(0.0))
        state.slots.append(slot)
        selector.register(end, selectors.EVENT_READ, partial(supervisor.take_in, slot, slot.child))
    return supervisor


def pairs(count: int) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return both ends of that many socketpairs."""
    ours, theirs = zip(*(socket.socketpair() for _ in range(count)), strict=True)
    for each in (*ours, *theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return list(ours), list(theirs)


def start(run: partial[None]) -> Connection:
    """Start a process; return where it takes orders."""
    ours, theirs = FORK.Pipe()
    FORK.Process(target=run, args=(theirs,), daemon=True).start()
    return ours


def shown(turns: Sequence[Turn]) -> str:
    seconds, used = (sorted(column) for column in zip(*turns, strict=True))
    return f"longest turn {seconds[-1] * 1e3:.1f} ms, {used[-1] * 1e3:.1f} ms of CPU"


def measure(workers: int, classes: int, scrapes: int) -> Iterator[str]:
    """Yield the figures, a line each."""
    with TemporaryDirectory() as folder:
        path = str(Path(folder) / "sock")
        ours, theirs = pairs(workers)
        staff = start(partial(keep_numbers, theirs, classes))
        scraper = start(partial(scrape_on_order, path))
        supervisor = make_supervisor(ours, path)
        gc.freeze()  # as the supervisor does
        staff.send("tell")
        supervisor.turn_until(staff)
        staff.recv()
        yield f"first frames of {workers} workers: {shown(supervisor.turns)}"
        for encoding in ("identity", "gzip"):
            yield from measure_scrapes(supervisor, staff, scraper, encoding, scrapes)
        memory = psutil.Process(os.getpid()).memory_info().rss
        yield f"memory of this process: {memory / 1e6:.0f} MB"


def measure_scrapes(
    supervisor: Supervisor, staff: Connection, scraper: Connection, encoding: str, scrapes: int
) -> Iterator[str]:
    took: list[float] = []
    frames: list[Turn] = []
    pages: list[Turn] = []
    sizes = (0, 0)
    for _ in range(scrapes):
        supervisor.turns = frames
        staff.send("tell")
        supervisor.turn_until(staff)
        staff.recv()
        supervisor.turns = pages
        scraper.send(encoding)
        supervisor.turn_until(scraper)
        seconds, *sizes = scraper.recv()
        took.append(seconds)
    cpu = sum(used for _, used in frames) / scrapes
    yield f"frames: {cpu * 1e3:.0f} ms of CPU for each second of the workers; {shown(frames)}"
    spread = f"median {statistics.median(took) * 1e3:.0f} ms, longest {max(took) * 1e3:.0f} ms"
    yield f"scrapes, {encoding}: {spread}; {shown(pages)}; {sizes[0]} bytes for {sizes[1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("workers", 20), ("classes", 200), ("scrapes", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for line in measure(**vars(parser.parse_args())):
        print(line)


if __name__ == "__main__":
    main()
