"""Every page of Ruby's web UI shows what our clusters and clients wrote; PAGES has a row for every route of 6.4.1."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass

import pytest

from kiqcluster import Client
from tests.apps.interop import Echo, fragile, hold
from tests.apps.names import NAMES
from tests.interop import test_web_actions, test_web_processes  # their tests say what they press
from tests.interop.browser import Browser
from tests.interop.stage import PRESSED
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = pytest.mark.ruby

MANY_JOBS = 60  # jobs in a list: three pages of 25
FEW_JOBS = 6
FAR_FUTURE = 4_000_000_000  # epoch seconds

# route → the paths by which it is tried; {retries}, {scheduled} and {morgue} stand for each entry of those sets
PAGES = {
    "HEAD /": ["/"],
    "GET /": ["/", "/?days=1", "/?days=7", "/?days=90", "/?days=180"],
    "GET /busy": ["/busy"],
    "GET /queues": ["/queues"],
    "GET /queues/:name": [
        "/queues/waiting",
        "/queues/waiting?page=2",
        "/queues/waiting?page=3&direction=asc",
        "/queues/waiting?count=100",
        "/queues/strange",
        "/queues/default",
        "/queues/never_heard_of",
    ],
    "GET /retries": ["/retries", "/retries?page=2&count=4", "/retries?substr=vip"],
    "GET /retries/:key": ["{retries}"],
    "GET /scheduled": ["/scheduled", "/scheduled?page=3", "/scheduled?substr=*Echo*"],
    "GET /scheduled/:key": ["{scheduled}"],
    "GET /morgue": ["/morgue", "/morgue?page=1&count=3", "/morgue?substr=["],
    "GET /morgue/:key": ["{morgue}"],
    "GET /dashboard/stats": [],  # leads to /stats: test_the_old_address_of_the_stats_leads_to_the_new_one
    "GET /stats": ["/stats"],
    "GET /stats/queues": ["/stats/queues"],
}
KEYS = """
sets = {"retries" => Sidekiq::RetrySet, "scheduled" => Sidekiq::ScheduledSet, "morgue" => Sidekiq::DeadSet}
sets.transform_values { |set| set.new.map { |entry| "#{entry.score}-#{entry.jid}" } }
"""
TO_FAR = "Sidekiq::RetrySet.new.each { |entry| entry.reschedule(at) }"


@dataclass(frozen=True)
class Written:
    """jids by what they are for.  keys: page → how its entries are addressed.  busy: the page while jobs ran."""

    jids: dict[str, str]
    keys: dict[str, list[str]]
    busy: str


@pytest.fixture(scope="module")
def written(shared_stage, ruby, web_program):
    """Have our clients and cluster write something of every kind, and leave it there for the module."""
    store = shared_stage.store
    Echo.set(queue="waiting").perform_bulk([[number] for number in range(MANY_JOBS)])
    Client().push_bulk({"class": Echo, "args": [[number] for number in range(MANY_JOBS)], "at": FAR_FUTURE})
    jids = {
        "strange": Client().push(
            {"class": Echo, "args": ALL_KINDS, "queue": "strange", "tags": ["é", "<b>"], "custom": {"a": 1}}
        ),
        "later": Echo.perform_at(FAR_FUTURE, *ALL_KINDS),
        "failing": fragile.set(tags=["vip"]).perform_async(*ALL_KINDS),
        "dead": fragile.set(retry=0).perform_async(*ALL_KINDS),
    }
    fragile.perform_bulk([[number] for number in range(FEW_JOBS)])
    fragile.set(retry=0).perform_bulk([[number] for number in range(FEW_JOBS)])
    Echo.perform_bulk([[number] for number in range(FEW_JOBS)])
    store.call("LPUSH", "queue:default", b"certainly not JSON", b"[1]", b'{"class":"Never::Heard","args":[1]}')
    wait_until(lambda: store.call("ZCARD", "retry") == 1 + FEW_JOBS, "the first failures")
    ruby("Sidekiq::RetrySet.new.find_job(jid).reschedule(1)", jid=jids["failing"])
    wait_until(
        lambda: shared_stage.entries("retry").get(jids["failing"], {}).get("retry_count") == 1, "a second failure"
    )
    ruby(TO_FAR, at=FAR_FUTURE)
    wait_until(lambda: store.call("ZCARD", "dead") == 3 + FEW_JOBS, "everything that is to be dead")
    jids["running"] = hold.set(tags=["vip"]).perform_async(*ALL_KINDS)
    wait_until(lambda: store.call("LLEN", "began"), "a job to run")
    ruby("Sidekiq::ProcessSet.new.each(&:dump_threads)")  # any signal is followed by a beat
    busy = ""

    def is_shown() -> bool:
        nonlocal busy
        busy = Browser(web_program.ask).see("/busy").text
        return jids["running"] in busy

    wait_until(is_shown, "the running job to show")
    store.call("RPUSH", "release", "now")
    return Written(jids, ruby(KEYS), busy)


def test_every_route_of_the_gem_is_tried(browser):
    assert test_web_actions.__name__ != test_web_processes.__name__
    assert set(browser.routes) == {*PAGES, *PRESSED}


@pytest.mark.parametrize("route", PAGES)
def test_every_page_is_shown(route, written, browser):
    paths = [
        path
        for template in PAGES[route]
        for path in (
            [f"/{template[1:-1]}/{key}" for key in written.keys[template[1:-1]]] if template[0] == "{" else [template]
        )
    ]

    answers = {path: browser.get(path, method=route.split()[0]).status for path in paths}

    assert set(answers.values()) <= {200}, answers
    assert answers or route == "GET /dashboard/stats"


def test_the_dashboard_counts_our_jobs(written, browser):
    page = browser.see("/")

    counts = dict(re.findall(r'id="txt(\w+)" class="count">([\d,]+)<', page.text))
    assert (int(counts["Processed"]), int(counts["Failed"])) >= (3 * FEW_JOBS + 3, 2 * FEW_JOBS + 3)
    assert (counts["Retries"], counts["Scheduled"], counts["Dead"]) == (
        str(1 + FEW_JOBS),
        str(MANY_JOBS + 2),
        str(3 + FEW_JOBS),
    )
    assert counts["Enqueued"] == str(MANY_JOBS + 1)


def test_the_dashboard_draws_our_history(written, browser):
    (processed,) = re.findall(r'data-processed="([^"]*)"', browser.see("/?days=7").text)

    history = json.loads(processed.replace("&quot;", '"'))
    assert len(history) == 7
    assert sum(history.values()) >= 3 * FEW_JOBS  # midnight may pass meanwhile


def test_live_polling_gets_numbers(written, browser):
    stats, queues = (json.loads(browser.see(path).text) for path in ("/stats", "/stats/queues"))

    assert {name: type(value) for name, value in stats["sidekiq"].items()} == {
        **dict.fromkeys(("processed", "failed", "busy", "processes", "enqueued", "scheduled", "retries", "dead"), int),
        "default_latency": int,  # 0: the queue is empty
    }
    assert (stats["sidekiq"]["processes"], stats["sidekiq"]["retries"]) == (2, 1 + FEW_JOBS)
    assert queues == {"waiting": MANY_JOBS, "strange": 1, "default": 0}


def test_the_old_address_of_the_stats_leads_to_the_new_one(written, browser):
    page = browser.get("/dashboard/stats")

    assert (page.status, page.headers["Location"]) == (302, "http://example.org/stats")


def test_the_busy_page_shows_our_processes_and_jobs(written, shared_stage):
    for pid in shared_stage.cluster.pids().values():
        assert f":{pid}" in written.busy
    assert "kiqcluster" in written.busy
    assert written.jids["running"] in written.busy
    assert "hold" in written.busy
    assert "vip" in written.busy


def test_a_queue_is_shown_page_by_page_from_either_end(written, browser):
    newest, oldest = browser.see("/queues/waiting"), browser.see("/queues/waiting?direction=asc")
    last = browser.see("/queues/waiting?page=3")

    assert [row.split()[:3] for row in newest.rows[:2]] == [["60", "Echo", "59"], ["59", "Echo", "58"]]
    assert [row.split()[:3] for row in oldest.rows[:2]] == [["1", "Echo", "0"], ["2", "Echo", "1"]]
    assert (len(newest.rows), len(last.rows)) == (25, 10)
    assert "/queues/waiting?page=2" in newest.links


def test_a_job_of_any_arguments_is_shown_in_its_queue(written, browser):
    page = browser.see("/queues/strange")

    assert written.jids["strange"] in page.text
    assert "<b>" not in "".join(page.rows[0].split("<b>")[1:])  # the tag is shown as text
    assert "漢字 🚀" in page.text
    assert "1180591620717411303424" in page.text  # 2**70


def test_a_retry_shows_its_error_and_where_it_happened(written, browser):
    (key,) = (key for key in written.keys["retries"] if key.endswith(written.jids["failing"]))

    page = browser.see(f"/retries/{key}")

    assert "ValueError" in page.text
    assert "broken in Python ✗" in page.text
    assert "interop.py" in page.text
    assert "in fragile" in page.text
    assert "\u00a0\u00a0\u00a0\u00a0raise ValueError(" in page.text
    assert "vip" in page.text


def test_a_dead_entry_that_was_no_job_shows_its_bytes_and_why(written, browser):
    texts = [browser.see(f"/morgue/{key}").text for key in written.keys["morgue"]]

    (page,) = (text for text in texts if "certainly not JSON" in text)
    assert "MalformedPayload" in page


def test_lists_lead_to_their_entries(written, browser):
    for name in ("retries", "scheduled", "morgue"):
        page = browser.see(f"/{name}?count=100")

        assert set(page.choices) == set(written.keys[name])
        assert {f"/{name}/{key}" for key in page.choices} <= set(page.links)


def test_beyond_the_last_page_is_an_empty_one(written, browser):
    for path in ("/retries?page=99", "/scheduled?page=99", "/morgue?page=99", "/queues/waiting?page=99"):
        assert browser.see(path).choices == []


@pytest.mark.parametrize("name", ["retries", "scheduled", "morgue"])
@pytest.mark.parametrize("key", ["1.5-nobody", "nonsense", "-", "1e400-x", "0"])
def test_an_entry_that_is_gone_leads_back_to_its_list(name, key, written, browser):
    page = browser.get(f"/{name}/{key}")

    assert (page.status, page.headers["Location"]) == (302, f"http://example.org/{name}")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/queues/a%20b", 404),
        ("/queues/a$b", 404),
        ("/queues/%C3%A9", 404),
        ("/?days=0", 401),
        ("/?days=181", 401),
        ("/nowhere", 404),
    ],
)
def test_an_address_that_means_nothing_is_refused(path, status, written, browser):
    assert browser.get(path).status == status


@pytest.mark.parametrize(
    ("language", "word"), [("de", "Warteschlangen"), ("ja", "キュー"), ("pt-BR,pt;q=0.8", "Filas")]
)
def test_pages_come_in_the_readers_language(language, word, written, browser):
    page = browser.get("/queues", HTTP_ACCEPT_LANGUAGE=language)

    assert (page.status, page.headers["Content-Language"]) == (200, language.split(",")[0].lower())
    assert word in page.text


@pytest.mark.parametrize("language", ["ar", "he", "fa", "ur"])
def test_pages_that_are_read_from_the_right_are_shown(language, written, browser):
    for path in ("/", "/busy", "/queues", "/queues/strange", "/retries", "/scheduled", "/morgue"):
        page = browser.get(path, HTTP_ACCEPT_LANGUAGE=language)

        assert page.status == 200
        assert 'dir="rtl"' in page.text


def test_a_queue_of_ours_has_a_latency(written, browser):
    (row,) = (row for row in browser.see("/queues").rows if row.startswith("waiting"))

    assert row.split()[1] == str(MANY_JOBS)
    assert 0 <= float(row.split()[2]) < 60 + time.monotonic()


def test_pages_show_queues_classes_and_tags_of_every_name(store, ruby_web):
    client = Client(store)
    for name in NAMES:
        client.push({"class": name, "args": [name], "tags": [name], "queue": name})
        client.push({"class": name, "args": [name], "tags": [name], "queue": name, "at": FAR_FUTURE})
    pages = ["/", "/busy", "/queues", "/stats", "/stats/queues", "/scheduled"]

    assert ruby_web(*pages) == {page: [200, None] for page in pages}
