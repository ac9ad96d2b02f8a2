"""A worker is frozen with hundreds of units taken ahead, until others have recovered it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.chaos.test_frozen import JOBS_BEHIND, RECOVER_AFTER, held_by
from tests.kit import freeze, wait_until
from tests.stage import pid_of

# In the short form: process/test_sweep.py freezes a process, properties/test_fleet.py one with units ahead.
pytestmark = pytest.mark.full

ROUNDS = sized(1, 10)
THREADS = 4  # of each process
JOBS = 10_000  # that do nothing, for each stop: enough to be in the middle of them
# Units that a process must hold and not have begun when it is stopped, or the round shows nothing.  A slow machine
# takes less ahead, since a process takes ahead for a time.
MIN_PREFETCHED_UNITS = 50
# Stops of a round until it holds that many, each on a queue of its own: a process prefetches less from a queue
# whose jobs were held up.
MAX_TRIES = 10
RUN_SECONDS = sized(60, 600)  # in which a neighbour runs them all, beside other work of the machine


def freeze_with_many_ahead(
    stage: ChaosStage, pid: int, identity: str, queues: list[str]
) -> tuple[set[str], set[str], list[str]]:
    """Stop a process in the middle of short jobs; return what it had begun, had taken ahead, and all jobs."""
    pushed: list[str] = []
    for queue in queues:
        since = len(stage.ledger.entries())
        pushed += stage.push_many("Work", [[0]] * JOBS, queue=queue)
        wait_until(lambda since=since: len(stage.ledger.entries()) - since >= JOBS / 10, "it to get going")
        wait_until(
            lambda queue=queue: (
                stage.store.call("HLEN", f"kiq:inflight:{identity}") >= 2 * MIN_PREFETCHED_UNITS
                or not stage.store.call("LLEN", f"queue:{queue}")
            ),
            "it to take ahead",
        )
        freeze(pid)
        stage.store.call("PING")  # what it had sent is behind us now
        held, begun = held_by(stage.store, identity), {entry.jid for entry in stage.ledger.entries()[since:]}
        if len(held - begun) >= MIN_PREFETCHED_UNITS:
            return held & begun, held - begun, pushed
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda jids=pushed: stage.ledger.has_ended(jids), "the rest to end", RUN_SECONDS)
    pytest.fail(f"never held {MIN_PREFETCHED_UNITS} units ahead")


def test_what_a_frozen_worker_had_taken_ahead_runs_elsewhere_and_not_again_when_it_wakes(stage: ChaosStage) -> None:
    environ = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": RECOVER_AFTER}
    queues = [[f"queue{number}-{tries}" for tries in range(MAX_TRIES)] for number in range(ROUNDS)]
    group = ",".join(name for names in queues for name in names)
    sleeper, neighbour = (stage.run_cluster(group, "-c", str(THREADS), **environ) for _ in range(2))
    pid = sleeper.wait_ready()[0]
    neighbour.wait_ready()
    jids: list[str] = []
    begun_before: set[str] = set()
    numbers_ahead = []

    for number, names in enumerate(queues, 1):
        # It takes ahead from a queue that it has for itself, and is stopped.
        neighbour.signal(signal.SIGTSTP)
        neighbour.wait_for("worker_quiet", count=2 * number - 1)
        (old,) = (name for name in stage.members() if pid_of(name) == pid)
        begun, ahead, pushed = freeze_with_many_ahead(stage, pid, old, names)
        begun_before |= begun
        numbers_ahead.append(len(ahead))

        # Others recover it, and run all.
        neighbour.signal(signal.SIGCONT)
        neighbour.wait_for("recovered", identity=old, units=len(begun) + len(ahead))
        wait_until(lambda jids=pushed: stage.ledger.has_ended(jids), "all to run elsewhere", RUN_SECONDS)
        wait_until(lambda: not stage.remaining(), "all to be settled")

        # It wakes.
        neighbour.signal(signal.SIGTSTP)
        neighbour.wait_for("worker_quiet", count=2 * number)
        os.kill(pid, signal.SIGCONT)
        sleeper.wait_for("worker_fenced", old=old)
        after = stage.push_many("Work", [[1]] * JOBS_BEHIND, queue=names[0])
        wait_until(lambda jids=after: stage.ledger.has_ended(jids), "it to go on")
        wait_until(lambda: not stage.remaining(), "all to be settled again")
        neighbour.signal(signal.SIGCONT)
        neighbour.wait_for("worker_resumed", count=2 * number)
        jids += pushed + after

    assert sleeper.stop() == neighbour.stop() == 0
    audit = stage.ledger.audit(jids, recovered=begun_before)
    counts = f"{min(numbers_ahead)} to {max(numbers_ahead)}"
    stage.report({"rounds": ROUNDS, "ahead": counts, "begun before": len(begun_before), **audit.counts()})
    assert audit.lost == audit.strangers == set()
    assert len(audit.unexplained) <= ROUNDS * THREADS  # each thread may have been about to begin one
    assert {len(ends) for ends in audit.repeated.values()} <= {2}
    assert int(stage.store.call("GET", "stat:processed")) == len(jids)
