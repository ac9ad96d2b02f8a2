"""Workers are killed while chains run: each job has run, each was pushed once, and each chain has come to its end."""

from __future__ import annotations

from collections import Counter

import pytest

from kiqcluster.api import RetrySet
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from tests.apps.chains import CHAIN
from tests.chaos.scale import MOST_KILLS, sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, Cluster, is_alive, wait_until
from tests.proc import kill

# In the short form: process/test_chains.py kills workers at it.
pytestmark = pytest.mark.full

CHAINS = sized(200, 10_000)
KILL_INTERVAL_SECONDS = 0.3
TIMEOUT_SECONDS = sized(50, 1_800)
APP = "tests.apps.chains"


def strike(stage: ChaosStage, cluster: Cluster) -> int:
    """Kill one of the workers that are ready; return how many."""
    PAUSE.wait(KILL_INTERVAL_SECONDS)
    victims = sorted(pid for pid in cluster.pids().values() if is_alive(pid))
    if not victims:
        return 0
    return int(kill(stage.rng.choice(victims)))


def pushes(stage: ChaosStage) -> Counter[tuple[str, str]]:
    """Return job and number → how often it was pushed, not counting retries; it may have run more often."""
    told = {tuple(line.split()[:4]) for line in stage.notes() if line.endswith("None")}
    return Counter((word, number) for word, number, _jid, _enqueued_at in told)


def test_no_chain_is_lost_or_doubled_while_workers_are_killed(stage: ChaosStage) -> None:
    with using_setup(Setup(store=stage.store, config=Config())):
        handles = [CHAIN.enqueue(number) for number in range(CHAINS)]
    cluster = stage.run_cluster("default,ends", "default,ends", "-c", "4", app=APP)
    cluster.wait_ready(2)
    kills = 0

    def is_over() -> bool:
        nonlocal kills
        if kills < MOST_KILLS:
            kills += strike(stage, cluster)
        RetrySet(store=stage.store).add_all_to_queue()  # their time would be seconds away
        return len(stage.store.call("KEYS", "kiq:result:*")) == CHAINS

    wait_until(is_over, "all chains to end", TIMEOUT_SECONDS)
    stage.report({"chains": CHAINS, "kills": kills})

    assert [each and each.result(0) for each in handles] == [f"number {2 * number}" for number in range(CHAINS)]
    counts = pushes(stage)
    assert set(counts.values()) == {1}
    assert Counter(word for word, _ in counts) == {"begin": CHAINS, "double": CHAINS, "end": CHAINS}
