"""A job that kills its process takes no other job with it, and ends in the dead set after three deaths."""

from __future__ import annotations

import pytest

from tests.chaos.stage import ChaosStage
from tests.kit import wait_until

# In the short form: process/test_poison.py, process/test_interruptions.py.
pytestmark = pytest.mark.full

NEIGHBOURS = 99  # that may be reserved with a killer
MAX_NEIGHBOUR_MS = 50  # that a neighbour takes
KILL_DELAY_MS = 25  # after which a killer kills, so that some neighbours run beside it
THREADS = 6  # of each process
MAX_DEATHS = 3  # max_retries_after_interruption
KILLERS = 20
WAYS = ("exit", "segfault", "kill")  # the last is the kernel's with what takes all memory; a real hog is no fun to run


def push_neighbours(stage: ChaosStage, count: int) -> list[str]:
    return stage.push_many("Work", [[stage.rng.uniform(0, MAX_NEIGHBOUR_MS)] for _ in range(count)])


@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_kills_its_process_is_buried_and_all_others_complete(stage: ChaosStage, way: str) -> None:
    place = stage.rng.randrange(NEIGHBOURS + 1)
    others = push_neighbours(stage, place)
    killer = stage.push("kill", way, KILL_DELAY_MS)
    others += push_neighbours(stage, NEIGHBOURS - place)

    cluster = stage.run_cluster("default", "-c", str(THREADS))

    (buried,) = wait_until(lambda: stage.dead(), "the killer to be buried")
    wait_until(lambda: stage.ledger.has_ended(others), "all others to complete")
    wait_until(lambda: stage.remaining().keys() <= {"dead"}, "all to be settled")
    stage.ledger.deaths |= {entry.pid: entry.at for entry in stage.ledger.entries() if entry.jid == killer}
    audit = stage.ledger.audit([killer, *others], buried={killer})
    stage.report({"place": place, **audit.counts()})
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert stage.ledger.begun()[killer] == len(cluster.seen("child_died")) == MAX_DEATHS
    assert audit.broken_off <= 1 + MAX_DEATHS * (THREADS - 1)
    assert (buried["jid"], buried["class"], buried["interrupted_count"]) == (killer, "kill", MAX_DEATHS)
    assert f"{MAX_DEATHS} processes died" in buried["error_message"]


def test_many_killers_at_once_are_buried_and_hardly_anybody_with_them(stage: ChaosStage) -> None:
    """Until a killer has killed twice nobody knows it: who runs beside three new ones is buried too."""
    killers, others = [], []
    for _ in range(KILLERS):
        others += push_neighbours(stage, stage.rng.randrange(2 * NEIGHBOURS))
        killers.append(stage.push("kill", stage.rng.choice(WAYS), KILL_DELAY_MS))

    cluster = stage.run_cluster("default", "default", "-c", str(THREADS))

    wait_until(lambda: stage.remaining().keys() <= {"dead"}, "all to be settled", seconds=90)
    buried = {entry["jid"] for entry in stage.dead()}
    bystanders = buried - set(killers)
    stage.ledger.deaths |= {entry.pid: entry.at for entry in stage.ledger.entries() if entry.jid in killers}
    audit = stage.ledger.audit([*killers, *others], buried=buried)
    stage.report({"deaths": len(cluster.seen("child_died")), "bystanders buried": len(bystanders), **audit.counts()})
    assert audit.lost == audit.strangers == audit.unexplained == set()
    assert set(killers) <= buried
    assert len(bystanders) <= len(others) / 100
