"""Redis is killed and started again with its append-only file, or is away for longer than the dead are waited for.

No worker dies here, so nothing has an excuse for running twice.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store import Store
from tests.chaos.ledger import Ledger, remains
from tests.chaos.pushing import Pusher
from tests.chaos.scale import sized
from tests.kit import PAUSE, Cluster, RedisServer, free_port, wait_until
from tests.process.stage import identities, push_many
from tests.proxy import Proxy

Run = Callable[..., Cluster]
Report = Callable[[dict[str, Any]], None]

RESTARTS = sized(2, 40)
RECOVER_AFTER = sized(2.5, 10.0)  # seconds; silence_timeout is off, for it has to be less
OUTAGE = 1.2 * RECOVER_AFTER
APART = 1_000 * RECOVER_AFTER / 3  # milliseconds within which everybody beats twice
LONG_JOBS = 50


def test_no_job_is_lost_or_repeated_when_redis_is_killed_and_started_again_under_load(
    run: Run, durable_server: RedisServer, ledger: Ledger, rng: Random, report: Report
) -> None:
    server, store = durable_server, durable_server.store()
    cluster = run("default", "default", "-c", "4", "--redis", server.url)
    cluster.wait_ready(2)

    with Pusher(Store(server.url), rng) as pusher:
        for _ in range(RESTARTS):
            ended = len(ledger.ended())
            wait_until(lambda ended=ended: len(ledger.ended()) > ended + 20, "jobs to run")
            PAUSE.wait(rng.uniform(0.0, 0.2))
            server.kill()
            PAUSE.wait(rng.uniform(0.0, 0.3))
            server.start()
        ended = len(ledger.ended())
        wait_until(lambda: len(ledger.ended()) > ended + 20, "jobs to run again")
    wait_until(lambda: ledger.has_ended(pusher.certain), "all jobs to end")
    wait_until(lambda: remains(store) == {}, "all to be settled")

    report({"restarts": RESTARTS, **pusher.check(ledger)})
    assert int(store.call("GET", "stat:processed")) == len(ledger.ended())


def test_a_primary_that_is_a_replica_for_a_while_was_away(
    run: Run, durable_server: RedisServer, ledger: Ledger, report: Report
) -> None:
    server, store = durable_server, durable_server.store()
    cluster = run("default", "-c", "3", "--redis", server.url)
    cluster.wait_ready()
    jids = push_many(store, "hold", [["gate"]] * 2)
    wait_until(lambda: len(ledger.begun()) == 2, "the jobs to run")

    store.call("REPLICAOF", "127.0.0.1", free_port())  # of nobody: it keeps what it has
    cluster.wait_for("redis_lost")
    ledger.open_gate("gate")
    wait_until(lambda: ledger.has_ended(jids), "the jobs to end")
    store.call("REPLICAOF", "NO", "ONE")
    jids += push_many(store, "Work", [[1]] * 10)
    cluster.wait_for("redis_back")
    wait_until(lambda: ledger.has_ended(jids), "the other jobs to end")
    wait_until(lambda: remains(store) == {}, "all to be settled")

    audit = ledger.audit(jids)
    report(audit.counts())
    assert (audit.lost, audit.repeated, ledger.begun()) == (set(), {}, dict.fromkeys(jids, 1))
    assert int(store.call("GET", "stat:processed")) == len(jids)
    assert [len(cluster.seen(name)) for name in ("redis_lost", "redis_back", "redis_refused")] == [1, 1, 0]


@pytest.mark.parametrize("kind", sized(["away"], ["away", "stalled"]))
def test_an_outage_longer_than_the_dead_are_waited_for_costs_no_job_its_worker(
    run: Run, store: Store, redis_server: RedisServer, ledger: Ledger, report: Report, kind: str
) -> None:
    """One host is back before the other: it has not seen anybody live for long, nor watched for long."""
    environ = {"KIQ_RECOVER_AFTER": str(RECOVER_AFTER), "KIQ_SILENCE_TIMEOUT": "0"}
    threads = str(LONG_JOBS // 2 + 1)
    address = ("127.0.0.1", redis_server.port)
    with Proxy(address) as soon, Proxy(address) as late:
        clusters = [run("default", "-c", threads, "--redis", proxy.url, **environ) for proxy in (soon, late)]
        for cluster in clusters:
            cluster.wait_ready()
        jids = push_many(store, "hold", [["gate"]] * LONG_JOBS)
        wait_until(lambda: len(ledger.begun()) == LONG_JOBS, "all of them to run")
        before, seen = identities(store), beats(store)
        wait_until(
            lambda: all(now >= then + APART for then, now in zip(seen, beats(store), strict=True)), "looks at others"
        )

        with getattr(late, kind)():
            with getattr(soon, kind)():
                PAUSE.wait(OUTAGE)
            PAUSE.wait(RECOVER_AFTER / 3)
        # Somebody who is dead indeed: once he is recovered, all have been watched for as long since.
        dead = leave_behind(store)
        wait_until(lambda: dead not in identities(store), "him to be recovered", 10 * RECOVER_AFTER)
        assert identities(store) == before
        ledger.open_gate("gate")
        wait_until(lambda: ledger.has_ended([*jids, DEAD_JID]), "the jobs to end")
        wait_until(lambda: remains(store) == {}, "all to be settled")

        audit = ledger.audit([*jids, DEAD_JID])
        report({"seconds": OUTAGE, **audit.counts()})
        assert (audit.lost, audit.repeated, audit.broken_off, audit.strangers) == (set(), {}, 0, set())
        assert int(store.call("GET", "stat:processed")) == LONG_JOBS + 1


def beats(store: Store) -> list[int]:
    """Return the time of each process' last beat, milliseconds, by identity."""
    return [
        int(score) for score in store.pipeline([("ZSCORE", "kiq:beats:2", each) for each in sorted(identities(store))])
    ]


DEAD_JID = "dead00000000000000000000"


def leave_behind(store: Store) -> str:
    """Write what a process of another host leaves that died with a job in its hands; return its identity."""
    keys, identity = Keys(), "elsewhere:1:dead"
    payload = f'{{"class":"Work","args":[1],"queue":"default","jid":"{DEAD_JID}","retry":true}}'
    store.call("HSET", keys.members, identity, "00000001 another-boot another-namespace 1 0")
    store.call("HSET", keys.inflight(identity), "00000001.0000000001.00001:default", payload)
    return identity
