"""Whatever lies in a queue, no job is lost, no thread dies, and every page of Ruby's web UI still works."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

import pytest

from kiqcluster.payload import MALFORMED, unwrap
from kiqcluster.rubyjson import decode
from kiqcluster.runtime import Setup, using_setup
from tests.apps.interop import hold
from tests.kit import cluster, wait_until

pytestmark = pytest.mark.ruby

THREADS = 2

SETS = ("schedule", "retry", "dead")
PAGES = ("/", "/busy", "/queues", "/queues/default", "/retries", "/scheduled", "/morgue", "/stats", "/stats/queues")
DETAIL_PAGES = """
sets = {"retries" => Sidekiq::RetrySet, "scheduled" => Sidekiq::ScheduledSet, "morgue" => Sidekiq::DeadSet}
sets.flat_map { |page, set| set.new.select(&:jid).map { |entry| "/#{page}/#{entry.score}-#{entry.jid}" } }
"""
ACTIVE_JOB = "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper"


@dataclass(frozen=True)
class Case:
    """Bytes that lie in a queue, the set in which they end, and a word of the reason that is written there."""

    raw: bytes
    ends_in: str
    reason: str


def job(**fields: Any) -> bytes:
    """Return a payload that would fail in the ordinary way, were it not for the given fields (None leaves one out)."""
    payload = {"class": "Acme::Fragile", "args": [1], "queue": "default", "retry": True, "created_at": 1.5, **fields}
    return json.dumps({key: value for key, value in payload.items() if value is not None}).encode()


CASES = {
    # no job at all
    "empty": Case(b"", "dead", "no JSON"),
    "text": Case(b"certainly not JSON", "dead", "no JSON"),
    "cut off": Case(b'{"class":"Echo","args":[', "dead", "no JSON"),
    "not a number": Case(b'{"class":"Echo","args":[NaN]}', "dead", "no JSON"),
    "not UTF-8": Case(b'{"class":"Echo","args":["\xff\xfe"]}', "dead", "no JSON"),
    "binary": Case(bytes(range(256)), "dead", "no JSON"),
    "number": Case(b"123", "dead", "no object"),
    "null": Case(b"null", "dead", "no object"),
    "list": Case(b"[]", "dead", "no object"),
    "string": Case(b'"x"', "dead", "no object"),
    "too deep": Case(b'{"class":"Echo","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "dead", "no JSON"),
    # no class, or one that nobody knows
    "no class": Case(b'{"args":[1]}', "dead", "no class"),
    "empty object": Case(b"{}", "dead", "no class"),
    "null class": Case(b'{"class":null,"args":[]}', "dead", "no class"),
    "integer class": Case(job(**{"class": 7}), "dead", "no class"),
    "list class": Case(job(**{"class": ["Echo"]}), "dead", "no class"),
    "unknown class": Case(job(**{"class": "Never::Heard"}), "schedule", "unknown_class"),
    "unknown class, no retry": Case(job(**{"class": "Never::Heard"}, retry=False), "schedule", "unknown_class"),
    "unknown class, nothing else": Case(b'{"class":"Never::Heard"}', "schedule", "unknown_class"),
    "unknown class, deferred for long": Case(
        job(**{"class": "Never::Heard"}, retry=False, deferred_count=10), "dead", "no job named"
    ),
    "wrapper of another framework": Case(job(**{"class": ACTIVE_JOB}, wrapped="Mail"), "schedule", "unknown"),
    # arguments
    "object for args": Case(job(args={"a": 1}), "dead", "not a list"),
    "string for args": Case(job(args="abc"), "dead", "not a list"),
    "number for args": Case(job(args=0), "dead", "not a list"),
    "too few args": Case(job(**{"class": "strict"}, args=["x"]), "retry", "missing"),
    "too many args": Case(job(**{"class": "strict"}, args=["x", 1, 2]), "retry", "too many"),
    "args that do not fit, no retry": Case(job(**{"class": "strict"}, args=[], retry=False), "dead", "missing"),
    "mailer of another framework": Case(
        job(**{"class": ACTIVE_JOB}, wrapped="ActionMailer::MailDeliveryJob", args=[{"arguments": ["M", "m"]}]),
        "schedule",
        "unknown",
    ),
    "half a surrogate pair": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":["\\ud800"],"jid":"a1"}', "dead", "broken"
    ),
    "numbers beyond floats": Case(b'{"class":"Acme::Fragile","retry":true,"args":[1e400,-1e400]}', "retry", "broken"),
    "very long integer": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":[' + b"9" * 6_000 + b"]}", "retry", "broken"
    ),
    "as deep as Ruby goes": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":' + b"[" * 99 + b"]" * 99 + b"}", "retry", "broken"
    ),
    "deeper than Ruby goes": Case(
        b'{"class":"Acme::Fragile","retry":true,"args":' + b"[" * 150 + b"]" * 150 + b"}", "dead", "broken"
    ),
    # retry options
    "negative retry": Case(job(retry=-1), "dead", "broken"),
    "retry beyond integers": Case(job(retry=10**30), "retry", "broken"),
    "retry a float": Case(job(retry=1e308), "retry", "broken"),
    "retry a string": Case(job(retry="never"), "retry", "broken"),
    "retry a list": Case(job(retry=[]), "retry", "broken"),
    "retry missing": Case(job(retry=None), "retry", "broken"),
    "retry_for a string": Case(job(retry_for="soon"), "retry", "broken"),
    "retry_for beyond floats": Case(job(retry_for=10**400), "retry", "broken"),
    "retry_for negative": Case(job(retry_for=-5), "dead", "broken"),
    "retry_queue a number": Case(job(retry_queue=5), "retry", "broken"),
    "backtrace a string": Case(job(backtrace="all"), "retry", "broken"),
    "backtrace negative": Case(job(backtrace=-1), "retry", "broken"),
    "backtrace beyond integers": Case(job(backtrace=10**30), "retry", "broken"),
    "dead a string": Case(job(retry=0, dead="no"), "dead", "broken"),
    # fields that break pages of Ruby's web UI
    "tags a string": Case(job(tags="vip"), "retry", "broken"),
    "tags of numbers": Case(job(tags=[1, None]), "retry", "broken"),
    "jid an integer": Case(job(jid=12345), "retry", "broken"),
    "jid empty": Case(job(jid=""), "retry", "broken"),
    "created_at a string": Case(job(created_at="2026-01-01"), "retry", "broken"),
    "created_at beyond time": Case(job(created_at=10**30), "retry", "broken"),
    "created_at negative": Case(job(created_at=-1), "retry", "broken"),
    "created_at in milliseconds": Case(job(created_at=1795168815271), "retry", "broken"),
    "enqueued_at a string": Case(job(enqueued_at="now"), "retry", "broken"),
    "failed_at a string": Case(job(failed_at="now", retry_count=1), "retry", "broken"),
    "retry_count a string": Case(job(retry_count="3", failed_at=1.5), "retry", "broken"),
    "retry_count a float": Case(job(retry_count=1.5, failed_at=1.5), "retry", "broken"),
    "retry_count beyond integers": Case(job(retry_count=10**30, failed_at=1.5, retry=10**31), "retry", "broken"),
    "retry_count without failed_at": Case(job(retry_count=3), "retry", "broken"),
    "error_backtrace a list": Case(job(error_backtrace=["a", "b"]), "retry", "broken"),
    "error_backtrace nonsense": Case(job(error_backtrace="!"), "retry", "broken"),
    "queue a number": Case(job(queue=5), "retry", "broken"),
    "queue missing": Case(job(queue=None), "retry", "broken"),
    "encrypted, but empty": Case(job(args=[], encrypt=True), "retry", "broken"),
    "wrapped a number": Case(job(wrapped=5), "retry", "broken"),
    "display_class a number": Case(job(display_class=5), "retry", "broken"),
    "malformed everywhere, unknown class": Case(
        job(**{"class": "Never::Heard"}, tags="x", created_at="x", jid=1, retry_count="x", error_backtrace=[]),
        "schedule",
        "unknown_class",
    ),
    "malformed everywhere, no class": Case(
        job(**{"class": None}, tags="x", created_at="x", jid=1, retry_count="x", error_backtrace=[], failed_at=[]),
        "dead",
        "no class",
    ),
}


@dataclass(frozen=True)
class Aftermath:
    """What there is once a cluster has had all of CASES.

    found: case → the sets in which it lies, and the entries there.  pages: path → status and error.
    crashed: services that a bad payload took down.
    """

    found: dict[str, list[tuple[str, dict[str, Any]]]]
    pages: dict[str, list[Any]]
    crashed: list[Any]


def marked(name: str, raw: bytes) -> bytes:
    """Return a case's bytes with its name in them, where they are an object or look like one."""
    if not raw.startswith(b"{"):
        return raw
    comma = b"" if raw == b"{}" else b","
    return b'{"case":' + json.dumps(name).encode() + comma + raw[1:]


def case_of(entry: dict[str, Any]) -> str:
    """Return the case that became an entry: by its mark, or by the bytes that were wrapped."""
    if "case" in entry:
        return str(entry["case"])
    kept = unwrap(entry)
    return next(name for name, case in CASES.items() if marked(name, case.raw) == kept)


@pytest.fixture(scope="module")
def aftermath(redis_server, ruby, ruby_web):
    """Run a cluster over all cases at once; THREADS threads, so that each would be missed."""
    store = redis_server.store()
    store.call("FLUSHALL")
    store.call("SADD", "queues", "default")
    store.call("LPUSH", "queue:default", *(marked(name, case.raw) for name, case in CASES.items()))
    app = ("-r", "tests.apps.interop", "--redis", redis_server.url)
    with cluster("default", "-c", str(THREADS), *app) as running, using_setup(Setup(store=store)):
        wait_until(lambda: not store.call("LLEN", "queue:default"), "the queue to be empty")
        wait_until(lambda: not store.call("KEYS", "kiq:inflight:*"), "all outcomes to be written")
        hold.perform_bulk([[str(number)] for number in range(THREADS)])
        wait_until(lambda: store.call("LLEN", "began") == THREADS, "as many jobs to run at once as there are threads")
        found: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for name in SETS:
            for raw in store.call("ZRANGE", name, 0, -1):
                entry = decode(raw)
                found.setdefault(case_of(entry), []).append((name, entry))
        pages = ruby_web(*PAGES, *ruby(DETAIL_PAGES))
        yield Aftermath(found, pages, running.seen("service_crashed"))


@pytest.mark.parametrize("name", CASES)
def test_bad_input_ends_in_one_set_with_its_reason(name, aftermath):
    ((ends_in, entry),) = aftermath.found[name]

    assert ends_in == CASES[name].ends_in
    assert CASES[name].reason in entry.get("error_message", "") + entry.get("deferred_by", "")


@pytest.mark.parametrize(
    "name", [name for name in CASES if re.match("(tags|jid|created_at|enqueued_at|error_backtrace) an? ", name)]
)
def test_a_value_that_breaks_pages_is_kept_aside(name, aftermath):
    ((_, entry),) = aftermath.found[name]
    key = name.split()[0]

    assert entry[MALFORMED][key] == json.loads(CASES[name].raw)[key]


def test_every_page_of_ruby_shows_what_became_of_bad_input(aftermath):
    assert {page: answer for page, answer in aftermath.pages.items() if answer != [200, None]} == {}
    assert len(aftermath.pages) == len(PAGES) + len(CASES)


def test_no_thread_dies_of_bad_input(aftermath):
    assert aftermath.crashed == []  # and the fixture has seen as many jobs run at once as there are threads


def test_the_busy_page_shows_a_running_job_whatever_is_in_its_payload(store, run_cluster, ruby, ruby_web):
    strange = [
        {"tags": "vip"},
        {"jid": 7, "created_at": "now"},
        {"args": [], "encrypt": True},
        {"args": None, "tags": [1], "error_backtrace": []},
    ]
    store.call("LPUSH", "queue:default", *(json.dumps({"class": "hold", "args": [1], **each}) for each in strange))
    run_cluster("default", "-c", str(len(strange)), app="tests.apps.interop")
    wait_until(lambda: store.call("LLEN", "began") == len(strange), "all jobs to run")
    wait_until(lambda: ruby("Sidekiq::ProcessSet.new.size"), "the process to register")

    ruby("Sidekiq::ProcessSet.new.first.dump_threads")  # any signal is followed by a beat

    wait_until(lambda: ruby("Sidekiq::WorkSet.new.count") == len(strange), "all jobs to show", seconds=5)
    assert ruby_web("/busy", "/") == {"/busy": [200, None], "/": [200, None]}


def test_bytes_that_ruby_retries_are_looked_at_anew(store, run_cluster, ruby):
    store.call("LPUSH", "queue:default", b"certainly not JSON")
    run_cluster("default", app="tests.apps.interop")
    wait_until(lambda: store.call("ZCARD", "dead"), "the bytes to be buried")
    first = ruby("Sidekiq::DeadSet.new.first.jid")

    ruby("Sidekiq::DeadSet.new.first.retry")

    wait_until(lambda: ruby("Sidekiq::DeadSet.new.map(&:jid)") not in ([], [first]), "the bytes to be buried again")
    assert unwrap(decode(store.call("ZRANGE", "dead", 0, -1)[0])) == b"certainly not JSON"
    assert store.call("ZCARD", "dead") == 1
