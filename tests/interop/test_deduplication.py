"""Deduplicated jobs on a queue that Ruby serves: it runs them; their locks are as docs/guides/deduplicate.md says."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import Job
from kiqcluster.api import LockSet, RetrySet
from kiqcluster.sidekiq.ruby_json import decode
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

TO_PYTHON = """
set = Sidekiq::RetrySet.new
entry = set.find_job(jid)
entry.delete
set.schedule(entry.score, entry.item.merge("queue" => "default"))
"""


@pytest.fixture
def declare(stage, setup):
    """Declare a job of Ruby's queue with a strategy; Ruby has these classes as well."""

    def declare(name: str, strategy: str = "until_executed") -> Any:
        options: Any = {} if strategy == "while_executing" else {"deduplicate_ttl": 60}

        class Deduplicated(Job, name=name, queue="ruby", deduplicate=strategy, **options):
            def perform(self, *args: Any) -> None: ...

        return Deduplicated

    return declare


@pytest.mark.parametrize("strategy", ["until_executing", "until_executed"])
def test_ruby_runs_a_job_and_leaves_its_lock(stage, ruby_server, declare, strategy):
    echo = declare("Echo", strategy)
    jid = echo.perform_async(7)
    payload = stage.echo_of(jid)["payload"]
    wait_until(lambda: not stage.store.call("LLEN", "queue:ruby"), "the queue to be empty")

    dropped = echo.perform_async(7)

    lock = LockSet().find(payload["idempotency_key"])
    assert dropped == jid
    assert lock is not None
    assert lock.jid == jid
    assert lock.ttl is not None
    assert 0 < lock.ttl <= 60
    assert lock.release()
    stage.wait_ran([jid, echo.perform_async(7)])


def test_ruby_pushes_and_runs_equal_jobs_without_asking(stage, ruby_client, ruby_server, declare):
    first = declare("Echo").perform_async(7)
    second = ruby_client("perform_async", 7, set={"queue": "ruby"})

    stage.wait_ran([first, second])
    assert [lock.jid for lock in LockSet()] == [first]


def test_equal_jobs_run_side_by_side_in_ruby(stage, ruby_server, declare):
    hold = declare("Hold", "while_executing")
    jids = [hold.perform_async(7), hold.perform_async(7)]

    wait_until(lambda: stage.store.call("LLEN", "began") == 2, "both to run in Ruby")
    stage.store.call("RPUSH", "release", "now", "now")
    stage.wait_ran(jids)
    assert stage.store.call("LLEN", "began") == 2


def test_a_job_that_failed_in_ruby_and_ends_in_python_releases_its_lock(stage, ruby, ruby_server, declare):
    fragile = declare("Acme::Fragile")
    jid = fragile.perform_async(7)
    wait_until(lambda: jid in stage.jids("retry"), "the failure in Ruby")
    ruby(TO_PYTHON, jid=jid)
    assert fragile.perform_async(7) == jid  # dropped: its lock goes with it
    stage.mend_jobs()

    failed = RetrySet().find_job(jid)
    assert failed is not None
    assert failed.retry()
    stage.run_cluster("default", "-c", "1")

    stage.wait_ran([jid])
    wait_until(lambda: list(LockSet()) == [], "the lock to be released")
    assert fragile.perform_async(7) != jid


def test_a_job_that_is_deleted_on_rubys_pages_leaves_its_lock(stage, ruby, declare):
    echo = declare("Echo")
    jid = echo.set(queue="unserved").perform_async(7)
    (raw,) = stage.store.call("LRANGE", "queue:unserved", 0, -1)

    assert ruby("Sidekiq::Queue.new('unserved').find_job(jid).delete", jid=jid)

    assert stage.store.call("LLEN", "queue:unserved") == 0
    assert LockSet().find(decode(raw)["idempotency_key"]).jid == jid
