"""A job that kills its process takes no other job with it, and ends in the dead set after three deaths."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import dead, ledger, push, wait_settled

Run = Callable[..., Cluster]


@pytest.mark.parametrize("way", ["exit", "segfault", "kill"])
def test_a_job_that_kills_its_process_is_buried_and_all_others_complete(
    run_cluster: Run, store: Store, way: str
) -> None:
    others = [f"other {number}" for number in range(40)]
    for word in others[:20]:
        push(store, "record", word)
    push(store, "killer", way)
    for word in others[20:]:
        push(store, "record", word)

    cluster = run_cluster("default", "-c", "4")

    (buried,) = wait_until(lambda: dead(store), "the killer to be buried")
    wait_until(lambda: {f"ran {word}" for word in others} <= set(ledger(store)), "all others to run")
    wait_settled(store)
    assert ledger(store).count(f"kills by {way}") == 3
    assert buried["class"] == "killer"
    assert "3 processes died" in buried["error_message"]
    assert buried["interrupted_count"] == 3
    assert store.call("EXISTS", "kiq:suspects") == 0
    assert cluster.stop() == 0


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
