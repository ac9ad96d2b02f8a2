"""Two shards on two Redis servers, workers killed, one shard away for a while, and a rule that moves a class.

Nothing is lost, and no job runs in a worker of another shard than the one that it was pushed to.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apps.sharded import LEDGER
from tests.chaos.scale import FULL, sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, Cluster, RedisServer, wait_until
from tests.proc import kill
from tests.proxy import Proxy
from tests.stage import Jobs

# In the short form: process/test_shards.py kills and freezes in a shard.
pytestmark = pytest.mark.full

ROUNDS = sized(3, 120)
KILLS_PER_ROUND = sized(1, 3)
JOBS_PER_ROUND = sized(12, 60)  # of each class
MAX_PAUSE_SECONDS = sized(0.05, 0.3)  # between pushes and kills
MAX_JOB_SECONDS = 0.01
SLOTS_BY_SHARD = {"default": {"0"}, "eu": {"1", "2"}}
RULES = {
    "before": '[["tags=far", "far", "eu"]]',
    "after": '[["tags=moved", "", "eu"], ["tags=far", "far", "eu"]]',
}
CONFIGURATION = """
queue_selector = true
routing = {rules}

[shards.eu]
redis = "{eu}"

[[groups]]
queues = "tags=near|tags=moved"

[[groups]]
queues = "tags=far|tags=moved"
shard = "eu"

[[groups]]
queues = "tags=far|tags=moved"
shard = "eu"
"""


@pytest.fixture
def eu(own_server: RedisServer) -> Iterator[Jobs]:
    jobs = Jobs(own_server.store())
    yield jobs
    jobs.store.close()


class Load:
    """Pushes jobs of each class.  pushed: (class, word, shard)."""

    def __init__(self, stage: ChaosStage, eu: Jobs) -> None:
        self.pushed: set[tuple[str, str, str]] = set()
        self._stage = stage
        self._jobs_by_shard: dict[str, Jobs] = {"default": stage, "eu": eu}

    def push(self, name: str, shard: str, queue: str, count: int = JOBS_PER_ROUND) -> None:
        for _ in range(count):
            word = str(len(self.pushed))
            self._jobs_by_shard[shard].push(
                name, word, self._stage.rng.uniform(0, MAX_JOB_SECONDS), queue=queue, tags=[name]
            )
            self.pushed.add((name, word, shard))
            if name == "near":
                self.pushed.add(("far", f"{word}-child", "eu"))

    def wait_over(self, path: Path) -> list[tuple[str, str, str]]:
        """Wait until each job has ended, or was buried after too many deaths; return (class, word, slot) of ends."""

        def is_over() -> bool:
            ended = {line[:2] for line in read(path)}
            buried = {each["args"][0] for jobs in self._jobs_by_shard.values() for each in jobs.dead()}
            return all((name, word) in ended or word.removesuffix("-child") in buried for name, word, _ in self.pushed)

        wait_until(is_over, "each job to end", sized(30, 300))
        for jobs in self._jobs_by_shard.values():
            wait_until(lambda jobs=jobs: jobs.remaining().keys() <= {"dead", "kiq:suspects"}, "all to be settled", 60)
        return read(path)


def read(path: Path) -> list[tuple[str, str, str]]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [(name, word, slot) for name, word, slot in map(str.split, lines)]


def kill_some(stage: ChaosStage, cluster: Cluster) -> int:
    """Kill workers of random slots; return how many."""
    killed = 0
    for _ in range(KILLS_PER_ROUND):
        slot, pid = stage.rng.choice(sorted(cluster.pids().items()))
        killed += kill(pid)
        wait_until(lambda slot=slot, pid=pid: cluster.pids().get(slot, pid) != pid, "the next process")
        PAUSE.wait(stage.rng.uniform(0, MAX_PAUSE_SECONDS))
    return killed


def test_two_shards_lose_nothing_and_do_not_mix(
    stage: ChaosStage, eu: Jobs, own_server: RedisServer, tmp_path: Path
) -> None:
    configuration, path = tmp_path / "kiq.toml", tmp_path / "ends"
    with Proxy(("127.0.0.1", own_server.port)) as proxy:
        configuration.write_text(CONFIGURATION.format(rules=RULES["before"], eu=proxy.url))
        cluster = stage.run_cluster(
            "-C", str(configuration), "-c", "4", app="tests.apps.sharded",
            **{LEDGER: str(path), "KIQ_HEALTH_RESPAWN_BURST": "1000", "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.2"},
        )  # fmt: skip
        cluster.wait_ready(3)
        load, kills = Load(stage, eu), 0

        for number in range(ROUNDS):
            load.push("near", "default", "near")
            load.push("far", "eu", "far")
            load.push("moved", "default", "moved")
            kills += kill_some(stage, cluster)
            if number % 3 == 1:
                cluster.wait_ready(3)
                if not FULL:  # a push to a shard that is away fails, and a new process polls after some seconds only
                    wait_until(lambda: "queue:near" not in stage.remaining() and not stage.holders(), "near to end")
                with proxy.away():
                    load.push("moved", "default", "moved")
                    if FULL:
                        load.push("near", "default", "near")
                    wait_until(lambda: is_away(cluster), "the shard to be away")
                    assert cluster.readiness()[0] == 200, "the other shard serves"
        cluster.wait_ready(3)
        configuration.write_text(CONFIGURATION.format(rules=RULES["after"], eu=proxy.url))
        cluster.signal(signal.SIGHUP)
        cluster.wait_for("reloaded")
        load.push("moved", "eu", "moved")
        load.push("moved", "default", "moved")  # by a client that has the old rules
        kills += kill_some(stage, cluster)

        ends = load.wait_over(path)
        assert cluster.stop() == 0

    shard_of = {(name, word): shard for name, word, shard in load.pushed}
    strays = [each for each in ends if each[2] not in SLOTS_BY_SHARD[shard_of[each[:2]]]]
    buried = len(stage.dead()) + len(eu.dead())
    stage.report({"kills": kills, "pushed": len(load.pushed), "ends": len(ends), "buried": buried})
    assert strays == []


def is_away(cluster: Cluster) -> bool:
    """Return whether all workers of the shard know that it is away."""
    return not any(slot["redis"] for slot in cluster.slots() if slot.get("shard") == "eu")
