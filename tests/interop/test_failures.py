"""What Python writes about failed and scheduled jobs is what Ruby reads, and the other way round."""

from __future__ import annotations

import time

import pytest

from kiqcluster.sidekiq import backtraces
from kiqcluster.sidekiq.ruby_json import decode
from tests.apps.interop import Echo, fragile
from tests.interop.programs import exact
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

RETRY_SET = """
Sidekiq::RetrySet.new.map { |entry|
  entry.item.merge("klass" => entry.klass, "jid" => entry.jid, "queue" => entry.queue, "tags" => entry.tags,
                   "backtrace" => entry.error_backtrace, "created_at" => entry.created_at.to_f,
                   "at" => entry.at.to_f, "is_error" => entry.error?)
}
"""
FAILED_TWICE = "Sidekiq::RetrySet.new.any? { |entry| entry['retried_at'] }"


@pytest.fixture
def cluster(stage):
    return stage.run_cluster("default", "-c", "2", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")


def test_ruby_reads_the_retry_that_python_wrote(store, cluster, ruby):
    before = time.time()
    jid = fragile.set(tags=["vip"]).perform_async(*ALL_KINDS)
    wait_until(lambda: store.call("ZCARD", "retry"), "the retry")

    (entry,) = ruby(RETRY_SET)

    assert (entry["klass"], entry["jid"], entry["queue"]) == ("Acme::Fragile", jid, "default")
    assert exact(entry["args"]) == exact(ALL_KINDS)
    assert (entry["error_class"], entry["error_message"]) == ("ValueError", "broken in Python ✗")
    assert entry["is_error"] is True
    assert entry["retry_count"] == 0
    assert entry["tags"] == ["vip"]
    assert before - 1e-3 <= entry["created_at"] <= entry["failed_at"] <= time.time()
    assert "retried_at" not in entry
    assert entry["failed_at"] + 15 <= entry["at"] <= entry["failed_at"] + 26
    assert entry["backtrace"][0] == "Traceback (most recent call last):"
    assert entry["backtrace"][1].endswith("in fragile")
    assert all(isinstance(line, str) for line in entry["backtrace"])


def test_ruby_retries_a_job_that_failed_in_python(stage, cluster, ruby):
    jid = fragile.perform_async(*ALL_KINDS)
    wait_until(lambda: stage.store.call("ZCARD", "retry"), "the retry")
    stage.store.call("SET", "mended", "1")

    ruby("Sidekiq::RetrySet.new.find_job(jid).retry", jid=jid)

    assert exact(stage.echo_of(jid)["args"]) == exact(ALL_KINDS)
    assert stage.store.call("ZCARD", "retry") == 0


def test_a_retry_by_hand_uses_up_no_attempt(store, cluster, ruby):
    jid = fragile.perform_async("x")
    wait_until(lambda: store.call("ZCARD", "retry"), "the retry")

    ruby("Sidekiq::RetrySet.new.find_job(jid).retry", jid=jid)

    wait_until(lambda: ruby(FAILED_TWICE), "the second failure")
    (entry,) = ruby(RETRY_SET)
    assert entry["retry_count"] == 0
    assert entry["retried_at"] > entry["failed_at"]


def test_a_job_that_failed_in_ruby_goes_on_failing_in_python(stage, ruby, ruby_server):
    fragile.set(queue="ruby", retry=3).perform_async(*ALL_KINDS)
    wait_until(lambda: stage.store.call("ZCARD", "retry"), "the failure in Ruby")
    (from_ruby,) = ruby(RETRY_SET)
    assert (from_ruby["error_class"], from_ruby["retry_count"]) == ("ArgumentError", 0)

    ruby("entry = Sidekiq::RetrySet.new.first; entry.delete; item = entry.item; "
         "Sidekiq::RetrySet.new.schedule(0, item.merge('queue' => 'default'))")  # fmt: skip
    stage.run_cluster("default", KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.1")

    wait_until(lambda: ruby(FAILED_TWICE), "the failure in Python")
    (entry,) = ruby(RETRY_SET)
    assert (entry["error_class"], entry["error_message"]) == ("ValueError", "broken in Python ✗")
    assert (entry["retry"], entry["retry_count"], entry["failed_at"]) == (3, 1, from_ruby["failed_at"])
    assert entry["backtrace"] != from_ruby["backtrace"]
    assert exact(entry["args"]) == exact(ALL_KINDS)


def test_python_reads_the_backtrace_that_ruby_wrote(store, ruby_server):
    fragile.set(queue="ruby").perform_async("x")
    wait_until(lambda: store.call("ZCARD", "retry"), "the failure in Ruby")

    lines = backtraces.decode(decode(store.call("ZRANGE", "retry", 0, -1)[0])["error_backtrace"])

    assert lines is not None
    assert "server.rb" in lines[0]


def test_ruby_reads_the_schedule_that_python_wrote(store, ruby):
    at = time.time() + 3_600
    jid = Echo.set(queue="low", tags=["vip"]).perform_at(at, *ALL_KINDS)

    entries = ruby("Sidekiq::ScheduledSet.new.map { |e| [e.klass, e.jid, e.queue, e.args, e.tags, e.score, e.error?] }")

    assert exact(entries) == exact([["Echo", jid, "low", ALL_KINDS, ["vip"], at, False]])


def test_ruby_enqueues_a_scheduled_job_of_python_at_once(stage, cluster, ruby):
    jid = Echo.perform_in(3_600, *ALL_KINDS)

    ruby("Sidekiq::ScheduledSet.new.find_job(jid).add_to_queue", jid=jid)

    assert exact(stage.echo_of(jid)["args"]) == exact(ALL_KINDS)
    assert stage.store.call("ZCARD", "schedule") == 0
