"""The primary dies, or is exchanged, and Sentinel promotes its replica: what was confirmed is there, and work goes on.

What is lost without a confirmation is counted.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from kiqcluster.store import Store
from tests.chaos.ledger import Audit, Entry
from tests.chaos.pusher import Pusher
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import wait_until
from tests.sentinel import SentinelGroup
from tests.stage import Jobs

# In the short form: redis/test_replicas.py, redis/test_sentinel.py, process/test_redis_cluster.py.
pytestmark = pytest.mark.full

EXCHANGES = sized(3, 20)
UNREPLICATED_PUSHES = 100  # pushes that are acknowledged while the replica does not follow
UNREPLICATED_SECONDS = sized(1.0, 5.0)  # before it fell behind in which outcomes may not have reached it either


def wait_for_more(pushers: list[Pusher], number: int = 30) -> None:
    """Wait until each of them has got that many jobs enqueued from now on."""
    before = [len(pusher.certain) for pusher in pushers]
    wait_until(
        lambda: all(len(each.certain) >= least + number for each, least in zip(pushers, before, strict=True)),
        "pushes to go through",
    )


@pytest.mark.parametrize("number", range(sized(1, 10)))
def test_confirmed_pushes_survive_the_death_of_the_primary(stage: ChaosStage, number: int) -> None:
    """Those are counted that nobody runs before: a job that has run cannot be lost any more."""
    with SentinelGroup(is_far=True) as group, ExitStack() as pushing:
        cluster = stage.run_cluster("default", "-c", "4", "--redis", group.url)
        confirmed = Pusher(Store(group.url, timeout=1.0), stage.rng, queue="later", wait_replicas=1)
        plain = Pusher(Store(group.url, timeout=1.0), stage.rng, queue="later")
        load = Pusher(Store(group.url, timeout=1.0), stage.rng)
        pushers = [pushing.enter_context(pusher) for pusher in (confirmed, plain, load)]
        pid = cluster.wait_ready()[0]
        wait_for_more(pushers)

        # The replica falls behind: a push that waits for it says so, the others know nothing.
        group.link.stall()
        behind_since = time.monotonic()
        wait_for_more([plain, load], UNREPLICATED_PUSHES)
        wait_until(lambda: confirmed.unconfirmed, "a push that is not confirmed")
        group.servers[0].kill()
        store = group.wait_failed_over()
        before = set(load.certain)
        wait_for_more([plain, load])
        pushing.close()

        wait_until(lambda: stage.ledger.has_ended(load.certain - before), "jobs to run again")
        stage.run_cluster("later", "-c", "4", "--redis", group.url)
        wait_until(lambda: stage.ledger.has_ended(confirmed.certain), "all that was confirmed to end")
        wait_until(lambda: Jobs(store).remaining() == {}, "all to be settled")

        audit = stage.ledger.audit(confirmed.certain | plain.certain | load.certain)
        unexplained = unexplained_repeats(audit, [(behind_since, time.monotonic())])
        stage.report(
            {
                **audit.counts(),
                "unexplained": len(unexplained),
                "confirmed": len(confirmed.certain),
                "of them lost": len(audit.lost & confirmed.certain),
                "not confirmed": len(confirmed.unconfirmed),
                "plain": len(plain.certain | load.certain),
                "of these lost": len(audit.lost - confirmed.certain),
            }
        )
        assert audit.lost & confirmed.certain == set()
        assert len(audit.lost & plain.certain) >= UNREPLICATED_PUSHES  # else nothing was shown
        assert unexplained == []
        assert stage.ledger.begun().keys() & (confirmed.never | plain.never | load.never) == set()
        assert cluster.pids() == {0: pid}


def unexplained_repeats(audit: Audit, windows: Sequence[tuple[float, float]]) -> list[str]:
    """Return the jobs that ran again though their outcome must have been on both servers.

    windows: when the one had what the other never got.
    """

    def is_explained(end: Entry) -> bool:
        return any(start - UNREPLICATED_SECONDS <= end.at <= finish for start, finish in windows)

    return [jid for jid, ends in audit.repeated.items() if not all(map(is_explained, ends[:-1]))]


def test_an_exchange_of_roles_loses_nothing_that_was_confirmed(stage: ChaosStage) -> None:
    with SentinelGroup() as group, ExitStack() as pushing:
        for server in group.servers:
            server.store().call("CONFIG", "SET", "min-replicas-to-write", "1")
        cluster = stage.run_cluster("default", "default", "-c", "4", "--redis", group.url)
        confirmed = Pusher(Store(group.url), stage.rng, wait_replicas=1)
        plain = Pusher(Store(group.url), stage.rng)
        pushers = [pushing.enter_context(pusher) for pusher in (confirmed, plain)]
        pids = cluster.wait_ready(2)

        windows = []
        for number in range(EXCHANGES):
            wait_for_more(pushers)
            began = time.monotonic()
            store = group.fail_over(to=1 - number % 2)
            windows.append((began, time.monotonic()))
        wait_for_more(pushers)
        pushing.close()
        wait_until(lambda: stage.ledger.has_ended(confirmed.certain), "all that was confirmed to end")
        wait_until(lambda: Jobs(store).remaining() == {}, "all to be settled")

        audit = stage.ledger.audit(confirmed.certain | plain.certain)
        unexplained = unexplained_repeats(audit, windows)
        stage.report(
            {
                "exchanges": EXCHANGES,
                **audit.counts(),
                "unexplained": len(unexplained),
                "confirmed": len(confirmed.certain),
                "of them lost": len(audit.lost & confirmed.certain),
                "of the others lost": len(audit.lost - confirmed.certain),
            }
        )
        assert audit.lost & confirmed.certain == set()
        assert stage.ledger.begun().keys() & (confirmed.never | plain.never) == set()
        assert unexplained == []
        assert cluster.pids() == pids
