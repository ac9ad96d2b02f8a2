"""Idle workers that wait with hand lists, under everything that can befall such a wait; every job is accounted for.

A worker is killed or frozen while it waits, or has just received; its waiting connections are killed; Redis stands
still; queues are paused.  No supervisor kills what is frozen: others recover it.
"""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from kiqcluster.api import Queue
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, freeze, wait_until
from tests.stage import pid_of

# In the short form: properties/test_hand_lists.py, process/test_idle.py.
pytestmark = pytest.mark.full

ATTACKS = sized(12, 300)
ENVIRON = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": "2"}
JOBS = 6  # one by one, around each attack


class Attacks:
    """Two clusters of one idle worker each, and what befalls them.  frozen: pids that are thawed after a while."""

    def __init__(self, stage: ChaosStage, rng: Random) -> None:
        self.stage, self.rng = stage, rng
        self.clusters = [stage.run_cluster("default", "-c", "2", app="tests.apps.basic", **ENVIRON) for _ in range(2)]
        for cluster in self.clusters:
            cluster.wait_ready()
        self.pushed = 0
        self.frozen: list[int] = []
        self.all: list[Callable[[], None]] = [
            self.kill,
            self.freeze,
            self.end_connections,
            self.stand_still,
            self.pause_clients,
            self.pause_queue,
        ]

    def push(self) -> None:
        for _ in range(JOBS):
            self.stage.push("record", str(self.pushed))
            self.pushed += 1
            PAUSE.wait(self.rng.choice((0.0, 0.002, 0.02)))

    def pid(self) -> int:
        """Return the pid of a worker that lives and is not frozen."""

        def alive() -> list[int]:
            pids = sorted(pid_of(name) for name in self.stage.members())
            return [pid for pid in pids if pid not in self.frozen and Path(f"/proc/{pid}").exists()]

        return self.rng.choice(wait_until(alive, "a worker to live"))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid(), signal.SIGKILL)

    def freeze(self) -> None:
        if not self.frozen:
            pid = self.pid()
            freeze(pid)
            self.frozen.append(pid)

    def thaw(self) -> None:
        for pid in self.frozen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.frozen.clear()

    def end_connections(self) -> None:
        """End the connections that wait, on the server."""
        clients = self.stage.store.call("CLIENT", "LIST").decode()
        for client_id in re.findall(r"^id=(\d+) .*cmd=blmove", clients, re.MULTILINE):
            self.stage.store.call("CLIENT", "KILL", "ID", client_id)

    def stand_still(self) -> None:
        with self.stage.redis.stalled():
            PAUSE.wait(self.rng.choice((0.1, 0.5)))

    def pause_clients(self) -> None:
        self.stage.store.call("CLIENT", "PAUSE", 400, "ALL")

    def pause_queue(self) -> None:
        queue = Queue("default", store=self.stage.store)
        queue.pause()
        self.stage.push("record", str(self.pushed))
        self.pushed += 1
        queue.resume()


def test_whatever_befalls_idle_workers_no_job_is_lost_or_left(stage: ChaosStage, rng: Random) -> None:
    attacks = Attacks(stage, rng)

    for number in range(ATTACKS):
        attacks.push()
        rng.choice(attacks.all)()
        attacks.push()
        if number % 3 == 2:
            PAUSE.wait(rng.choice((0.5, 3.0)))
            attacks.thaw()
    attacks.thaw()

    wanted = {f"ran {number}" for number in range(attacks.pushed)}
    wait_until(lambda: set(stage.notes()) == wanted, f"all jobs to run, not {stage.remaining()}")
    wait_until(lambda: not stage.remaining(), "nothing to be left")
    runs = Counter(stage.notes())
    print(f"{sum(count > 1 for count in runs.values())} of {len(runs)} ran more than once")
    for cluster in attacks.clusters:
        assert cluster.stop() == 0
    assert stage.remaining() == {}
