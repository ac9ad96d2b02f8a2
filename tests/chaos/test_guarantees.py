"""Jobs that use all guarantees together, while workers are killed and stand still, strikes come and limits change.

Every job ends, or is in the dead set as a suspect; limits hold; nothing is held afterwards.
"""

from __future__ import annotations

import base64
import os
import signal
import time
from collections import defaultdict
from contextlib import suppress

import pytest

import tests.apps.guarantees as app  # registers its jobs, so that pushes here go through the features
from kiqcluster import Client
from kiqcluster.api import LockSet, StrikeSet, concurrency_limits, end_override, override_limit
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, Cluster, wait_until
from tests.stage import pid_of

ROUNDS = sized(5, 250)
PUSHES_PER_ROUND = 60
MAX_PAUSE_SECONDS = 0.004  # between pushes
MAX_JOB_MS = 20
BALLAST_BYTES = 3_000  # compressed from MAX_PLAIN_BYTES on
MAX_PLAIN_BYTES = 1_000
SHORT_FREEZE_SECONDS = 0.3  # much less than after what others recover a process
STRIKE_SECONDS, STRIKE_DELAY_SECONDS = 1.0, 0.2
KEYS = f"1:{base64.b64encode(b'k' * 32).decode()}"  # of encrypted arguments
HANGING_ROUNDS = ROUNDS - 2  # of which each has a job beyond its timeout_hard
PAGES, ACCOUNTS = [f"page{number}" for number in range(4)], ["a", "b", "c"]


class Pushes:
    """What was pushed: jids, and for each page when it was pushed last, by the clock in Redis."""

    def __init__(self, stage: ChaosStage) -> None:
        self.stage = stage
        config = Config(
            size_limiter_mode="compress", size_limiter_compression_threshold_bytes=MAX_PLAIN_BYTES, encryption_keys=KEYS
        )
        self.client = Client(stage.store, Setup(config=config))
        self.jids: set[str] = set()
        self.count = 0
        self.last: dict[str, int] = defaultdict(int)

    def push_hanging(self, number: int) -> None:
        self.jids.add(self.client.push({"class": "Hang", "args": [f"hang{number}", 1.0]}) or "")

    def push(self) -> None:
        rng = self.stage.rng
        name = rng.choice(("Refresh", "Refresh", "Export", "Sync", "Deliver"))
        subject = rng.choice({"Refresh": PAGES, "Export": ACCOUNTS}.get(name, PAGES))
        ballast = "x" * rng.choice((0, 0, 0, BALLAST_BYTES))
        payload = {"class": name, "args": [subject, float(rng.randrange(MAX_JOB_MS)), ballast]}
        if name in ("Export", "Deliver") and rng.random() < 0.2:
            payload["at"] = time.time() + rng.random()
        if name == "Refresh":
            self.last[subject] = self.stage.store.call("INCR", "clock")
        jid = self.client.push(payload)
        assert jid is not None
        self.jids.add(jid)
        self.count += 1


def disturb(stage: ChaosStage, cluster: Cluster, number: int) -> None:
    """Do to the fleet what happens to fleets, a worker's death among it."""
    match number % 5:
        case 0:
            StrikeSet(store=stage.store).add("defer", STRIKE_SECONDS, name="Sync", delay=STRIKE_DELAY_SECONDS)
        case 1:
            override_limit("Export", 1, STRIKE_SECONDS, store=stage.store)
        case 2:
            end_override("Export", store=stage.store)
        case 3:
            pid = stage.rng.choice(sorted(cluster.pids().values()))
            with suppress(ProcessLookupError):  # as below
                os.kill(pid, signal.SIGSTOP)
                PAUSE.wait(SHORT_FREEZE_SECONDS)
                os.kill(pid, signal.SIGCONT)
    slot = number % 2
    pid = wait_until(lambda: cluster.pids().get(slot), "a process in the slot")
    with suppress(ProcessLookupError):  # it is being replaced already, because a job ran for too long
        os.kill(pid, signal.SIGKILL)
        stage.ledger.died(pid)
    wait_until(lambda: cluster.pids().get(slot, pid) != pid, "the next process")


def is_over(stage: ChaosStage) -> bool:
    """Return whether no job waits anywhere: in a queue, in flight, for its time, or for a place."""
    if stage.remaining().keys() - {"dead", "kiq:suspects"}:
        return False
    return not any(each.holders or each.parked for each in concurrency_limits(store=stage.store))


@pytest.mark.timeout(sized(120, 3_600))
def test_all_guarantees_hold_together_though_workers_are_killed(stage: ChaosStage) -> None:
    environ = {"KIQ_RESPAWN_BURST": "1000", "KIQ_SIZE_LIMITER_MODE": "compress", "KIQ_ENCRYPTION_KEYS": KEYS}
    environ["KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL"] = "0.5"
    cluster = stage.run_cluster("default", "default", "-c", "6", app="tests.apps.guarantees", **environ)
    cluster.wait_ready(2)
    pushes = Pushes(stage)
    began_at = time.monotonic()

    for number in range(ROUNDS):
        if number < HANGING_ROUNDS:
            pushes.push_hanging(number)
        for _ in range(PUSHES_PER_ROUND):
            pushes.push()
            PAUSE.wait(stage.rng.uniform(0, MAX_PAUSE_SECONDS))
        disturb(stage, cluster, number)
    wait_until(lambda: is_over(stage), "all jobs to end", sized(60, 600))
    seconds = time.monotonic() - began_at

    buried = {entry["jid"]: entry for entry in stage.dead()}
    began: dict[str, list[tuple[int, int]]] = defaultdict(list)  # line → when, how many ran
    for line in stage.notes():
        _, name, at, running = line.split()
        began[name].append((int(at), int(running)))
    most = {name: max(running for _, running in runs) for name, runs in began.items()}
    ended = stage.ledger.ended().keys()
    stage.report(
        {
            "kills": ROUNDS,
            "pushes": pushes.count,
            "jobs": len(pushes.jids),
            "ended": len(ended),
            "buried": len(buried),
            "lost": len(pushes.jids - ended - buried.keys()),
            "begins of sync a second": round(len(began["sync"]) / seconds, 1),
        }
    )
    assert pushes.jids - ended - buried.keys() == set()
    assert all(entry["interrupted_count"] for entry in buried.values())
    assert {name: most[f"refresh:{name}"] for name in PAGES} == dict.fromkeys(PAGES, 1)
    assert max(most[f"export:{name}"] for name in ACCOUNTS) <= app.EXPORTS_AT_ONCE
    assert len(began["sync"]) <= app.SYNCS_PER_SECOND * (seconds + 1)
    assert [page for page, at in pushes.last.items() if began[f"refresh:{page}"][-1][0] < at] == []
    assert list(LockSet(store=stage.store)) == []
    assert stage.store.call("KEYS", "kiq:held:*") == []
    assert {pid_of(name) for name in stage.members()} == set(cluster.pids().values())
