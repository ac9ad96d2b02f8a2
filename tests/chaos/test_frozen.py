"""A worker is frozen until others have recovered its jobs, and wakes: it changes nothing, and goes on."""

from __future__ import annotations

import os
import re
import signal

import pytest

from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import freeze, wait_until
from tests.stage import Jobs, pid_of

# In the short form: process/test_sweep.py and process/test_limits.py freeze a process, properties/test_rules.py.
pytestmark = pytest.mark.full

ROUNDS = sized(1, 20)
RECOVER_AFTER = "2"  # seconds; health.silence_timeout is off, for a supervisor would kill what is frozen
WAYS = [(name, queue) for name in ("hold", "hold_and_fail") for queue in ("default", "other")]
THREADS = 2 * len(WAYS) + 2  # one of them stays idle, so that wakeups reach the frozen process
WAITS = 2  # for pushes: one for each queue
JOBS_BEHIND = 20  # jobs that are pushed to a queue meanwhile, and afterwards


def push_ways(stage: ChaosStage, gate: str) -> list[str]:
    """Enqueue jobs that hold at a gate; they end in both ways, on both queues."""
    return [stage.push(name, gate, queue=queue) for name, queue in WAYS]


def push_work(stage: ChaosStage, *queues: str) -> list[str]:
    return [jid for queue in queues for jid in stage.push_many("Work", [[1]] * JOBS_BEHIND, queue=queue)]


def held_by(store: Store, identity: str) -> set[str]:
    """Return the jids of the units that a process holds."""
    payloads = Jobs(store).held(identity)
    return {jid.decode() for payload in payloads for jid in re.findall(rb'"jid":"(\w+)"', payload)}


def wait_settled(stage: ChaosStage) -> None:
    wait_until(lambda: stage.remaining().keys() <= {"retry"}, "all to be settled")


def test_a_worker_that_slept_through_its_recovery_changes_nothing_and_goes_on(stage: ChaosStage) -> None:
    environ = {"KIQ_HEALTH_SILENCE_TIMEOUT": "0", "KIQ_HEALTH_RECOVER_AFTER": RECOVER_AFTER}
    sleeper, neighbour = (stage.run_cluster("default,other", "-c", str(THREADS), **environ) for _ in range(2))
    pid = sleeper.wait_ready()[0]
    neighbour.wait_ready()
    jids: list[str] = []
    recovered: set[str] = set()

    for number in range(1, ROUNDS + 1):
        # Some of its jobs run; some have ended, but Redis stood still, and then the process did.
        quick, ending, running = (f"{what} {number}" for what in ("quick", "ending", "running"))
        neighbour.signal(signal.SIGTSTP)
        neighbour.wait_for("worker_quiet", count=2 * number - 1)
        first, ended, run_on = stage.push("hold", quick), push_ways(stage, ending), push_ways(stage, running)
        wait_until(lambda jids={first, *ended, *run_on}: stage.ledger.begun().keys() >= jids, "its jobs to run")
        (old,) = (name for name in stage.members() if pid_of(name) == pid)
        neighbour.signal(signal.SIGCONT)
        neighbour.wait_for("worker_resumed", count=2 * number - 1)
        with stage.redis.stalled():
            stage.ledger.open_gate(quick)  # its settle goes out, and those of others have to wait for the reply
            wait_until(lambda jid=first: stage.ledger.has_ended([jid]), "the first to end")
            stage.ledger.open_gate(ending)
            wait_until(lambda jids=ended: stage.ledger.has_ended(jids), "the others to end")
            freeze(pid)
        stage.store.call("PING")  # what was on its way when Redis stood still is behind us now
        held = held_by(stage.store, old)
        assert held > set(run_on)

        # Others serve its queues, and recover it.
        meanwhile = push_work(stage, "default", "other")
        wait_until(lambda jids=meanwhile: stage.ledger.has_ended(jids), "jobs to run elsewhere")
        report = neighbour.wait_for("recovered", identity=old)
        assert len(held) <= report["units"] <= len(held) + WAITS  # each of its waits may have received a push
        stage.ledger.open_gate(running)
        wait_settled(stage)
        before = stage.remaining()

        # It wakes.
        neighbour.signal(signal.SIGTSTP)
        neighbour.wait_for("worker_quiet", count=2 * number)
        os.kill(pid, signal.SIGCONT)
        sleeper.wait_for("worker_fenced", old=old)
        wait_until(
            lambda jids=run_on: all(stage.ledger.ended()[jid] == 2 for jid in jids), "its jobs to end there, too"
        )
        after = push_work(stage, "default", "other")
        wait_until(lambda jids=after: stage.ledger.has_ended(jids), "it to go on")
        neighbour.signal(signal.SIGCONT)
        neighbour.wait_for("worker_resumed", count=2 * number)
        wait_settled(stage)
        assert stage.remaining() == before
        assert old not in stage.members()
        jids += [first, *ended, *run_on, *meanwhile, *after]
        recovered |= held

    audit = stage.ledger.audit(jids, recovered=recovered)
    stage.report({"rounds": ROUNDS, **audit.counts(), "recovered": len(recovered)})
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert audit.repeated.keys() == recovered
    assert {len(ends) for ends in audit.repeated.values()} == {2}
    assert int(stage.store.call("GET", "stat:processed")) == len(jids)
    assert int(stage.store.call("GET", "stat:failed")) == stage.store.call("ZCARD", "retry") == ROUNDS * len(WAYS)
