"""Whatever lies in a queue, no job is lost, no thread dies, and every page of Ruby's web UI still works."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from kiqcluster.api.records import JobRecord
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq.payload import TRANSIENT_KEYS, bare
from kiqcluster.sidekiq.ruby_entries import misfits
from kiqcluster.sidekiq.ruby_json import members
from tests.apps.interop import hold
from tests.interop.bad_input import CASES, case_of, is_json, marked
from tests.kit import cluster, wait_until
from tests.stage import Jobs

pytestmark = pytest.mark.ruby

THREADS = 2

SETS = ("schedule", "retry", "dead")
PAGES = ("/", "/busy", "/queues", "/queues/default", "/retries", "/scheduled", "/morgue", "/stats", "/stats/queues")
DETAIL_PAGES = """
sets = {"retries" => Sidekiq::RetrySet, "scheduled" => Sidekiq::ScheduledSet, "morgue" => Sidekiq::DeadSet}
sets.flat_map { |page, set| set.new.select(&:jid).map { |entry| "/#{page}/#{entry.score}-#{entry.jid}" } }
"""


@dataclass(frozen=True)
class Aftermath:
    """What there is once a cluster has had all of CASES.

    found: case → the sets in which it lies, and the entries there.  pages: path → status and error.
    crashed: services that a bad payload took down.
    """

    found: dict[str, list[tuple[str, bytes]]]
    pages: dict[str, list[Any]]
    crashed: list[Any]


@pytest.fixture(scope="module")
def aftermath(redis_server, ruby, ruby_web):
    """Run a cluster over all cases at once; THREADS threads, so that each would be missed."""
    store = redis_server.store()
    store.call("FLUSHALL")
    store.call("SADD", "queues", "default")
    store.call("LPUSH", "queue:default", *(marked(name, case.raw) for name, case in CASES.items()))
    app = ("-r", "tests.apps.interop", "--redis", redis_server.url)
    with cluster("default", "-c", str(THREADS), *app) as running, using_setup(Setup(store=store)):
        wait_until(lambda: Jobs(store).remaining().keys() <= set(SETS), "all outcomes to be written")
        hold.perform_bulk([[str(number)] for number in range(THREADS)])
        wait_until(lambda: store.call("LLEN", "began") == THREADS, "as many jobs to run at once as there are threads")
        found: dict[str, list[tuple[str, bytes]]] = {}
        for name in SETS:
            for raw in store.call("ZRANGE", name, 0, -1):
                found.setdefault(case_of(raw), []).append((name, raw))
        pages = ruby_web(*PAGES, *ruby(DETAIL_PAGES))
        yield Aftermath(found, pages, running.seen("service_crashed"))


@pytest.mark.parametrize("name", CASES)
def test_bad_input_ends_in_one_set_with_its_reason(name, aftermath):
    ((ends_in, raw),) = aftermath.found[name]

    assert ends_in == CASES[name].ends_in
    entry = JobRecord(raw)
    assert CASES[name].reason in str(entry["error_message"]) + str(entry["deferred_by"])


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if is_json(case.raw)])
def test_no_key_of_others_is_rewritten(name, aftermath):
    ((_, raw),) = aftermath.found[name]
    before, after = members(CASES[name].raw), members(bare(raw))

    ours = {"queue", "retry_count", "failed_at", "retried_at", "error_class", "error_message", "error_backtrace"}
    unset = {key for key in ("jid", "args") if json.loads(CASES[name].raw).get(key) in (None, "")}
    left_out = set(TRANSIENT_KEYS) & {*misfits(json.loads(CASES[name].raw))}
    kept = before.keys() - ours - unset - left_out - ({"enqueued_at"} if CASES[name].ends_in == "schedule" else set())
    assert {key: bytes(after[key]) for key in kept} == {key: bytes(before[key]) for key in kept}


def test_every_page_of_ruby_shows_what_became_of_bad_input(aftermath):
    assert {page: answer for page, answer in aftermath.pages.items() if answer != [200, None]} == {}
    assert len(aftermath.pages) == len(PAGES) + len(CASES)


def test_no_thread_dies_of_bad_input(aftermath):
    assert aftermath.crashed == []  # and the fixture has seen as many jobs run at once as there are threads


def test_the_busy_page_shows_a_running_job_whatever_is_in_its_payload(stage, ruby, ruby_web):
    strange = [
        {"tags": "vip"},
        {"jid": 7, "created_at": "now"},
        {"args": [], "encrypt": True},
        {"args": None, "tags": [1], "error_backtrace": []},
    ]
    # On a queue of their own: the cluster that the other tests look at serves `default`.
    stage.store.call(
        "LPUSH", "queue:strange", *(json.dumps({"class": "hold", "args": [1], **each}) for each in strange)
    )
    stage.run_cluster("strange", "-c", str(len(strange)))
    wait_until(lambda: stage.store.call("LLEN", "began") == len(strange), "all jobs to run")
    wait_until(lambda: ruby("Sidekiq::ProcessSet.new.map(&:queues)").count(["strange"]), "the process to register")

    ruby("Sidekiq::ProcessSet.new.each(&:dump_threads)")  # any signal is followed by a beat

    shown = "Sidekiq::WorkSet.new.count { |_, _, work| work['queue'] == 'strange' }"
    wait_until(lambda: ruby(shown) == len(strange), "all jobs to show", seconds=5)
    assert ruby_web("/busy", "/") == {"/busy": [200, None], "/": [200, None]}


def test_bytes_that_ruby_retries_are_looked_at_anew(stage, ruby):
    stage.store.call("LPUSH", "queue:default", b"certainly not JSON")
    stage.run_cluster("default")
    wait_until(lambda: stage.store.call("ZCARD", "dead"), "the bytes to be buried")
    first = ruby("Sidekiq::DeadSet.new.first.jid")

    ruby("Sidekiq::DeadSet.new.first.retry")

    wait_until(lambda: ruby("Sidekiq::DeadSet.new.map(&:jid)") not in ([], [first]), "the bytes to be buried again")
    assert bare(stage.store.call("ZRANGE", "dead", 0, -1)[0]) == b"certainly not JSON"
    assert stage.store.call("ZCARD", "dead") == 1
