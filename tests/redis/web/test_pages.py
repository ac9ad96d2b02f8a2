"""The pages: what they show of a Redis, their live parts, headers, languages, and what they do while Redis is away."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import replace
from html import unescape

import pytest

from kiqcluster.api import DeadSet, StrikeSet
from kiqcluster.api.bulk import Selection, ask
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web.i18n import LANGUAGES
from kiqcluster.web.routing import Table, table
from tests.fake_supervisor import publish
from tests.kit import ManualClock, RedisServer, wait_until
from tests.redis.web import fleet
from tests.redis.web.features import add_features
from tests.redis.web.site import LOCAL, CountingStore, Site
from tests.stored_jobs import NOW, add_entries, entry_numbers, fill_queue, fill_set, job, pop_jobs, queued_numbers

MAX_ROUND_TRIPS = 6
LIVE = re.compile(r'id="(\w+)" data-live hx-get="([^"]*)"')


@pytest.fixture
def full(store: Store, setup: Setup) -> Store:
    """A database with something on each page."""
    fill_queue(store, range(60), "default")
    fill_queue(store, range(3), "mailers")
    fill_set(store, "dead", range(60))
    fill_set(store, "retry", range(5))
    fill_set(store, "schedule", range(5))
    fill_set(store, store.keys.dropped, range(5))
    ask(store, DeadSet, "retry", Selection())
    publish(store, "app-1:4242:ab", queues=["default"], busy=2)
    publish(store, "ruby-1:17:cd", queues=["mailers"], labels=[], version=None)
    add_features(store)
    fleet.publish_cluster(store, "app-2:100:aa", "app-2:101:bb", "app-2:102:cc", quiet_by="ada", lease_remaining=60.0)
    fleet.running(store, "app-2:101:bb", *range(60))
    fleet.running(store, "ruby-1:17:cd", 61, queue="mailers")
    fleet.tell_stacks(store, "app-2:101:bb", "--- kiq.processor/0: Job j1\n  File x\n--- MainThread\n  File y")
    store.call("SET", store.keys.progress("j1"), b'{"done":1,"total":3}')
    StrikeSet(store=store).add("defer", 600, name="Job", arguments={"0": 7})
    return store


@pytest.fixture
def counting(full: Store, redis_server: RedisServer) -> Iterator[CountingStore]:
    made = CountingStore(redis_server.url)
    yield made
    made.close()


class TestAllPages:
    def test_each_is_reached_by_links_and_asks_redis_at_most_six_times(self, counting: CountingStore) -> None:
        site = Site(counting)
        site.crawl()  # by now Redis knows the scripts
        adapter = site.app.routes.url_map.bind("localhost")

        trips: dict[str, int] = {}
        for path in site.crawl():
            counting.round_trips = 0
            answer = site.get(path)
            assert answer.status_code == 200
            assert answer.data
            name = adapter.match(path.partition("?")[0], method="GET")[0]
            trips[name] = max(trips.get(name, 0), counting.round_trips)

        assert trips.keys() == table().pages.keys()
        assert {name: count for name, count in trips.items() if count > MAX_ROUND_TRIPS} == {}
        assert min(trips.values()) > 0

    def test_a_live_part_is_the_same_as_in_its_page(self, full: Store) -> None:
        site = Site(full, clock=Still())
        parts = 0
        for path, answer in site.crawl().items():
            for block, address in LIVE.findall(answer.text):
                fragment = site.fragment(unescape(address), block)
                assert fragment.status_code == 200, path
                assert "<html" not in fragment.text
                first = re.sub(r"value=\"[^\"]{40,}\"", "", fragment.text.strip()[:200])
                assert first in re.sub(r"value=\"[^\"]{40,}\"", "", answer.text), path
                parts += 1

        assert parts >= 4

    def test_an_unknown_live_part_is_refused(self, full: Store) -> None:
        assert Site(full).fragment("/", "nonsense").status_code == 400

    def test_every_answer_has_the_headers_that_protect_it(self, full: Store) -> None:
        site = Site(full)
        answers = [
            *site.crawl().values(),
            site.get("/nowhere"),
            site.get("/queues/default/pause"),
            site.post("/dead/retry"),
        ]
        answers += [site.fragment("/", "figures"), site.get(site.app_asset("kiqcluster.js"))]

        for answer in answers:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "same-origin"
            assert answer.headers["Permissions-Policy"]
            assert "no-store" in answer.headers["Cache-Control"] or answer.request.path.startswith("/static/")

    def test_the_cookie_is_out_of_the_reach_of_scripts_and_other_sites(self, full: Store) -> None:
        cookie = Site(full).get("/").headers["Set-Cookie"]

        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Secure" in Site(full).get("/", base_url="https://localhost").headers["Set-Cookie"]

    def test_each_is_shown_in_each_language(self, full: Store) -> None:
        site = Site(full)
        paths = list(site.crawl(often=()))
        assert len(paths) == len(table().pages)
        for language in LANGUAGES:
            for path in paths:
                answer = site.get(path, {"Accept-Language": f"{language}-XX,en;q=0.1"})
                assert answer.status_code == 200
                assert f'<html lang="{language}"' in answer.text or answer.mimetype != "text/html"

    def test_a_browser_finds_the_icon_that_it_asks_for_beside_files(self, full: Store) -> None:
        answer = Site(full).get("/favicon.ico")

        assert (answer.status_code, answer.mimetype) == (200, "image/svg+xml")
        assert "immutable" not in answer.headers["Cache-Control"]

    def test_a_head_request_has_no_body(self, full: Store) -> None:
        answer = Site(full).client.head("/queues", environ_base={"REMOTE_ADDR": "127.0.0.1"})

        assert (answer.status_code, answer.data) == (200, b"")

    def test_paths_begin_where_the_pages_are_mounted(self, full: Store) -> None:
        site = Site(full)

        text = site.get("/queues", base_url="http://localhost/ops/jobs").text

        addresses = re.findall(r'(?:href|src|action|hx-get)="([^"]+)"', text)
        assert [each for each in addresses if not each.startswith(("/ops/jobs/", "#"))] == []

    @pytest.mark.parametrize(
        ("told", "path"),
        [("by the settings", "/queues"), ("by the settings", "/ops/jobs/queues"), ("by a trusted proxy", "/queues")],
        ids=["taken away", "passed on", "told by a trusted proxy"],
    )
    def test_paths_begin_where_a_proxy_has_the_pages(self, full: Store, told: str, path: str) -> None:
        settings = {"root_path": "/ops/jobs"} if told == "by the settings" else {"trusted_proxies": ["127.0.0.0/8"]}
        headers = {} if told == "by the settings" else {"X-Forwarded-Prefix": "/ops/jobs/"}
        site = Site(full, settings=settings)

        answer = site.get(path, headers)

        addresses = re.findall(r'(?:href|src|action|hx-get)="([^"]+)"', answer.text)
        assert [each for each in addresses if not each.startswith(("/ops/jobs/", "#"))] == []
        assert "Path=/ops/jobs;" in f"{answer.headers['Set-Cookie']};"
        style = next(each for each in addresses if each.endswith(".css"))
        assert site.get(style.removeprefix("/ops/jobs"), headers).status_code == 200
        if told == "by the settings":
            assert site.get(style).status_code == 200

    @pytest.mark.parametrize("prefix", ["/queues", "/ops"])
    def test_a_proxy_that_tells_a_prefix_has_taken_it_away(self, full: Store, prefix: str) -> None:
        site = Site(full, settings={"trusted_proxies": ["127.0.0.0/8"]})

        answer = site.get("/queues", {"X-Forwarded-Prefix": prefix})

        assert answer.status_code == 200
        assert f'href="{prefix}/queues/default"' in answer.text
        assert site.get("/ops/queues", {"X-Forwarded-Prefix": prefix}).status_code == 404

    @pytest.mark.parametrize("root", ["/jobs", "/queues/", "/static/ops"])
    def test_a_root_path_that_begins_like_a_page_is_refused(self, store: Store, root: str) -> None:
        with pytest.raises(UsageError, match=f"choose another path, such as /ops{root.rstrip('/')}"):
            Site(store, settings={"root_path": root})

    @pytest.mark.parametrize(
        ("trusted", "prefix"),
        [([], "/ops"), (["10.0.0.0/8"], "/ops"), (["127.0.0.1"], "//evil.example"), (["127.0.0.1"], 'x" onclick="y')],
    )
    def test_a_prefix_of_somebody_else_is_not_believed(self, full: Store, trusted: list[str], prefix: str) -> None:
        text = Site(full, settings={"trusted_proxies": trusted}).get("/queues", {"X-Forwarded-Prefix": prefix}).text

        assert 'href="/queues' in text
        assert "evil" not in text
        assert "onclick" not in text

    def test_the_first_load_is_less_than_150_kb(self, full: Store) -> None:
        site = Site(full)
        page = site.get("/", {"Accept-Encoding": "gzip"})
        size = len(page.data)
        for path in set(re.findall(r'(?:href|src)="(/static/[^"]+)"', gzip.decompress(page.data).decode())):
            size += len(site.get(path, {"Accept-Encoding": "gzip"}).data)

        assert size < 150_000


class TestCost:
    def test_costly_pages_are_given_as_fast_as_their_tokens_come_back(self, full: Store, setup: Setup) -> None:
        clock = Still()
        site = Site(full, clock=clock, is_limited=True)
        routes = table()
        costly = {**routes.pages, "queues": replace(routes.pages["queues"], cost=10.0)}
        site.app.routes = Table(costly, routes.actions)

        codes = [site.get("/queues").status_code for _ in range(4)]
        refused = site.get("/queues")
        clock.time += 10

        assert codes == [200, 200, 200, 429]
        assert int(refused.headers["Retry-After"]) == 11
        assert site.get("/").status_code == 200
        assert site.get("/queues").status_code == 200


class Still(ManualClock):
    """Its wall clock stands still."""

    def now(self) -> float:
        return NOW


class TestOutage:
    def test_pages_say_that_redis_is_away_and_come_back_by_themselves(
        self, setup: Setup, own_server: RedisServer
    ) -> None:
        site = Site(own_server.store())
        assert site.get("/queues").status_code == 200

        own_server.kill()
        page, fragment = site.get("/queues"), site.fragment("/queues", "live")
        refused = site.client.post("/dead/retry", environ_base=LOCAL)
        own_server.start()

        assert page.status_code == fragment.status_code == 503
        assert page.headers["Retry-After"]
        assert 'http-equiv="refresh"' in page.text
        assert "<html" not in fragment.text
        assert refused.status_code == 403
        wait_until(lambda: site.get("/queues").status_code == 200, "the pages to be back")

    def test_a_page_that_fails_says_so(self, full: Store) -> None:
        def fail(_: object) -> None:
            raise RuntimeError("<b>secret")

        answer = Site(full, authorize=fail).get("/")

        assert answer.status_code == 500
        assert "secret" not in answer.text


class TestDashboard:
    def test_it_shows_what_goes_on(self, full: Store) -> None:
        full.call("SET", "stat:processed", 1_204_331)

        text = Site(full).get("/").text

        assert "1,204,331" in text
        assert ">63<" in text  # jobs that wait
        assert "mailers" in text

    def test_it_measures_the_throughput_between_two_looks(self, full: Store) -> None:
        clock = Still()
        site = Site(full, clock=clock)
        site.get("/")
        full.call("INCRBY", "stat:processed", 500)
        clock.time += 10

        text = site.fragment("/", "figures").text

        assert re.search(r"<dd>5\d\.\d</dd>", text) or "<dd>50.0</dd>" in text


class TestQueues:
    def test_they_are_found_by_a_part_of_their_name_and_sorted(self, full: Store) -> None:
        site = Site(full)

        assert "default" not in site.get("/queues?q=mail").text.partition("<main")[2]
        by_size = site.get("/queues?sort=size").text
        assert by_size.index(">default<") < by_size.index(">mailers<")

    def test_the_next_page_begins_after_the_last_job_while_others_fetch(self, full: Store) -> None:
        site = Site(full)
        first = site.get("/queues/default").text
        after = re.search(r'href="(/queues/default\?after=[^"]+)"', first)
        assert after is not None

        pop_jobs(full, 10)
        second = site.get(unescape(after[1])).text

        assert shown(first) == list(range(25))
        assert shown(second) == list(range(25, 50))

    def test_a_job_is_deleted_although_others_were_fetched_meanwhile(self, full: Store) -> None:
        site = Site(full)
        key = re.findall(r'name="key" value="([^"]+)"', site.get("/queues/default").text)[20]
        pop_jobs(full, 15)

        answer = site.post("/queues/default/delete", {"key": key})

        assert answer.status_code == 303
        assert 20 not in queued_numbers(full)
        assert len(queued_numbers(full)) == 44

    def test_a_job_that_was_fetched_is_not_deleted_and_this_is_said(self, full: Store) -> None:
        site = Site(full)
        key = re.findall(r'name="key" value="([^"]+)"', site.get("/queues/default").text)[0]
        pop_jobs(full, 1)

        answer = site.post("/queues/default/delete", {"key": key})

        assert len(queued_numbers(full)) == 59
        assert "message-failed" in site.get(answer.headers["Location"]).text
        assert site.events[0][1]["result"] == "failed"

    def test_clearing_asks_with_the_count(self, full: Store) -> None:
        site = Site(full)

        asked = site.post("/queues/default/clear", {"confirmed": None})

        assert "Delete 60 jobs of the queue default for good?" in asked.text
        assert len(queued_numbers(full)) == 60

    def test_clearing_deletes_all_jobs_and_says_how_many(self, full: Store) -> None:
        site = Site(full)

        answer = site.post("/queues/default/clear")

        assert queued_numbers(full) == []
        assert "60 jobs were deleted." in site.get(answer.headers["Location"]).text
        assert site.events[0][1]["target"].startswith("default (60) ")


class TestSets:
    def test_selected_entries_are_retried_and_the_next_page_says_how_many(self, full: Store) -> None:
        site = Site(full)
        keys = re.findall(r'name="key" value="([^"]+)"', site.get("/dead").text)[:3]

        answer = site.post("/dead/retry", {"key": keys})

        assert len(entry_numbers(full, "dead")) == 57
        text = site.get(answer.headers["Location"]).text
        assert "3 jobs were put back into their queues." in text
        assert "message-done" not in site.get("/dead").text  # once

    def test_entries_that_are_gone_are_said_to_be(self, full: Store) -> None:
        site = Site(full)
        keys = re.findall(r'name="key" value="([^"]+)"', site.get("/dead").text)[:3]
        full.call("ZREMRANGEBYRANK", "dead", -2, -1)

        answer = site.post("/dead/delete", {"key": keys})

        text = site.get(answer.headers["Location"]).text
        assert "1 job was deleted. 2 others were gone." in text

    def test_entries_of_one_score_are_told_apart(self, full: Store) -> None:
        full.call("DEL", "dead")
        add_entries(full, "dead", *[(NOW, job(number)) for number in range(5)])
        site = Site(full)
        keys = re.findall(r'name="key" value="([^"]+)"', site.get("/dead").text)

        site.post("/dead/delete", {"key": [keys[0]]})

        assert len(set(keys)) == 5
        assert len(entry_numbers(full, "dead")) == 4

    def test_nothing_selected_changes_nothing(self, full: Store) -> None:
        answer = Site(full).post("/dead/delete")

        assert answer.status_code == 400
        assert len(entry_numbers(full, "dead")) == 60


def shown(text: str) -> list[int]:
    """Return the first arguments of the jobs of a page."""
    return [int(each) for each in re.findall(r'<code class="args"[^>]*>(\d+)</code>', text)]
