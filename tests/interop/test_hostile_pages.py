"""Whatever our API does with what became of hostile payloads (bad_input.py), every page of Ruby's is shown."""

from __future__ import annotations

import json

import pytest

from kiqcluster.api import DeadSet, Queue, RetrySet, ScheduledSet
from kiqcluster.process.runtime import Setup, using_setup
from tests.interop.bad_input import CASES, is_json, marked
from tests.kit import cluster, wait_until

pytestmark = pytest.mark.ruby

FAR_FUTURE = 4_000_000_000  # epoch seconds
SETS = {"schedule": ScheduledSet, "retry": RetrySet, "dead": DeadSet}
EVERYTHING = len(CASES)
PAGES = """
sets = {"retries" => Sidekiq::RetrySet, "scheduled" => Sidekiq::ScheduledSet, "morgue" => Sidekiq::DeadSet}
lists = ["/", "/busy", "/queues", "/stats", "/stats/queues"]
lists += Sidekiq::Queue.all.flat_map { |queue| [1, 2, 3].map { |page| "/queues/#{queue.name}?page=#{page}" } }
lists += sets.keys.flat_map { |name| [1, 2, 3].map { |page| "/#{name}?page=#{page}" } }
lists + sets.flat_map { |name, set| set.new.map { |entry| "/#{name}/#{entry.score}-#{entry.jid}" } }
"""
ACTIONS = {
    "retry the retries": lambda: RetrySet().retry_all(),
    "kill the retries": lambda: RetrySet().kill_all(),
    "revive the dead": lambda: DeadSet().retry_all(),
    "add the scheduled to their queues": lambda: ScheduledSet().add_all_to_queue(),
    "retry the scheduled": lambda: ScheduledSet().retry_all(),
    "kill the scheduled": lambda: ScheduledSet().kill_all(),
    "give all another time": lambda: sum(kind().reschedule(list(kind()), FAR_FUTURE) for kind in SETS.values()),
    "delete every other": lambda: sum(kind().delete(list(kind())[::2]) for kind in SETS.values()),
    "revive the dead, and move them": lambda: [
        DeadSet().retry_all(),
        *(queue.move(reversed(queue), "other") for queue in Queue.all()),
    ],
}


@pytest.fixture(scope="module")
def hostile(redis_server, sidekiq_is_there):
    """Run a cluster over all hostile payloads, and end it; return what lies in the sets then."""
    store = redis_server.store()
    store.call("FLUSHALL")
    store.call("SADD", "queues", "default")
    store.call("LPUSH", "queue:default", *(marked(name, case.raw) for name, case in CASES.items()))
    with cluster("default", "-c", "2", "-r", "tests.apps.interop", "--redis", redis_server.url) as running:
        wait_until(lambda: sum(store.call("ZCARD", name) for name in SETS) == EVERYTHING, "every outcome")
        assert running.stop() == 0
    return {name: store.call("ZRANGE", name, 0, -1, "WITHSCORES") for name in SETS}


@pytest.fixture
def strange(hostile, store):
    """A database with what became of them, and nobody who works."""
    for name, flat in hostile.items():
        store.call(
            "ZADD", name, *(word for raw, score in zip(flat[::2], flat[1::2], strict=True) for word in (score, raw))
        )
    with using_setup(Setup(store=store)):
        yield store


def broken(ruby, ruby_web):
    """Return the pages that are not shown, and why."""
    return {page: answer for page, answer in ruby_web(*ruby(PAGES)).items() if answer != [200, None]}


def count_jobs(store):
    """Return how many jobs lie anywhere."""
    lists = [key for key in store.call("KEYS", "*") if key.startswith((b"queue:", b"kiq:wake:"))]
    return sum(store.call("ZCARD", name) for name in SETS) + sum(store.call("LLEN", key) for key in lists)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_page_is_shown_whatever_our_api_does_with_hostile_payloads(action, strange, ruby, ruby_web):
    before = count_jobs(strange)

    assert ACTIONS[action]()

    assert broken(ruby, ruby_web) == {}
    assert before == EVERYTHING
    assert count_jobs(strange) == (
        EVERYTHING if action != "delete every other" else pytest.approx(EVERYTHING / 2, abs=2)
    )


def test_every_page_is_shown_once_a_cluster_has_had_them_again(strange, redis_server, ruby, ruby_web):
    for kind in SETS.values():
        kind().retry_all()

    with cluster("default,5,low", "-c", "2", "-r", "tests.apps.interop", "--redis", redis_server.url):
        wait_until(lambda: sum(strange.call("ZCARD", name) for name in SETS) == EVERYTHING, "every outcome")
        assert broken(ruby, ruby_web) == {}
    assert count_jobs(strange) == EVERYTHING


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if is_json(case.raw)])
def test_a_hostile_payload_that_our_api_buries_is_shown(name, store, ruby, ruby_web):
    with using_setup(Setup(store=store)):
        DeadSet().bury(json.loads(CASES[name].raw))

    assert store.call("ZCARD", "dead") == 1
    assert broken(ruby, ruby_web) == {}
