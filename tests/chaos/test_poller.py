"""Very many jobs are due at once: each is moved once, though pollers race, one of them Ruby's, and others are killed.

That no call of the script leaves a window is tests/conformance; that bytes survive both pollers is tests/interop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.interop.programs import RubyServer
from tests.kit import PAUSE, is_alive, wait_until
from tests.proc import kill

# In the short form: redis/test_poller.py, interop/test_pollers.py.
pytestmark = pytest.mark.full

DUE_JOBS = sized(10_000, 100_000)
CHUNK_JOBS = 1_000
OFTEN = {"app": "tests.apps.chaos_pollers", "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.05"}


def fill(stage: ChaosStage) -> list[str]:
    """Write entries to both sets that are due; return their jids."""
    jids = [f"{stage.rng.getrandbits(96):024x}" for _ in range(DUE_JOBS)]
    for start in range(0, DUE_JOBS, CHUNK_JOBS):
        payloads = [
            f'{{"class":"Work","args":[0],"jid":"{jid}","queue":"later","retry":true}}'
            for jid in jids[start : start + CHUNK_JOBS]
        ]
        stage.store.call(
            "ZADD", stage.rng.choice(["schedule", "retry"]), *(word for each in payloads for word in ("1.5", each))
        )
    return jids


def due(store: Store) -> int:
    return int(store.call("ZCARD", "schedule") + store.call("ZCARD", "retry"))


def moved(store: Store) -> list[dict[str, Any]]:
    """Return the payloads in the queue, which nobody serves yet."""
    return [ruby_json.decode(raw) for raw in store.call("LRANGE", "queue:later", 0, -1)]


@pytest.fixture
def ruby_server(sidekiq_is_there: None, stage: ChaosStage) -> Iterator[RubyServer]:
    """A Ruby process that polls, and is ready to."""
    server = RubyServer(stage.redis.url)
    wait_until(lambda: stage.store.call("SCARD", "processes"), "Ruby to be there")
    yield server
    server.close()


def test_what_is_due_is_moved_once_though_pollers_are_killed_at_it(stage: ChaosStage) -> None:
    jids = fill(stage)
    cluster = stage.run_cluster("other", "other", **OFTEN)
    cluster.wait_ready(2)
    kills = 0

    while left := due(stage.store):
        wait_until(lambda left=left: due(stage.store) < left, "the pollers to move some")
        PAUSE.wait(stage.rng.uniform(0.0, 0.1))
        victims = [pid for pid in cluster.pids().values() if is_alive(pid)]
        if victims and due(stage.store):
            kills += kill(stage.rng.choice(victims))
    copies = Counter(payload["jid"] for payload in moved(stage.store))
    assert copies == dict.fromkeys(jids, 1)
    assert stage.store.call("SISMEMBER", "queues", "later") == 1

    stage.run_cluster("later", "-c", "10")
    wait_until(lambda: stage.ledger.has_ended(jids), "all to run", sized(60, 300))
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    audit = stage.ledger.audit(jids)
    stage.report({"due": DUE_JOBS, "kills of pollers": kills, **audit.counts()})
    assert kills
    assert (audit.lost, audit.repeated, audit.strangers) == (set(), {}, set())


@pytest.mark.ruby
def test_what_is_due_is_moved_once_though_rubys_poller_and_two_of_ours_race(
    stage: ChaosStage, ruby_server: RubyServer
) -> None:
    cluster = stage.run_cluster("other", "other", **OFTEN)
    racers = {"Ruby", *cluster.wait_ready(2).values()}
    jids: list[str] = []

    def race() -> bool:
        """Have all moved; return whether each of the three has moved some by now."""
        jids.extend(fill(stage))
        wait_until(lambda: not due(stage.store), "all to be moved", sized(20, 300))
        wait_until(lambda: stage.store.call("LLEN", "queue:later") >= len(jids), "Ruby to push what it took out")
        return {payload.get("moved_by", "Ruby") for payload in moved(stage.store)} == racers

    wait_until(race, "each of them to take part", sized(60, 300))

    payloads = moved(stage.store)
    by_ruby = sum("moved_by" not in payload for payload in payloads)
    stage.report({"due": len(jids), "by Ruby": by_ruby, "by ours": len(payloads) - by_ruby})
    assert Counter(payload["jid"] for payload in payloads) == dict.fromkeys(jids, 1)
