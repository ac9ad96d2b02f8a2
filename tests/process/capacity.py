"""Capacity: how few slots of a cluster were ready during a `with` block, and how many workers ran at most."""

from __future__ import annotations

import threading

from tests.kit import PAUSE, Cluster, is_alive
from tests.proc import children


class Capacity:
    """A thread that reads both again and again.  samples: how often it did."""

    def __init__(self, cluster: Cluster) -> None:
        self.fewest_ready, self.most_processes, self.samples = 1_000.0, 0, 0
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._over.is_set():
            self.fewest_ready = min(self.fewest_ready, self._cluster.metric('kiqcluster_children{state="ready"}'))
            self.most_processes = max(self.most_processes, len(self._workers()))
            self.samples += 1
            PAUSE.wait(0.04)  # a slot that is not ready is so for as long as a worker boots, which is longer

    def _workers(self) -> set[int]:
        """Return the pids of the live workers, without the processes that inspect the application."""
        return {each["child"] for each in self._cluster.seen("child_started")} & {
            pid for pid in children(self._cluster.pid) if is_alive(pid)
        }

    def __enter__(self) -> Capacity:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
