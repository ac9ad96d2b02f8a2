"""A Ruby server on jobs that ran and failed in Python: it retries, buries and revives them, and hands them back.

And the other way round: what a Ruby process puts back when it must stop, ours finish.
"""

from __future__ import annotations

import pytest

from kiqcluster.sidekiq.payload import bare
from kiqcluster.sidekiq.ruby_json import decode
from tests.apps.interop import Echo, fragile, held
from tests.interop.programs import RubyServer, exact
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

TO_RUBY = """
entry = set.find_job(jid)
entry.delete
set.schedule(entry.score, entry.item.merge("queue" => "ruby"))
"""


@pytest.fixture
def in_ruby(ruby):
    """Have a job of a set go to Ruby's queue with its next attempt."""
    return lambda kind, jid: ruby(f"set = Sidekiq::{kind}.new\n{TO_RUBY}", jid=jid)


@pytest.fixture
def cluster(stage):
    return stage.run_cluster("default", "-c", "2", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="3600")


def test_ruby_goes_on_with_a_job_that_failed_in_python(stage, cluster, ruby_server, ruby, in_ruby):
    jid = fragile.set(tags=["vip"], retry=2).perform_async(*ALL_KINDS)
    wait_until(lambda: jid in stage.jids("retry"), "the failure in Python")
    before = stage.entries("retry")[jid]
    in_ruby("RetrySet", jid)

    ruby("Sidekiq::RetrySet.new.find_job(jid).reschedule(1)", jid=jid)

    wait_until(lambda: stage.entries("retry").get(jid, {}).get("retried_at"), "the failure in Ruby")
    after = stage.entries("retry")[jid]
    assert (after["error_class"], after["retry_count"]) == ("ArgumentError", 1)
    assert (after["failed_at"], after["created_at"]) == (before["failed_at"], before["created_at"])
    assert after["tags"] == ["vip"]
    assert exact(after["args"]) == exact(ALL_KINDS)


def test_ruby_runs_a_job_that_failed_in_python(stage, cluster, ruby_server, ruby, in_ruby):
    (jid,) = stage.fail_jobs(1)
    in_ruby("RetrySet", jid)
    stage.mend_jobs()

    ruby("Sidekiq::RetrySet.new.find_job(jid).retry", jid=jid)

    stage.wait_ran([jid])
    assert stage.jids("retry") == set()


def test_ruby_buries_a_job_that_failed_in_python_for_the_last_time(stage, cluster, ruby_server, ruby, in_ruby):
    jid = fragile.set(retry=1).perform_async("x")
    wait_until(lambda: jid in stage.jids("retry"), "the failure in Python")
    in_ruby("RetrySet", jid)

    ruby("Sidekiq::RetrySet.new.find_job(jid).reschedule(1)", jid=jid)

    wait_until(lambda: jid in stage.jids("dead"), "its death in Ruby")
    assert stage.jids("retry") == set()
    assert stage.entries("dead")[jid]["error_class"] == "ArgumentError"


def test_python_revives_what_ruby_buried_and_ruby_what_python_buried(stage, cluster, ruby_server, ruby, in_ruby):
    (ours,) = stage.kill_jobs(1)
    theirs = fragile.set(queue="ruby", retry=0).perform_async("x")
    wait_until(lambda: stage.jids("dead") == {ours, theirs}, "a death on either side")
    in_ruby("DeadSet", ours)
    ruby(f"set = Sidekiq::DeadSet.new\n{TO_RUBY.replace('ruby', 'default')}", jid=theirs)
    stage.mend_jobs()

    ruby("Sidekiq::DeadSet.new.retry_all")

    stage.wait_ran([ours, theirs])
    assert {each["jid"]: each["by"] for each in map(decode, stage.store.call("LRANGE", "echoes", 0, -1))} == {
        ours: "ruby",
        theirs: "python",
    }


def test_bytes_that_were_no_job_outlive_a_retry_in_ruby(stage, cluster, ruby_server, ruby, in_ruby):
    stage.store.call("LPUSH", "queue:default", b"certainly not JSON")
    wait_until(lambda: stage.store.call("ZCARD", "dead"), "the bytes to be buried")
    (jid,) = stage.jids("dead")
    in_ruby("DeadSet", jid)

    ruby("Sidekiq::DeadSet.new.first.retry")

    wait_until(lambda: stage.entries("dead").get(jid, {}).get("error_class") == "NameError", "Ruby to bury them again")
    assert [bare(raw) for raw in stage.store.call("ZRANGE", "dead", 0, -1)] == [b"certainly not JSON"]


def test_a_job_of_a_class_that_ruby_alone_knows_waits_for_ruby(stage, cluster, ruby_server, ruby_client, ruby):
    """Pushed to our queue by mistake, it is put off until somebody has moved it."""
    jid = ruby_client.push({"class": "Only::Ruby", "args": [1], "retry": True})
    wait_until(lambda: jid in stage.jids("schedule"), "the job to be put off")
    entry = stage.entries("schedule")[jid]

    assert (entry["deferred_by"], entry["retry"], entry.get("retry_count")) == ("unknown_class", True, None)
    ruby("Sidekiq::ScheduledSet.new.find_job(jid).reschedule(at)", jid=jid, at=4_000_000_000)
    assert stage.store.call("ZRANGE", "schedule", 0, -1, "WITHSCORES")[1::2] == [b"4000000000"]


def test_ours_finish_what_ruby_puts_back_when_it_must_stop(stage, sidekiq_is_there):
    server = RubyServer(stage.redis.url, queue="default", threads=2, timeout=1)
    try:
        running = [held.perform_async(*ALL_KINDS), held.perform_async("x")]
        wait_until(lambda: stage.store.call("LLEN", "began") == 2, "both jobs to run in Ruby", seconds=30)

        assert server.stop() == 0
    finally:
        server.close()
    assert {payload["jid"] for payload in stage.queued("default")} == set(running)
    stage.run_cluster("default", "-c", "2")
    wait_until(lambda: stage.store.call("LLEN", "began") == 4, "both jobs to run in Python")
    stage.store.call("RPUSH", "release", "1", "2")
    stage.wait_ran(running)
    assert {each["by"] for each in map(decode, stage.store.call("LRANGE", "echoes", 0, -1))} == {"python"}


def test_ruby_finishes_what_ours_put_back_when_they_must_stop(stage, ruby_server):
    cluster = stage.run_cluster("held,default", "-c", "2", "--timeout", "0.2")
    jid = held.set(queue="ruby").perform_async("first")  # by Ruby, so that it is known to be there
    wait_until(lambda: stage.store.call("LLEN", "began") == 1, "Ruby to serve its queue", seconds=30)
    stage.store.call("RPUSH", "release", "1")
    stage.wait_ran([jid])
    ours = held.set(queue="held").perform_async(*ALL_KINDS)
    wait_until(lambda: stage.store.call("LLEN", "began") == 2, "the job to run in Python")

    assert cluster.stop() == 0

    (payload,) = stage.queued("held")
    assert (payload["jid"], payload["interrupted_count"]) == (ours, 1)
    stage.store.call("LMOVE", "queue:held", "queue:ruby", "RIGHT", "LEFT")
    wait_until(lambda: stage.store.call("LLEN", "began") == 3, "the job to run in Ruby")
    stage.store.call("RPUSH", "release", "1")
    stage.wait_ran([jid, ours])
    last = decode(stage.store.call("LINDEX", "echoes", -1))
    assert (last["by"], exact(last["args"])) == ("ruby", exact(ALL_KINDS))


@pytest.mark.parametrize("raw", [b"certainly not JSON", b'{"class":"Never::Heard","retry":true,"args":[],"jid":"x"}'])
def test_what_no_side_can_run_stops_neither(raw, stage, ruby_server):
    """JSON that is no object is left out: Ruby loses it, and restarts the thread (its own defect)."""
    stage.run_cluster("default")

    for queue in ("default", "ruby"):
        stage.store.call("LPUSH", f"queue:{queue}", raw)

    stage.wait_ran([Echo.perform_async("x"), Echo.set(queue="ruby").perform_async("y")])
    wait_until(
        lambda: sum(stage.store.call("ZCARD", name) for name in ("dead", "retry", "schedule")) == 2, "both to be kept"
    )
