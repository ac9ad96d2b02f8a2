"""Servers and sentinel behind TLS and passwords: a cluster works there as anywhere, also when the primary changes."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.chaos.pusher import Pusher
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.chaos.test_redis_failover import unexplained_repeats, wait_for_more
from tests.kit import wait_until
from tests.sentinel import SentinelGroup
from tests.stage import Jobs
from tests.tls import Locks

# In the short form: redis/test_tls.py, redis/test_sentinel.py.
pytestmark = pytest.mark.full

EXCHANGES = sized(0, 10)  # before the primary dies


def test_a_cluster_behind_tls_and_passwords_goes_on_when_its_primary_changes(stage: ChaosStage, tmp_path: Path) -> None:
    locks = Locks.made(tmp_path)
    with SentinelGroup(locks=locks) as group, ExitStack() as pushing:
        for server in group.servers:
            server.store().call("CONFIG", "SET", "min-replicas-to-write", "1")
        cluster = stage.run_cluster("default", "default", "-c", "4", "--redis", group.url)
        confirmed = pushing.enter_context(Pusher(Store(group.url), stage.rng, wait_replicas=1))
        pids = cluster.wait_ready(2)

        windows = []
        for number in range(EXCHANGES):
            wait_for_more([confirmed])
            began = time.monotonic()
            group.fail_over(to=1 - number % 2)
            windows.append((began, time.monotonic()))
        wait_for_more([confirmed])
        primary, replica = EXCHANGES % 2, 1 - EXCHANGES % 2
        group.servers[replica].store().call("CONFIG", "SET", "min-replicas-to-write", "0")
        began = time.monotonic()
        group.servers[primary].kill()
        store = group.wait_failed_over(to=replica)
        windows.append((began, time.monotonic()))
        pushing.close()

        wait_until(lambda: stage.ledger.has_ended(confirmed.certain), "all that was confirmed to end")
        wait_until(lambda: Jobs(store).remaining() == {}, "all to be settled")
        wait_until(lambda: cluster.readiness()[0] == 200, "the cluster to be ready")

        audit = stage.ledger.audit(confirmed.certain)
        unexplained = unexplained_repeats(audit, windows)
        stage.report({"exchanges": EXCHANGES, **audit.counts(), "unexplained": len(unexplained), **confirmed.counts()})
        assert audit.lost == set()
        assert unexplained == []
        assert stage.ledger.begun().keys() & confirmed.never == set()
        assert cluster.pids() == pids
        assert cluster.stop() == 0
        assert not any(secret in line for secret in (locks.password, locks.login) for line in cluster.lines)
