"""Bulk pushes of huge jobs, and of many: memory stays bounded, and an error says what is enqueued."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kiqcluster import Client
from kiqcluster.client import preparation
from kiqcluster.client.writes import MAX_JOBS_PER_ROUND_TRIP
from kiqcluster.errors import InvalidPush, ReplyLost
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import ROOT, wait_until
from tests.proxy import Proxy

# In the short form: redis/test_bulk.py.
pytestmark = pytest.mark.full

HUGE_JOBS, HUGE = sized((60, 2_000_000), (40, 20_000_000))  # how many, and characters in an argument of each
MAX_PUSH_MEMORY_FACTOR = 2.5  # of the payloads' bytes that a push may take in memory
SPARE_BYTES = 30_000_000  # and besides
MAX_WORKER_MEMORY_FACTOR = 0.5  # of the payloads' bytes that a worker may take; it has a few of them at a time
THREADS = 2
PUSHED_JOBS = sized(10_000, 50_000)  # jobs of one push
PARTS, PART_BYTES = 5, 6_000_000  # jobs of a push that is broken off, so large that each goes by itself

PUSH = """
import json, sys
from pathlib import Path
from kiqcluster import Client, Store

def peak():
    return 1_024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

address, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
arguments = [[0, "x" * size] for _ in range(count)]
before = peak()
jids = Client(Store(address)).push_bulk({"class": "Work", "args": arguments})
print(json.dumps([jids, peak() - before]))
"""


def peak_memory(pid: int) -> int:
    """Return the most bytes that a process had in memory so far."""
    return 1_024 * int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])


def pushes(store: Store) -> int:
    """Return how many LPUSH the server has run."""
    found = re.search(rb"cmdstat_lpush:calls=(\d+)", store.call("INFO", "commandstats"))
    return int(found[1]) if found else 0


def test_a_bulk_push_of_huge_jobs_takes_little_more_memory_than_they_do_and_a_worker_less(stage: ChaosStage) -> None:
    command = [sys.executable, "-c", PUSH, stage.redis.url, str(HUGE_JOBS), str(HUGE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    jids, pushing = json.loads(done.stdout)

    cluster = stage.run_cluster("default", "-c", str(THREADS))
    pid = cluster.wait_ready()[0]
    before = peak_memory(pid)
    wait_until(lambda: stage.ledger.has_ended(jids), "all to end", seconds=120)
    wait_until(lambda: not stage.remaining(), "all to be settled")

    running = peak_memory(pid) - before
    audit, payloads = stage.ledger.audit(jids), HUGE_JOBS * HUGE
    stage.report({**audit.counts(), "MB": payloads // 10**6, "push": pushing // 10**6, "worker": running // 10**6})
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert pushing <= MAX_PUSH_MEMORY_FACTOR * payloads + SPARE_BYTES
    assert running <= MAX_WORKER_MEMORY_FACTOR * payloads
    assert cluster.pids() == {0: pid}


def test_a_bulk_push_of_many_jobs_goes_a_thousand_at_a_time_and_each_runs_once(stage: ChaosStage) -> None:
    before = pushes(stage.store)

    jids = stage.push_many("Work", [[0]] * PUSHED_JOBS)

    assert len(set(jids)) == PUSHED_JOBS
    assert pushes(stage.store) - before == PUSHED_JOBS / MAX_JOBS_PER_ROUND_TRIP
    stage.run_cluster("default", "-c", str(THREADS))
    wait_until(lambda: stage.ledger.has_ended(jids), "all to end", seconds=60)
    wait_until(lambda: not stage.remaining(), "all to be settled")
    audit = stage.ledger.audit(jids)
    stage.report(audit.counts())
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()


def test_a_huge_bulk_push_that_is_broken_off_says_which_jobs_are_enqueued(stage: ChaosStage) -> None:
    arguments = [[0, f"part {number} {'x' * PART_BYTES}"] for number in range(PARTS)]
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        proxy.halve(b"part 3 ")
        pusher = Client(Store(proxy.url), Setup(config=Config()))

        with pytest.raises(ReplyLost) as caught:
            pusher.push_bulk({"class": "Work", "args": arguments})

    certain, unknown = caught.value.enqueued, caught.value.jids
    assert (len(certain), len(unknown)) == (3, 1)
    assert f"certainly enqueued: 3 of {PARTS} jobs" in str(caught.value)
    stage.run_cluster("default", "-c", str(THREADS))
    wait_until(lambda: stage.ledger.has_ended(certain), "what was enqueued to end")
    wait_until(lambda: not stage.remaining(), "all to be settled")
    audit = stage.ledger.audit(certain)
    assert audit.lost == audit.repeated.keys() == audit.strangers - set(unknown) == set()


def test_a_payload_that_no_redis_takes_is_refused_before_anything_is_sent(
    stage: ChaosStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "MAX_PAYLOAD_BYTES", PART_BYTES)  # the real one is no fun to hold in memory

    with pytest.raises(InvalidPush, match=r"entry 1: .*Redis takes"):
        stage.push_many("Work", [[0, "x"], [0, "x" * PART_BYTES], [0, "x"]])

    assert stage.store.call("DBSIZE") == 0
