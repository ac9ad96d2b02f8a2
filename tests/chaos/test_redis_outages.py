"""Redis is killed and started again with its append-only file, or is away for longer than the dead are waited for.

No worker dies here, so nothing has an excuse for running twice.
"""

from __future__ import annotations

import pytest

from kiqcluster.sidekiq.keys import Keys
from kiqcluster.store import Store
from tests.chaos.pusher import Pusher
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, free_port, wait_until
from tests.proxy import Proxy

# In the short form: process/test_outage.py, process/test_idle.py.
pytestmark = pytest.mark.full

RESTARTS = sized(2, 40)
RECOVER_AFTER_SECONDS = sized(2.5, 10.0)  # health.silence_timeout is off, for it has to be less
OUTAGE_SECONDS = 1.2 * RECOVER_AFTER_SECONDS
TWO_BEATS_MS = 1_000 * RECOVER_AFTER_SECONDS / 3  # within which everybody beats twice
LONG_JOBS = 50


@pytest.mark.durable_redis
def test_no_job_is_lost_or_repeated_when_redis_is_killed_and_started_again_under_load(stage: ChaosStage) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "4")
    cluster.wait_ready(2)

    with Pusher(Store(stage.redis.url), stage.rng) as pusher:
        for _ in range(RESTARTS):
            ended = len(stage.ledger.ended())
            wait_until(lambda ended=ended: len(stage.ledger.ended()) > ended + 20, "jobs to run")
            PAUSE.wait(stage.rng.uniform(0.0, 0.2))
            stage.redis.kill()
            PAUSE.wait(stage.rng.uniform(0.0, 0.3))
            stage.redis.start()
        ended = len(stage.ledger.ended())
        wait_until(lambda: len(stage.ledger.ended()) > ended + 20, "jobs to run again")
    wait_until(lambda: stage.ledger.has_ended(pusher.certain), "all jobs to end")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")

    stage.report({"restarts": RESTARTS, **pusher.check(stage.ledger)})
    assert int(stage.store.call("GET", "stat:processed")) == len(stage.ledger.ended())


@pytest.mark.durable_redis
def test_a_primary_that_is_a_replica_for_a_while_was_away(stage: ChaosStage) -> None:
    cluster = stage.run_cluster("default", "-c", "3")
    cluster.wait_ready()
    jids = stage.push_many("hold", [["gate"]] * 2)
    wait_until(lambda: len(stage.ledger.begun()) == 2, "the jobs to run")

    stage.store.call("REPLICAOF", "127.0.0.1", free_port())  # of nobody: it keeps what it has
    cluster.wait_for("redis_lost")
    stage.ledger.open_gate("gate")
    wait_until(lambda: stage.ledger.has_ended(jids), "the jobs to end")
    stage.store.call("REPLICAOF", "NO", "ONE")
    jids += stage.push_many("Work", [[1]] * 10)
    cluster.wait_for("redis_back")
    wait_until(lambda: stage.ledger.has_ended(jids), "the other jobs to end")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")

    audit = stage.ledger.audit(jids)
    stage.report(audit.counts())
    assert (audit.lost, audit.repeated, stage.ledger.begun()) == (set(), {}, dict.fromkeys(jids, 1))
    assert int(stage.store.call("GET", "stat:processed")) == len(jids)
    assert [len(cluster.seen(name)) for name in ("redis_lost", "redis_back", "redis_refused")] == [1, 1, 0]


@pytest.mark.parametrize("kind", sized(["away"], ["away", "stalled"]))
def test_an_outage_longer_than_the_dead_are_waited_for_costs_no_job_its_worker(stage: ChaosStage, kind: str) -> None:
    """One host is back before the other: it has not seen anybody live for long, nor watched for long."""
    environ = {"KIQ_HEALTH_RECOVER_AFTER": str(RECOVER_AFTER_SECONDS), "KIQ_HEALTH_SILENCE_TIMEOUT": "0"}
    threads = str(LONG_JOBS // 2 + 1)
    address = ("127.0.0.1", stage.redis.port)
    with Proxy(address) as soon, Proxy(address) as late:
        clusters = [
            stage.run_cluster("default", "-c", threads, "--redis", proxy.url, **environ) for proxy in (soon, late)
        ]
        for cluster in clusters:
            cluster.wait_ready()
        jids = stage.push_many("hold", [["gate"]] * LONG_JOBS)
        wait_until(lambda: len(stage.ledger.begun()) == LONG_JOBS, "all of them to run")
        before, seen = stage.members(), beats(stage)
        wait_until(
            lambda: all(now >= then + TWO_BEATS_MS for then, now in zip(seen, beats(stage), strict=True)),
            "looks at others",
        )

        with getattr(late, kind)():
            with getattr(soon, kind)():
                PAUSE.wait(OUTAGE_SECONDS)
            PAUSE.wait(RECOVER_AFTER_SECONDS / 3)
        # Somebody who is dead indeed: once he is recovered, all have been watched for as long since.
        dead = leave_behind(stage.store)
        wait_until(lambda: dead not in stage.members(), "him to be recovered", 10 * RECOVER_AFTER_SECONDS)
        assert stage.members() == before
        stage.ledger.open_gate("gate")
        wait_until(lambda: stage.ledger.has_ended([*jids, DEAD_JID]), "the jobs to end")
        wait_until(lambda: stage.remaining() == {}, "all to be settled")

        audit = stage.ledger.audit([*jids, DEAD_JID])
        stage.report({"seconds": OUTAGE_SECONDS, **audit.counts()})
        assert (audit.lost, audit.repeated, audit.broken_off, audit.strangers) == (set(), {}, 0, set())
        assert int(stage.store.call("GET", "stat:processed")) == LONG_JOBS + 1


def beats(stage: ChaosStage) -> list[int]:
    """Return the time of each process' last beat, milliseconds, by identity."""
    return [
        int(score)
        for score in stage.store.pipeline([("ZSCORE", "kiq:beats", each) for each in sorted(stage.members())])
    ]


DEAD_JID = "dead00000000000000000000"


def leave_behind(store: Store) -> str:
    """Write what a process of another host leaves that died with a job in its hands; return its identity."""
    keys, identity = Keys(), "elsewhere:1:dead"
    payload = f'{{"class":"Work","args":[1],"queue":"default","jid":"{DEAD_JID}","retry":true}}'
    store.call("HSET", keys.members, identity, "00000001 another-boot another-namespace 1 0")
    store.call("HSET", keys.inflight(identity), "00000001.0000000001.00001:default", payload)
    return identity
