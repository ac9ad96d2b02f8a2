"""Three clusters enqueue the ticks of many entries while they are killed, frozen and made quiet: each tick once."""

from __future__ import annotations

import os
import signal
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from kiqcluster.api import CronSet
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, Cluster, is_alive, wait_until

# In the short form: properties/test_cron_walk.py, process/test_cron.py.
pytestmark = pytest.mark.full

SECONDS, ENTRIES = sized((6, 20), (100, 100))
ATTACK_SECONDS = 0.3  # between two attacks
MAX_FREEZE_SECONDS = 2.0
APP = "tests.apps.cron"


def write_entries(folder: Path) -> Path:
    file = folder / "kiqcluster.toml"
    entry = '[cron.e{0}]\nschedule = "* * * * * *"\njob = "count"\nargs = [{0}]\n'
    file.write_text("".join(entry.format(number) for number in range(ENTRIES)))
    return file


class Attacks:
    """Kills, freezes and quiets at random; counts them by kind."""

    def __init__(self, clusters: list[Cluster], rng: Random) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self._clusters = clusters
        self._rng = rng
        self._quiet: set[Cluster] = set()

    def strike(self) -> None:
        cluster, kind = self._rng.choice(self._clusters), self._rng.choice(["kill", "kill", "freeze", "quiet"])
        pids = sorted(pid for pid in cluster.pids().values() if is_alive(pid))
        if kind == "quiet":
            cluster.signal(signal.SIGCONT if cluster in self._quiet else signal.SIGTSTP)
            self._quiet ^= {cluster}
        elif pids:
            pid = self._rng.choice(pids)
            os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            if kind == "freeze":
                PAUSE.wait(self._rng.uniform(0, MAX_FREEZE_SECONDS))
                os.kill(pid, signal.SIGCONT)
        else:
            return
        self.counts[kind] += 1

    def end(self) -> None:
        for cluster in self._quiet:
            cluster.signal(signal.SIGCONT)


def ticks(stage: ChaosStage) -> Mapping[str, dict[int, set[str]]]:
    """Return entry → tick → jids of its jobs: of those that ran, and of those that died too often."""
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for line in stage.notes():
        _, name, tick, jid = line.split()
        found[name][int(tick)].add(jid)
    for payload in stage.dead():
        found[payload["cron"]][payload["cron_at"]].add(payload["jid"])
    return found


def test_no_tick_is_lost_or_doubled_though_processes_are_killed(stage: ChaosStage) -> None:
    file = write_entries(stage.folder)
    clusters = [
        stage.run_cluster("-C", str(file), "cronjob:*", "default", "-c", "2", app=APP, KIQ_HEALTH_RESPAWN_BURST="1000")
        for _ in range(3)
    ]
    for cluster in clusters:
        cluster.wait_ready(2)
    wait_until(lambda: len(ticks(stage)) > ENTRIES, "a tick of each entry to run")
    attacks = Attacks(clusters, stage.rng)
    last = max(max(each) for each in ticks(stage).values()) + SECONDS

    def is_over() -> bool:
        PAUSE.wait(ATTACK_SECONDS)
        attacks.strike()
        return any(max(each) > last for each in ticks(stage).values())

    wait_until(is_over, "the ticks of the attack to be over", 20 * SECONDS)
    attacks.end()
    wait_until(lambda: all(max(each) > last for each in ticks(stage).values()), "all entries to be there", 60)
    entries = CronSet(store=stage.store)
    for status in entries.list():
        entries.disable(status.name)
    wait_until(lambda: stage.remaining().keys() <= {"dead", "kiq:suspects"}, "all jobs to end", 120)

    found = ticks(stage)
    stage.report({"entries": len(found), "ticks": sum(map(len, found.values())), **attacks.counts})
    assert {name: at for name, at in found.items() if sorted(at) != list(range(min(at), max(at) + 1))} == {}
    doubled = {(name, tick): jids for name, at in found.items() for tick, jids in at.items() if len(jids) > 1}
    assert doubled == {}
    assert sum(map(len, found.values())) >= ENTRIES * SECONDS
