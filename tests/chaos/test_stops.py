"""Stops under load: long jobs that do not fit into the timeout, short ones, and pushes all the while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from random import Random

import pytest

from kiqcluster.store import Store
from tests.chaos.ledger import Ledger
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, wait_until
from tests.stage import Jobs

STOPS = sized(2, 50)
STOP_TIMEOUT_SECONDS = "1"  # second that running jobs get
LONG_JOBS = 4  # that hold a thread until the last stop is over
THREADS = 10
MAX_JOB_MS = 50  # that a short job takes
ABOUT_TIMEOUT_MS = 900, 1_100  # of jobs that end about when the time is up
ABOUT_TIMEOUT_SHARE = 0.005  # of such jobs
PUSH_PAUSE_SECONDS = 0.04  # between pushes


class Stream(threading.Thread):
    """Enqueues short jobs, a few at a time, until it is told to stop; jids: those that were pushed."""

    def __init__(self, store: Store, rng: Random) -> None:
        super().__init__(daemon=True)
        self.jids: list[str] = []
        self._jobs = Jobs(store)
        self._rng = rng
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.is_set():
            count = self._rng.randrange(1, 10)
            self.jids += self._jobs.push_many("Work", [[self._length()] for _ in range(count)])
            PAUSE.wait(PUSH_PAUSE_SECONDS)

    def _length(self) -> float:
        shortest, longest = ABOUT_TIMEOUT_MS if self._rng.random() < ABOUT_TIMEOUT_SHARE else (0, MAX_JOB_MS)
        return self._rng.uniform(shortest, longest)

    def end(self) -> list[str]:
        self._over.set()
        self.join()
        return self.jids


def begun_in(ledger: Ledger, pid: int) -> set[str]:
    """Return the jobs that began in a process."""
    return {entry.jid for entry in ledger.entries() if entry.pid == pid}


@pytest.fixture
def stream(stage: ChaosStage) -> Iterator[Stream]:
    """Pushes all the while, on a connection of its own."""
    stream = Stream(stage.redis.store(), stage.rng)
    stream.start()
    yield stream
    stream.end()


def test_stops_with_long_jobs_lose_nothing_of_what_runs_waits_or_is_pushed_meanwhile(
    stage: ChaosStage, stream: Stream
) -> None:
    long_jobs = set(stage.push_many("hold", [["gate"]] * LONG_JOBS))
    pushed_meanwhile = 0

    for number in range(1, STOPS + 1):
        cluster = stage.run_cluster("default", "-c", str(THREADS), "-t", STOP_TIMEOUT_SECONDS)
        pid = cluster.wait_ready()[0]
        wait_until(lambda pid=pid: begun_in(stage.ledger, pid) > long_jobs, "long jobs and short ones to run")
        pushed = len(stream.jids)
        assert cluster.stop() == 0
        stage.ledger.died(pid)
        pushed_meanwhile += len(stream.jids) - pushed

        waiting = stage.queued()
        assert {
            each["jid"]: each["interrupted_count"] for each in waiting if each["jid"] in long_jobs
        } == dict.fromkeys(long_jobs, number)
        assert stage.holders() == stage.members() == set()

    jids = long_jobs | set(stream.end())
    stage.ledger.open_gate("gate")
    last = stage.run_cluster("default", "-c", str(5 * THREADS), "-t", STOP_TIMEOUT_SECONDS)
    wait_until(lambda: stage.ledger.has_ended(jids), "all to complete", seconds=120)
    wait_until(lambda: not stage.remaining(), "all to be settled")
    assert last.stop() == 0
    audit = stage.ledger.audit(jids)
    stage.report({"stops": STOPS, "pushed during shutdowns": pushed_meanwhile, **audit.counts()})
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert not audit.repeated.keys() & long_jobs
    assert pushed_meanwhile > STOPS
    assert int(stage.store.call("GET", "stat:processed")) == len(jids)
