"""Very many jobs are due at once: each is moved once, though pollers race, one of them Ruby's, and others are killed.

That no call of the script leaves a window is tests/conformance; that bytes survive both pollers is tests/interop.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.chaos.ledger import Ledger, remains
from tests.chaos.scale import sized
from tests.interop.programs import RubyServer
from tests.kit import PAUSE, Cluster, RedisServer, is_alive, wait_until

Run = Callable[..., Cluster]
Report = Callable[[dict[str, Any]], None]

DUE = sized(10_000, 100_000)
CHUNK = 1_000
OFTEN = {"app": "tests.apps.chaos_pollers", "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.05"}


def fill(store: Store, rng: Random) -> list[str]:
    """Write entries to both sets that are due; return their jids."""
    jids = [f"{rng.getrandbits(96):024x}" for _ in range(DUE)]
    for start in range(0, DUE, CHUNK):
        payloads = [
            f'{{"class":"Work","args":[0],"jid":"{jid}","queue":"later","retry":true}}'
            for jid in jids[start : start + CHUNK]
        ]
        store.call("ZADD", rng.choice(["schedule", "retry"]), *(word for each in payloads for word in ("1.5", each)))
    return jids


def due(store: Store) -> int:
    return int(store.call("ZCARD", "schedule") + store.call("ZCARD", "retry"))


def moved(store: Store) -> list[dict[str, Any]]:
    """Return the payloads in the queue, which nobody serves yet."""
    return [ruby_json.decode(raw) for raw in store.call("LRANGE", "queue:later", 0, -1)]


@pytest.fixture
def ruby_server(sidekiq_is_there: None, redis_server: RedisServer, store: Store) -> Iterator[RubyServer]:
    """A Ruby process that polls, and is ready to."""
    server = RubyServer(redis_server.url)
    wait_until(lambda: store.call("SCARD", "processes"), "Ruby to be there")
    yield server
    server.close()


def test_what_is_due_is_moved_once_though_pollers_are_killed_at_it(
    run: Run, store: Store, ledger: Ledger, rng: Random, report: Report
) -> None:
    jids = fill(store, rng)
    cluster = run("other", "other", **OFTEN)
    cluster.wait_ready(2)
    kills = 0

    while left := due(store):
        wait_until(lambda left=left: due(store) < left, "the pollers to move some")
        PAUSE.wait(rng.uniform(0.0, 0.1))
        victims = [pid for pid in cluster.pids().values() if is_alive(pid)]
        if victims and due(store):
            os.kill(rng.choice(victims), signal.SIGKILL)
            kills += 1
    copies = Counter(payload["jid"] for payload in moved(store))
    assert copies == dict.fromkeys(jids, 1)
    assert store.call("SISMEMBER", "queues", "later") == 1

    run("later", "-c", "10")
    wait_until(lambda: ledger.has_ended(jids), "all to run", sized(60, 300))
    wait_until(lambda: remains(store) == {}, "all to be settled")
    audit = ledger.audit(jids)
    report({"due": DUE, "kills of pollers": kills, **audit.counts()})
    assert kills
    assert (audit.lost, audit.repeated, audit.strangers) == (set(), {}, set())


@pytest.mark.ruby
def test_what_is_due_is_moved_once_though_rubys_poller_and_two_of_ours_race(
    run: Run, store: Store, ruby_server: RubyServer, rng: Random, report: Report
) -> None:
    cluster = run("other", "other", **OFTEN)
    racers = {"Ruby", *cluster.wait_ready(2).values()}
    jids: list[str] = []

    def race() -> bool:
        """Have all moved; return whether each of the three has moved some by now."""
        jids.extend(fill(store, rng))
        wait_until(lambda: not due(store), "all to be moved", sized(20, 300))
        wait_until(lambda: store.call("LLEN", "queue:later") >= len(jids), "Ruby to push what it took out")
        return {payload.get("moved_by", "Ruby") for payload in moved(store)} == racers

    wait_until(race, "each of them to take part", sized(60, 300))

    payloads = moved(store)
    by_ruby = sum("moved_by" not in payload for payload in payloads)
    report({"due": len(jids), "by Ruby": by_ruby, "by ours": len(payloads) - by_ruby})
    assert Counter(payload["jid"] for payload in payloads) == dict.fromkeys(jids, 1)
