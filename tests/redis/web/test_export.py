"""Exports: JSON lines of what matches or was selected, written while Redis is read, and told in the log."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web import Role
from tests.kit import RedisServer
from tests.redis.web.site import CountingStore, Site
from tests.stored_jobs import NOW, add_entries, fill_queue, fill_set, job

KEYS = re.compile(r'name="key" value="([^"]+)"')


@pytest.fixture
def site(store: Store, setup: Setup) -> Site:
    return Site(store)


@pytest.fixture
def counting(store: Store, setup: Setup, redis_server: RedisServer) -> Iterator[CountingStore]:
    made = CountingStore(redis_server.url)
    yield made
    made.close()


def test_all_that_match_are_lines_of_json_without_hidden_arguments(site: Site) -> None:
    add_entries(site.store, "dead", *[(NOW + at, job(at, args=[at, "secret"])) for at in range(500)])
    add_entries(site.store, "dead", (NOW, job(900, **{"class": "Other"})))

    answer = site.get("/dead/export?class=Job&sort=oldest")

    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.mimetype == "application/x-ndjson"
    assert "attachment" in answer.headers["Content-Disposition"]
    assert [line["jid"] for line in lines] == [f"j{at}" for at in range(500)]
    assert lines[7]["arguments"] == "7, [FILTERED]"
    assert lines[7]["at"] == "2026-11-20T09:59:07Z"
    ((name, told),) = site.events
    assert (name, told["user"], told["page"], told["target"]) == (
        "web_export",
        "ada",
        "/dead/export",
        "all that match class=Job",
    )
    assert (told["count"], told["result"]) == (500, "done")


def test_a_time_that_is_none_exports_nothing(site: Site) -> None:
    fill_set(site.store, "dead", range(3))

    assert site.get("/dead/export?from=nonsense").status_code == 400


def test_selected_ones_are_lines_too_for_whoever_may_look(store: Store, setup: Setup) -> None:
    fill_set(store, "retry", range(5))
    site = Site(store, Role.VIEW)
    keys = KEYS.findall(Site(store).get("/retries").text)[1:3]

    answer = site.post("/retries/export", {"key": keys})

    assert sorted(json.loads(line)["jid"] for line in answer.text.splitlines()) == ["j1", "j2"]
    assert [(name, told["target"], told["count"]) for name, told in site.events] == [("web_export", "selected", 2)]


def test_it_is_written_while_the_set_is_read(counting: CountingStore) -> None:
    fill_set(counting, "dead", range(5_000))
    site = Site(counting)
    answer = site.client.get("/dead/export", environ_base={"REMOTE_ADDR": "127.0.0.1"}, buffered=False)
    lines = iter(answer.response)
    next(lines)
    early = counting.round_trips
    rest = sum(1 for _ in lines)

    assert rest == 4_999
    assert counting.round_trips > early + 10


def test_one_that_is_broken_off_says_so_in_its_last_line_and_in_the_log(site: Site) -> None:
    fill_set(site.store, "dead", range(1_000))
    answer = site.client.get("/dead/export", environ_base={"REMOTE_ADDR": "127.0.0.1"}, buffered=False)
    lines = iter(answer.response)
    first = next(lines)
    site.store.call("SET", "dead", "no set")

    rest = list(lines)

    assert json.loads(first)["jid"] == "j999"
    assert "not complete" in json.loads(rest[-1])["error"]
    assert site.events[-1][1]["count"] == len(rest)
    assert site.events[-1][1]["result"].startswith("not complete")


def test_one_whose_reader_leaves_is_logged_with_what_was_sent(site: Site) -> None:
    fill_set(site.store, "dead", range(1_000))
    answer = site.client.get("/dead/export", environ_base={"REMOTE_ADDR": "127.0.0.1"}, buffered=False)
    next(iter(answer.response))

    answer.close()

    assert [(told["count"], told["result"]) for _, told in site.events] == [(1, "not complete")]


def test_jobs_of_a_queue_are_exported_too(site: Site) -> None:
    fill_queue(site.store, range(1_200), "mailers")
    keys = KEYS.findall(site.get("/queues/mailers").text)[3:5]

    all_lines = site.get("/queues/mailers/export?jid=j1100").text.splitlines()
    selected = site.post("/queues/mailers/export", {"key": keys}).text.splitlines()

    assert [json.loads(line)["jid"] for line in all_lines] == ["j1100"]
    assert [json.loads(line)["jid"] for line in selected] == ["j3", "j4"]
    assert [told["target"] for _, told in site.events] == ["all that match jid=j1100", "selected"]
