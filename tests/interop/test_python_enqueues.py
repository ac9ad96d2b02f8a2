"""A Python client enqueues, jobs of a real Sidekiq server receive exactly what it gave them."""

from __future__ import annotations

import time

import pytest

from kiqcluster import Client
from tests.apps.interop import Echo
from tests.interop.programs import exact
from tests.interop.values import ALL_KINDS, ARGUMENTS
from tests.kit import wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup", "ruby_server")]

RubyEcho = Echo.set(queue="ruby")


def test_ruby_receives_the_arguments_that_python_enqueued(stage):
    jids = {
        "async": RubyEcho.perform_async(*ALL_KINDS),
        "in": RubyEcho.perform_in(0.3, *ALL_KINDS),
        "at": RubyEcho.perform_at(time.time() + 0.3, *ALL_KINDS),
        "push": Client().push({"class": "Echo", "args": ALL_KINDS, "queue": "ruby"}),
    }
    (jids["bulk"],) = RubyEcho.perform_bulk([ALL_KINDS])

    for verb, jid in jids.items():
        echo = stage.echo_of(jid)
        assert echo["by"] == "ruby"
        assert exact(echo["args"]) == exact(ALL_KINDS), verb


def test_each_kind_of_argument_arrives_unchanged_on_its_own(stage):
    jids = {kind: RubyEcho.perform_async(*arguments) for kind, arguments in ARGUMENTS.items()}

    for kind, jid in jids.items():
        assert exact(stage.echo_of(jid)["args"]) == exact(ARGUMENTS[kind]), kind


def test_no_job_of_a_bulk_push_is_lost_or_doubled(stage):
    jids = RubyEcho.perform_bulk([[number] for number in range(1_200)])

    wait_until(lambda: len(stage.echoes()) >= 1_200, "all jobs of the bulk to run")
    assert {each["jid"]: each["args"] for each in stage.echoes()} == {jid: [at] for at, jid in enumerate(jids)}
    assert len(stage.echoes()) == 1_200


def test_options_that_python_set_travel_with_the_job(stage):
    options = {"retry": 3, "tags": ["vip", "é"], "backtrace": 5, "dead": False}

    jid = RubyEcho.set(**options).perform_async("x")

    payload = stage.echo_of(jid)["payload"]
    assert {key: payload[key] for key in options} == options
    assert abs(payload["created_at"] - time.time()) < 60
    assert abs(payload["enqueued_at"] - time.time()) < 60


def test_ruby_sees_the_queue_that_python_pushed_to(store, ruby):
    jid = Echo.set(queue="letters").perform_async("x")

    queues = ruby("Sidekiq::Queue.all.map { |queue| [queue.name, queue.size, queue.first.jid, queue.latency] }")

    ((name, size, first, latency),) = queues
    assert (name, size, first) == ("letters", 1, jid)
    assert 0 <= latency < 60


def test_the_latency_of_the_default_queue_is_that_of_its_oldest_job(store, ruby):
    before = time.time()
    Echo.perform_async("oldest")
    Echo.perform_async("newest")

    latencies = ruby("[Sidekiq::Stats.new.default_queue_latency, Sidekiq::Queue.new.latency]")

    for latency in latencies:
        assert 0 < latency <= time.time() - before + 1e-3  # stamps are whole milliseconds, rounded down
