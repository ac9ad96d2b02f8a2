"""What --preload saves: memory of a cluster whose application holds 50 MB of objects (benchmarks/apps/heavy.py).

    python -m benchmarks.preload [--workers 4]

A cluster is measured when it is idle, when each worker has read a hundredth of the objects, and when it has read all of
them: reading an object counts references in it, and that copies the page which it is on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.processes import kill_trees, proportional_memory, tree
from benchmarks.server import Server
from benchmarks.stage import Failed, wait_until
from kiqcluster import Client, Store

ROOT = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 60.0
SETTLE_SECONDS = 2.0  # until a cluster is called idle
READS = {"idle": 0.0, "1 % read": 0.01, "all read": 1.0}


def queue(slot: int) -> str:
    return f"queue{slot}"


@contextmanager
def cluster(server: Server, workers: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a cluster for a `with` block; it begins when each worker has run a job."""
    settings = ["-r", "benchmarks.apps.heavy", "-c", "1", "--redis", server.url, "--listen", "off"]
    groups = [queue(slot) for slot in range(workers)]
    command = [sys.executable, "-m", "kiqcluster", *settings, *options, "--log-level", "error", *groups]
    root = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
    try:
        yield root
    finally:
        kill_trees([root])


def have_read(server: Server, workers: int, share: float) -> None:
    """Return once each worker has run a job that reads so much."""
    server.redis.delete("stat:processed")
    client = Client(Store(server.url))
    for slot in range(workers):
        client.push({"class": "read", "args": [share], "queue": queue(slot)})
    if not wait_until(lambda: server.redis.get("stat:processed") == str(workers), TIMEOUT_SECONDS):
        raise Failed("the workers did not run their jobs")
    time.sleep(SETTLE_SECONDS)


def measure(server: Server, workers: int, *options: str) -> Iterator[tuple[str, float, float]]:
    """Yield for each state its name, the supervisor's megabytes and those of the workers together (PSS)."""
    with cluster(server, workers, *options) as root:
        for name, share in READS.items():
            have_read(server, workers, share)
            supervisor, *others = tree(root)
            yield name, proportional_memory(supervisor), sum(map(proportional_memory, others))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    workers = parser.parse_args().workers
    print("| PSS, MB | supervisor | workers | together |\n| --- | --- | --- | --- |")
    with TemporaryDirectory(prefix="kiq-bench-") as folder:
        server = Server(Path(folder))
        try:
            for option in ("", "--preload"):
                for state, supervisor, others in measure(server, workers, *filter(None, [option])):
                    row = [f"{option or 'without'}, {state}", *(f"{each:.0f}" for each in (supervisor, others))]
                    print(f"| {' | '.join([*row, f'{supervisor + others:.0f}'])} |", flush=True)
        finally:
            server.close()


if __name__ == "__main__":
    main()
