"""A user of Redis whose rights are incomplete: what is forbidden holds up only itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import pytest

from kiqcluster.errors import ExitCode
from kiqcluster.store import Store
from kiqcluster.store.commands import WORKER_COMMANDS
from tests.chaos.ledger import Ledger, remains
from tests.chaos.scale import sized
from tests.kit import ROOT, Cluster, RedisServer, wait_until
from tests.process.stage import push_many

Run = Callable[..., Cluster]

USER = "limited"
JOBS = sized(20, 2_000)
KEYS = ("queue:fine", "kiq:*", "stat:*", "stat*", "queues", "paused", "retry", "schedule", "dead", "process*")
OTHERS = ("*:work", "*:workers", "*-signals", "j|*", "h|*", "*:*:*")  # the registry's, and those of metrics


def test_a_queue_that_an_acl_forbids_holds_up_no_other(
    run: Run, own_server: RedisServer, ledger: Ledger, rng: object
) -> None:
    admin: Store = own_server.store()
    patterns = [f"~{key}" for key in (*KEYS, *OTHERS)]
    admin.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", "&*", *patterns)
    forbidden = push_many(admin, "Work", [[0]] * JOBS, queue="forbidden")
    fine = push_many(admin, "Work", [[0]] * JOBS, queue="fine")

    cluster = run("*", "-c", "2", "--redis", own_server.url.replace("//", f"//{USER}:pw@"))

    wait_until(lambda: ledger.has_ended(fine), "all that is permitted to end", seconds=60)
    assert admin.call("LLEN", "queue:forbidden") == JOBS
    assert any("queue:forbidden" in line and "NOPERM" in line for line in cluster.lines)
    admin.call("ACL", "SETUSER", USER, "~queue:forbidden")
    assert cluster.stop() == 0
    again = run("*", "-c", "2", "--redis", own_server.url.replace("//", f"//{USER}:pw@"))
    wait_until(lambda: ledger.has_ended(forbidden), "the others to end once they are permitted")
    wait_until(lambda: remains(admin) == {}, "all to be settled")
    audit = ledger.audit([*fine, *forbidden])
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()
    assert again.stop() == 0


@pytest.mark.parametrize("forbidden", sized(["LTRIM"], sorted(WORKER_COMMANDS)))
def test_a_worker_that_may_not_run_a_command_runs_nothing_until_it_may(
    run: Run, own_server: RedisServer, ledger: Ledger, forbidden: str
) -> None:
    admin: Store = own_server.store()
    admin.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", "&*", "~*", f"-{forbidden.lower()}")
    jids = push_many(admin, "Work", [[0]] * JOBS, queue="fine")
    url = own_server.url.replace("//", f"//{USER}:pw@")

    refused = run("fine", "-c", "2", "--redis", url)

    assert refused.wait() == ExitCode.REDIS_REFUSED
    assert any(forbidden in line for line in refused.lines)
    assert not ledger.begun()
    assert admin.call("LLEN", "queue:fine") == JOBS
    admin.call("ACL", "SETUSER", USER, f"+{forbidden.lower()}")
    run("fine", "-c", "2", "--redis", url)
    wait_until(lambda: ledger.has_ended(jids), "all to end once it may")
    wait_until(lambda: remains(admin) == {}, "all to be settled")
    audit = ledger.audit(jids)
    assert audit.lost == audit.strangers == audit.repeated.keys() == set()


def test_the_user_of_the_documentation_may_do_all_that_a_cluster_does(
    run: Run, own_server: RedisServer, ledger: Ledger, rng: Random
) -> None:
    admin: Store = own_server.store()
    text = (ROOT / "docs" / "running.md").read_text()
    (line,) = re.findall(r"^ACL SETUSER worker [^\\]*(?:\\\n[^\\`]*)*$", text, re.MULTILINE)
    admin.call(*line.replace("PASSWORD", "pw").replace("\\\n", " ").split())
    url = own_server.url.replace("//", "//worker:pw@")
    admin.call("ZADD", "retry", "1.5", '{"class":"Work","args":[0],"jid":"due","queue":"fine","retry":true}')
    admin.call("ZADD", "retry", "1.5", "no job")

    cluster = run("fine", "-c", "2", "--redis", url, KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.05")
    jids = push_many(admin, "Work", [[0]] * JOBS, queue="fine")
    unknown = push_many(admin, "Nobody", [[0]], queue="fine")

    wait_until(lambda: ledger.has_ended([*jids, "due"]), "all to end")
    wait_until(lambda: admin.call("ZCARD", "dead") == 1, "the entry that is no job to be buried")
    wait_until(lambda: admin.call("ZCARD", "schedule") == len(unknown), "the unknown job to be put off")
    wait_until(lambda: admin.call("SCARD", "processes"), "the process to register")
    assert cluster.stop() == 0
    assert [entry for entry in admin.call("ACL", "LOG") if b"worker" in entry] == []
