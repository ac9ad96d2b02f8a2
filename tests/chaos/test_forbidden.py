"""A user of Redis whose rights are incomplete: what is forbidden holds up only itself."""

from __future__ import annotations

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.store.rights.trials import needed
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import wait_until

USER = "limited"
JOBS = sized(20, 2_000)
KEYS = ("queue:fine", "kiq:*", "stat:*", "stat*", "queues", "paused", "retry", "schedule", "dead", "process*")
OTHERS = ("*:work", "*:workers", "*-signals", "j|*", "h|*", "*:*:*")  # the registry's, and those of metrics


@pytest.mark.own_redis
def test_a_queue_that_an_acl_forbids_holds_up_no_other(stage: ChaosStage) -> None:
    patterns = [f"~{key}" for key in (*KEYS, *OTHERS)]
    stage.store.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", "&*", *patterns)
    forbidden = stage.push_many("Work", [[0]] * JOBS, queue="forbidden")
    fine = stage.push_many("Work", [[0]] * JOBS, queue="fine")

    cluster = stage.run_cluster("*", "-c", "2", "--redis", stage.redis.url.replace("//", f"//{USER}:pw@"))

    wait_until(lambda: stage.ledger.has_ended(fine), "all that is permitted to end", seconds=60)
    assert stage.store.call("LLEN", "queue:forbidden") == JOBS
    assert any("queue:forbidden" in line and "NOPERM" in line for line in cluster.lines)
    stage.store.call("ACL", "SETUSER", USER, "~queue:forbidden")
    assert cluster.stop() == 0
    again = stage.run_cluster("*", "-c", "2", "--redis", stage.redis.url.replace("//", f"//{USER}:pw@"))
    wait_until(lambda: stage.ledger.has_ended(forbidden), "the others to end once they are permitted")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    audit = stage.ledger.audit([*fine, *forbidden])
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert again.stop() == 0


@pytest.mark.own_redis
@pytest.mark.parametrize("forbidden", sized(["LTRIM"], needed([])))
def test_a_worker_that_may_not_run_a_command_runs_nothing_until_it_may(stage: ChaosStage, forbidden: str) -> None:
    stage.store.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", "&*", "~*", f"-{forbidden.lower()}")
    jids = stage.push_many("Work", [[0]] * JOBS, queue="fine")
    url = stage.redis.url.replace("//", f"//{USER}:pw@")

    refused = stage.run_cluster("fine", "-c", "2", "--redis", url)

    assert refused.wait() == ExitCode.REDIS_REFUSED
    assert any(forbidden in line for line in refused.lines)
    assert not stage.ledger.begun()
    assert stage.store.call("LLEN", "queue:fine") == JOBS
    stage.store.call("ACL", "SETUSER", USER, f"+{forbidden.lower()}")
    stage.run_cluster("fine", "-c", "2", "--redis", url)
    wait_until(lambda: stage.ledger.has_ended(jids), "all to end once it may")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    audit = stage.ledger.audit(jids)
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
