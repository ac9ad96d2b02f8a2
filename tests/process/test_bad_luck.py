"""Bad luck: a worker that sleeps through its own recovery, and payloads that nobody meant well."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from kiqcluster.store import Store
from kiqcluster.store.engine import DeadSetLimits, Engine
from tests.kit import Cluster, wait_until
from tests.process.stage import dead, identities, ledger, push, wait_noted, wait_settled

Run = Callable[..., Cluster]


def test_a_worker_that_slept_through_its_recovery_changes_nothing_and_goes_on(run_cluster: Run, store: Store) -> None:
    sleeper = run_cluster("default", "-c", "1", KIQ_SILENCE_TIMEOUT="0")
    pid = sleeper.wait_ready()[0]
    push(store, "stubborn", "x", retry=3)
    wait_noted(store, "began x")
    (old,) = identities(store)
    os.kill(pid, signal.SIGSTOP)
    with store.borrowed() as link:
        assert Engine(store, DeadSetLimits(100, 1_000.0)).recover(link, old) == 1
    run_cluster("default", "-c", "1")
    wait_until(lambda: ledger(store).count("began x") == 2, "the job to run elsewhere")
    store.call("RPUSH", "release", "now")
    wait_until(lambda: store.call("GET", "stat:processed") == b"1", "its end there to be settled")

    os.kill(pid, signal.SIGCONT)

    sleeper.wait_for("worker_fenced")
    push(store, "record", "after")
    wait_noted(store, "ran after")
    wait_settled(store)
    wait_until(lambda: store.call("GET", "stat:processed") == b"2", "the next job to be counted")
    assert old not in identities(store)
    assert len(identities(store)) == 2
    assert store.call("LLEN", "queue:default") == 0
    assert store.call("ZCARD", "retry") == 0


def test_huge_and_hostile_payloads_hold_nobody_up(run_cluster: Run, store: Store) -> None:
    cluster = run_cluster("default", "-c", "3")
    cluster.wait_ready()

    push(store, "record", "x" * 20_000_000)
    store.call("LPUSH", "queue:default", b'{"class":"record","args":[' + b"[" * 200_000 + b"]" * 200_000 + b"]}")
    store.call("LPUSH", "queue:default", b"\x00" * 2_000_000)
    push(store, "record", "last")

    wait_noted(store, "ran last")
    wait_until(lambda: len(ledger(store)) == 2, "both jobs to have run")
    wait_until(lambda: len(dead(store)) == 2, "both others to be buried")
    wait_settled(store)
    assert not cluster.seen("service_crashed")
    assert not cluster.seen("child_died")
