"""A job that kills its process takes no other job with it, and ends in the dead set after three deaths."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.chaos.ledger import Ledger, remains
from tests.kit import Cluster, wait_until
from tests.process.stage import dead, push, push_many

Run = Callable[..., Cluster]
Report = Callable[[dict[str, Any]], None]

NEIGHBOURS = 99  # that may be reserved with a killer
LONGEST, DELAY = 50, 25  # milliseconds that a neighbour takes, and after which a killer kills: some run beside it
THREADS = 6  # of each process
DEATHS = 3  # max_retries_after_interruption
KILLERS = 20
WAYS = ("exit", "segfault", "kill")  # the last is the kernel's with what takes all memory; a real hog is no fun to run


def push_neighbours(store: Store, rng: Random, count: int) -> list[str]:
    return push_many(store, "Work", [[rng.uniform(0, LONGEST)] for _ in range(count)])


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_kills_its_process_is_buried_and_all_others_complete(
    run: Run, store: Store, ledger: Ledger, rng: Random, report: Report, way: str
) -> None:
    place = rng.randrange(NEIGHBOURS + 1)
    others = push_neighbours(store, rng, place)
    killer = push(store, "kill", way, DELAY)
    others += push_neighbours(store, rng, NEIGHBOURS - place)

    cluster = run("default", "-c", str(THREADS))

    (buried,) = wait_until(lambda: dead(store), "the killer to be buried")
    wait_until(lambda: ledger.has_ended(others), "all others to complete")
    wait_until(lambda: remains(store).keys() <= {"dead"}, "all to be settled")
    ledger.deaths |= {entry.pid: entry.at for entry in ledger.entries() if entry.jid == killer}
    audit = ledger.audit([killer, *others], buried={killer})
    report({"place": place, **audit.counts()})
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert ledger.begun()[killer] == len(cluster.seen("child_died")) == DEATHS
    assert audit.broken_off <= 1 + DEATHS * (THREADS - 1)
    assert (buried["jid"], buried["class"], buried["interrupted_count"]) == (killer, "kill", DEATHS)
    assert f"{DEATHS} processes died" in buried["error_message"]


@pytest.mark.full
def test_many_killers_at_once_are_buried_and_hardly_anybody_with_them(
    run: Run, store: Store, ledger: Ledger, rng: Random, report: Report
) -> None:
    """Until a killer has killed twice nobody knows it: who runs beside three new ones is buried too."""
    killers, others = [], []
    for _ in range(KILLERS):
        others += push_neighbours(store, rng, rng.randrange(2 * NEIGHBOURS))
        killers.append(push(store, "kill", rng.choice(WAYS), DELAY))

    cluster = run("default", "default", "-c", str(THREADS))

    wait_until(lambda: remains(store).keys() <= {"dead"}, "all to be settled", seconds=90)
    buried = {entry["jid"] for entry in dead(store)}
    bystanders = buried - set(killers)
    ledger.deaths |= {entry.pid: entry.at for entry in ledger.entries() if entry.jid in killers}
    audit = ledger.audit([*killers, *others], buried=buried)
    report({"deaths": len(cluster.seen("child_died")), "bystanders buried": len(bystanders), **audit.counts()})
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert set(killers) <= buried
    assert len(bystanders) <= len(others) / 100
