"""Rate limits beside the other guarantees, walked at random: jobs nest, processes die, and all comes back at its time.

Laws: never more starts within a window than the limit allows, nor more runs at once; every job ends, none is stranded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from kiqcluster import job, limits
from kiqcluster.api import ParkedJobs
from kiqcluster.application.registry import Registry
from kiqcluster.limits import RateLimit
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Effect
from kiqcluster.store import Store
from kiqcluster.store.engine.units import BeginVerdict, Unit
from kiqcluster.worker.run.job_run import JobRun
from tests.chaos.scale import sized
from tests.in_process_worker import Worker
from tests.kit import wait_until

JOBS, SEEDS, DEEPEST = 25, range(1, sized(1, 20) + 1), 3
MAX_SECONDS = 30.0
LIMITS = [
    limits.fixed_window(4, 0.08),
    limits.sliding_window(4, 0.08),
    limits.leaky_bucket(4, per_second=60),
    limits.concurrent(2, delay=0.02),
]


class Walk:
    """A small fleet.  Each job may, while it runs, have others run beside it, or its process die."""

    def __init__(self, store: Store, setup: Setup, registry: Registry, limit: RateLimit, rng: Random) -> None:
        self.store, self.setup, self.registry, self.limit, self.rng = store, setup, registry, limit, rng
        self.workers: list[Worker] = []
        self.starts: list[tuple[float, float]] = []  # a time before each start, and one after it
        self.running: list[tuple[Worker, str]] = []  # live processes, and the jobs that they run
        self.ended: Counter[str] = Counter()
        self.kills = self.most = 0
        for _ in range(3):
            self.add_worker()

    def add_worker(self) -> None:
        worker = Worker(
            self.store, self.setup, self.registry, name=f"host:{len(self.workers) + self.kills}:{self.kills:012x}"
        )
        begin = worker.execution._rows._begin_run
        assert begin is not None

        def timed(unit: Unit, rows: Sequence[Effect]) -> BeginVerdict:
            before = time.monotonic()
            verdict = begin(unit, rows)
            if verdict.action == "go":
                self.starts.append((before, time.monotonic()))
            return verdict

        worker.execution._rows._begin_run = timed
        self.workers.append(worker)

    def step(self, depth: int) -> None:
        """Move what is due, and run the next job on some process."""
        now = self.now()
        for entry in self.store.call("ZRANGEBYSCORE", "schedule", "-inf", repr(now)):
            if self.store.call("ZREM", "schedule", entry):
                self.store.call("LPUSH", self.store.keys.queue("default"), entry)
        worker = self.rng.choice(self.workers)
        for unit in worker.take_any():
            outcome = worker.execution.execute(JobRun(unit, now))
            worker.settle(unit, outcome)

    def perform(self, word: str) -> None:
        """Be the job."""
        worker = next(each for each in self.workers if any(each.name in holder for holder in self.holders(word)))
        self.running.append((worker, word))
        if self.limit.kind == "concurrent":
            self.most = max(self.most, len(self.running))
        if len(self.running) < DEEPEST:
            for _ in range(self.rng.randrange(3)):
                self.step(len(self.running))
        is_first = not self.kills and len(self.ended) >= 3  # times differ from run to run, and chance with them
        if is_first or (self.kills < 8 and self.rng.random() < 0.15):
            self.kill(worker)
        if (worker, word) in self.running:
            self.running.remove((worker, word))
            self.ended[word] += 1

    def kill(self, worker: Worker) -> None:
        """Have a process recovered by another one; what runs in it goes on, and is heard of no more."""
        self.kills += 1
        self.workers.remove(worker)
        self.running = [each for each in self.running if each[0] is not worker]
        self.add_worker()
        self.workers[-1].recover(worker.name)

    def holders(self, word: str) -> list[str]:
        """Return the processes that have this job in flight."""
        found = []
        for worker in self.workers:
            payloads = self.store.call("HVALS", self.store.keys.inflight(worker.name))
            if any(f'"{word}"'.encode() in payload for payload in payloads):
                found.append(worker.name)
        return found

    def now(self) -> float:
        seconds, microseconds = self.store.call("TIME")
        return int(seconds) + int(microseconds) / 1e6

    def check_starts(self) -> None:
        """Each start lies between two readings of the clock: too many would have to lie in too short a time."""
        largest, seconds = self.limit.largest, self.limit.seconds
        if self.limit.kind == "leaky_bucket":
            for index, first in enumerate(self.starts):
                for count, later in enumerate(self.starts[index:], 1):
                    assert count <= largest + (later[1] - first[0]) / seconds + 1
        elif self.limit.kind == "concurrent":
            assert self.most <= largest
        else:
            periods = 1 if self.limit.kind == "sliding_window" else 2  # two windows of the clock touch
            for first, later in zip(self.starts, self.starts[periods * largest :], strict=False):
                assert later[1] - first[0] >= seconds


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.kind)
@pytest.mark.parametrize(
    "beside", [{}, {"concurrency_limit": 2, "deduplicate": "until_executed"}], ids=["alone", "all"]
)
def test_never_too_many_and_every_job_ends(
    store: Store, setup: Setup, registry: Registry, limit: RateLimit, beside: dict[str, Any], seed: int
) -> None:
    walk = Walk(store, setup, registry, limit, Random(seed))

    @job(name="walked", rate_limit=limit, retry=0, **beside)
    def walked(word: str) -> None:
        walk.perform(word)

    words = [f"job-{number}" for number in range(JOBS)]
    walked.perform_bulk([[word] for word in words])
    deadline = time.monotonic() + MAX_SECONDS
    while walk.ended.keys() != set(words):
        assert time.monotonic() < deadline, f"stranded: {set(words) - walk.ended.keys()}"
        walk.step(0)
        due = store.call("ZRANGE", "schedule", 0, 0, "WITHSCORES")
        if due and not store.call("EXISTS", store.keys.queue("default")):
            wait_until(lambda due=due: walk.now() >= float(due[1]), "the next one to be due")

    walk.check_starts()
    assert walk.kills > 0
    wait_until(lambda: not any(store.call("ZCARD", key) for key in ("schedule", "retry", "dead")), "nothing to be left")
    assert store.call("KEYS", "kiq:held:*") == store.call("KEYS", "kiq:inflight:*") == []
    assert store.call("KEYS", "kiq:rate:*:running") == store.call("KEYS", "kiq:slots:*") == []
    assert len(ParkedJobs("walked", store=store)) == 0
