"""A job that kills its process is buried after some deaths.  With its neighbours: tests/chaos/test_killers.py."""

from __future__ import annotations

from collections.abc import Callable

from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import dead, ledger, push, wait_settled

Run = Callable[..., Cluster]


def test_a_class_says_how_many_deaths_it_may_cause(run_cluster: Run, store: Store) -> None:
    push(store, "killer_once", "kill")

    run_cluster("default")

    (buried,) = wait_until(lambda: dead(store), "the killer to be buried")
    assert ledger(store) == ["kills by kill"]
    assert buried["interrupted_count"] == 1


def test_a_job_whose_process_was_killed_once_is_not_suspect_after_it_has_run(run_cluster: Run, store: Store) -> None:
    push(store, "suicide", "x")

    run_cluster("default")

    wait_until(lambda: "ended x" in ledger(store), "the second run to end")
    wait_settled(store)
    assert store.call("EXISTS", "kiq:suspects") == 0
    assert store.call("ZCARD", "dead") == 0
