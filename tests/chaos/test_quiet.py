"""Promptness: a quiet process gives back at once what it has not started, and outcomes are written soon."""

from __future__ import annotations

import os
import signal
import time
from statistics import median

import pytest

from kiqcluster.store import Store
from tests.chaos.ledger import Ledger
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import wait_until

# In the short form: redis/test_fetch.py, process/test_quiet_lease.py, process/test_deploys.py.
pytestmark = pytest.mark.full

THREADS = 4
STAGE = "stage"  # a queue that nobody serves

# quiet
QUIETS, TRIES = sized((3, 12), (50, 200))  # how many count, and rounds at the most
RETURN_SECONDS = 0.1  # in which what was not started is back in its queue
QUICK_JOBS = 1_000  # that make the worker prefetch
JOBS_BEHIND = 600  # behind the ones that hold its threads
# Units that a worker then holds beside those that run, or a round shows nothing.  On a busy machine it has given
# them back by itself already.
MIN_PREFETCHED_UNITS = 200

# outcomes
ROUNDS, BUSY = sized((3, 1.0), (20, 3.0))  # BUSY: seconds for which all threads are, once a round
SHORT_JOBS = 20  # jobs before those
SETTLE_SECONDS = 0.3  # within which nine in ten outcomes are in Redis; otherwise they would wait for BUSY
MAX_SETTLE_SECONDS = sized(0.7, 2.0)  # of the slowest, also on a busy machine; below BUSY


def fresh_queues(count: int) -> list[str]:
    """Return names: less is taken ahead from a queue whose jobs have made units wait."""
    return [f"queue{number}" for number in range(count)]


def raise_curtain(store: Store, queue: str) -> None:
    """Have all that was pushed to STAGE lie in a queue at once."""
    store.call("RENAME", f"queue:{STAGE}", f"queue:{queue}")


def test_a_quiet_worker_gives_all_that_it_has_not_started_back_at_once_and_in_order(stage: ChaosStage) -> None:
    queues = fresh_queues(TRIES)
    cluster = stage.run_cluster(",".join(queues), "-c", str(THREADS))
    pid = cluster.wait_ready()[0]
    prefetched, seconds, pushed = [], [], 0

    while len(seconds) < QUIETS and queues:
        queue = queues.pop(0)
        gate = f"gate of {queue}"
        stage.push_many("Work", [[0]] * QUICK_JOBS, queue=STAGE)
        holding = stage.push_many("hold", [[gate]] * THREADS, queue=STAGE)
        behind = stage.push_many("Work", [[0]] * JOBS_BEHIND, queue=STAGE)
        raise_curtain(stage.store, queue)
        pushed += QUICK_JOBS + THREADS + JOBS_BEHIND
        wait_until(lambda jids=set(holding): stage.ledger.begun().keys() >= jids, "every thread to be busy")
        (holder,) = stage.holders()
        held = len(stage.held(holder)) - THREADS

        since = time.monotonic()
        os.kill(pid, signal.SIGTSTP)
        wait_until(
            lambda holder=holder: len(stage.held(holder)) == THREADS,
            "what was not started to be given back",
        )
        if held >= MIN_PREFETCHED_UNITS:
            seconds.append(time.monotonic() - since)
            prefetched.append(held)

        assert [payload["jid"] for payload in stage.queued(queue)] == behind
        stage.ledger.open_gate(gate)
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda count=pushed: len(stage.ledger.ended()) == count and not stage.remaining(), "all to complete")

    assert len(seconds) == QUIETS
    stage.report(
        {
            "quiets": QUIETS,
            "prefetched": f"{min(prefetched)} to {max(prefetched)}",
            "seconds": f"{median(seconds):.3f}, at most {max(seconds):.3f}",
        }
    )
    assert median(seconds) <= RETURN_SECONDS
    assert set(stage.ledger.ended().values()) == {1}


class Waiter:
    """Sees outcomes arrive in Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._arrivals: list[float] = []  # when the n-th outcome was seen to be there

    def count(self) -> int:
        """Return how many there are."""
        found = int(self._store.call("GET", "stat:processed") or 0)
        self._arrivals += [time.monotonic()] * (found - len(self._arrivals))
        return found

    def lateness(self, ledger: Ledger) -> list[float]:
        """Return seconds between the n-th end of a job and the n-th outcome, sorted."""
        ends = sorted(entry.at for entry in ledger.entries() if entry.word == "end")
        return sorted(arrival - end for end, arrival in zip(ends, self._arrivals, strict=True))


def test_an_outcome_is_written_soon_after_its_job_ends_while_all_threads_are_busy(stage: ChaosStage) -> None:
    queues = fresh_queues(ROUNDS)
    stage.run_cluster(",".join(queues), "-c", str(THREADS)).wait_ready()
    watch = Waiter(stage.store)
    pushed = 0

    for queue in queues:
        gate = f"gate of {queue}"
        short = stage.push_many("Work", [[stage.rng.uniform(0, 20)] for _ in range(SHORT_JOBS)], queue=STAGE)
        holding = set(stage.push_many("hold", [[gate]] * THREADS, queue=STAGE))
        raise_curtain(stage.store, queue)
        pushed += len(short) + len(holding)
        wait_until(
            lambda jids=holding: watch.count() >= 0 and stage.ledger.begun().keys() >= jids, "every thread to be busy"
        )
        idle_at = time.monotonic() + BUSY
        wait_until(lambda at=idle_at: watch.count() >= 0 and time.monotonic() >= at, "them to have been busy for long")
        stage.ledger.open_gate(gate)
        wait_until(lambda count=pushed: watch.count() == count, "all outcomes")

    lateness = watch.lateness(stage.ledger)
    stage.report({"outcomes": pushed, "seconds": f"{median(lateness):.3f}, at most {lateness[-1]:.3f}"})
    assert lateness[len(lateness) * 9 // 10] <= SETTLE_SECONDS
    assert lateness[-1] <= MAX_SETTLE_SECONDS
