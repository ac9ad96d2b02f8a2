"""What a cluster leaves in Redis after jobs of every kind, deaths of workers and rolls: nothing that stays and grows.

A key with a time to live is bounded by that.  Of all others, number, types, fields and bytes are what they were.
"""

from __future__ import annotations

import re
import signal
from typing import Any, NamedTuple

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.stage import Jobs, Stage

IDENTITY = re.compile(r"[^:]+:\d+:[0-9a-f]{12}")
THEIRS = re.compile(r"ledger|suicide:.*|kiq:hands.*")  # what the jobs of the test write; and what is kept for an hour
DEAD_ENTRIES = 20  # entries of the dead set that are kept
SLACK_BYTES = 600  # bytes by which numbers and names of another length may differ


class Shape(NamedTuple):
    """What is there of all keys of one kind.  size: of all of them, fields, entries or characters."""

    kind: bytes
    keys: int
    size: int
    memory: int


SIZES = {b"hash": "HLEN", b"set": "SCARD", b"zset": "ZCARD", b"list": "LLEN"}


def census(store: Store) -> dict[str, Shape]:
    """Return what is there of keys without a time to live, by their names, in which `<identity>` stands for any."""
    found: dict[str, Shape] = {}
    for raw in store.call("KEYS", "*"):
        name = raw.decode()
        kind, left, memory = store.pipeline([("TYPE", raw), ("PTTL", raw), ("MEMORY", "USAGE", raw, "SAMPLES", 0)])
        if left >= 0 or memory is None or THEIRS.fullmatch(name):
            continue
        shape = IDENTITY.sub("<identity>", name)
        size = store.call(SIZES[kind], raw) if kind in SIZES else 1
        before = found.get(shape, Shape(kind, 0, 0, 0))
        found[shape] = Shape(kind, before.keys + 1, before.size + size, before.memory + memory)
    return found


def work(cluster: Cluster, stage: Stage, jobs: int, deaths: int, rolls: range) -> None:
    """Have jobs of every kind run, workers die and be replaced; return when all has settled."""
    done = int(stage.store.call("GET", "stat:processed") or 0)
    part = jobs // 5
    stage.push_many("record", [["x"]] * part)
    stage.push_many("record", [["x"]] * part, at=SystemClock.now() - 1)
    stage.push_many("broken", [["x"]] * part, retry=0)
    stage.push_many("broken", [["x"]] * part, retry=False)
    for at in range(0, part, 100):
        stage.store.call("LPUSH", "queue:default", *[f"no job {number}" for number in range(at, min(part, at + 100))])
    wait_until(lambda: is_settled(stage.store), "the jobs to have ended", seconds=60 + jobs / 100)
    for number in range(deaths):
        stage.push("suicide", f"{done}-{number}")
        wait_until(
            lambda each=number: stage.store.call("LPOS", "ledger", f"ended {done}-{each}") is not None, "it to end"
        )
    for number in rolls:
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_done", count=number)
    wait_until(lambda: is_settled(stage.store), "everything to have settled", seconds=60)


def is_settled(store: Store) -> bool:
    waiting = ("queue:default", "kiq:wake:default"), ("schedule", "retry")
    lengths = store.pipeline([*(("LLEN", key) for key in waiting[0]), *(("ZCARD", key) for key in waiting[1])])
    return not any(lengths) and not Jobs(store).holders() and store.call("HLEN", "kiq:members") == 2


@pytest.mark.parametrize(
    ("jobs", "deaths", "rolls"),
    [(2_000, 3, 1), pytest.param(100_000, 1_000, 100, marks=[pytest.mark.full, pytest.mark.timeout(7_200)])],
)
def test_nothing_stays_and_grows(stage: Stage, jobs: int, deaths: int, rolls: int) -> None:
    options: dict[str, Any] = {"KIQ_DEAD_MAX_JOBS": str(DEAD_ENTRIES), "KIQ_LOG_LEVEL": "info"}
    cluster = stage.run_cluster("default", "default", "-c", "5", **options)
    cluster.wait_ready(2)
    work(cluster, stage, 200, 1, range(1, 2))
    before = census(stage.store)

    work(cluster, stage, jobs, deaths, range(2, 2 + rolls))

    after = census(stage.store)
    stays = {name: shape[:3] for name, shape in after.items() if name != "processes"}
    assert stays == {name: shape[:3] for name, shape in before.items() if name != "processes"}
    wait_until(
        lambda: stage.store.call("SCARD", "processes") <= 2 + deaths + 2 * rolls,
        "the set of processes to hold few others",
    )
    for name, shape in after.items():
        if name not in ("processes", "dead"):
            assert shape.memory <= before[name].memory + SLACK_BYTES, name
