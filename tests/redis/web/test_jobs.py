"""Pages of jobs: filters that look as long as they may, pages that stay, bulk actions, one job by its id."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest

from kiqcluster import job as define
from kiqcluster.api.bulk import read_bulk
from kiqcluster.api.bulk.look import Budget
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web.views import sets as sets_module
from tests.fake_supervisor import publish
from tests.redis.web.site import CountingStore, Site, bulk_of
from tests.stored_jobs import (
    NOW,
    add_entries,
    entries,
    entry_numbers,
    fill_queue,
    fill_set,
    job,
    pop_jobs,
    queued_numbers,
)

GOING = re.compile(r'data-going hx-get="([^"]+)"')
NEXT = re.compile(r'rel="next" href="([^"]+)"')
PREVIOUS = re.compile(r'rel="prev" href="([^"]+)"')
KEYS = re.compile(r'name="key" value="([^"]+)"')


@pytest.fixture
def site(store: Store, setup: Setup) -> Site:
    return Site(store)


def shown(text: str) -> list[int]:
    """Return the arguments of the rows of a page."""
    return [int(each) for each in re.findall(r'<code class="args"[^>]*>(\d+)</code>', text)]


def link(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    assert found is not None
    return unescape(found[1])


class TestFilters:
    def test_each_field_leaves_out_what_it_does_not_mean(self, site: Site) -> None:
        add_entries(
            site.store,
            "retry",
            (NOW + 1, job(1, **{"class": "Red"})),
            (NOW + 2, job(2, queue="low")),
            (NOW + 3, job(3, error_class="Timeout", error_message="after 5 s")),
            (NOW + 4, job(4, tags=["vip"])),
            (NOW + 9_000, job(5)),
        )

        for query, numbers in {
            "class=Red": [1],
            "queue=low": [2],
            "error=Timeout: after": [3],
            "tag=vip": [4],
            "args=5": [5],
            "from=2026-11-20T13:00": [],
            "class=Red&tag=vip": [],
        }.items():
            assert shown(site.get(f"/retries?{query}").text) == numbers, query

    def test_times_are_durations_ahead_or_ago_or_times(self, site: Site) -> None:
        now = 3_000_000_000.0
        add_entries(site.store, "dead", *[(now - 3_600 * hours, job(hours)) for hours in (1, 3, 5)])
        at = Site(site.store, clock=FixedClock(now))

        assert shown(at.get("/dead?from=4h").text) == [1, 3]
        assert shown(at.get("/dead?to=2h").text) == [3, 5]
        assert shown(at.get("/dead?from=4h&to=2h").text) == [3]
        assert shown(at.get("/dead?from=2065-01-24T02:00&to=2065-01-24T03:00Z").text) == [3]
        assert "is no time" in at.get("/dead?from=yesterday").text

    def test_hidden_arguments_cannot_be_found_by_searching(self, site: Site) -> None:
        add_entries(site.store, "dead", (NOW, job(1, args=["secret", 42])), (NOW + 1, job(2, args=["other", 43])))

        assert KEYS.findall(site.get("/dead?args=secret").text) == []
        assert len(KEYS.findall(site.get("/dead?args=42").text)) == 1
        answer = site.post("/dead/bulk/delete", {"args": "secret"})
        action = read_bulk(site.store, bulk_of(answer))
        assert action is not None
        assert action.counts.count == 0

    def test_how_far_a_search_has_looked_tells_nothing_of_hidden_arguments(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sets_module, "PAGE_BUDGET", Budget(trips=1, seconds=1.0))
        add_entries(site.store, "dead", *[(NOW + at, job(at, args=["secret", at])) for at in range(1_500)])

        there, absent = (site.get(f"/dead?args={word}").text for word in ("secret", "absent"))

        assert "of 1,500, 0 found" in there
        assert re.findall("Looking: [^<]+", there) == re.findall("Looking: [^<]+", absent)

    def test_arguments_in_other_keys_of_a_payload_are_hidden_too(self, site: Site) -> None:
        middleware = {
            "lock_args": ["top-secret"],
            "unique_args": [7],
            "cattr": {"user": "bob"},
            "copy": "to top-secret",
        }
        add_entries(site.store, "dead", (NOW, job(1, args=["top-secret", 7], trace="abc-123", **middleware)))

        for path in (f"/dead/{KEYS.findall(site.get('/dead').text)[0]}", "/jobs/j1?go=0:dead.."):
            text = site.get(path).text

            assert "abc-123" in text
            assert "top-secret" not in text
            assert "bob" not in text

    def test_shown_arguments_are_found_as_the_application_words_them(self, store: Store, setup: Setup) -> None:
        add_entries(store, "dead", *[(NOW + number, job(number)) for number in range(5)])
        site = Site(store, format_arguments=lambda _, args: f"invoice of customer {args[0]}")

        assert len(KEYS.findall(site.get("/dead?args=customer 3").text)) == 1

    def test_declared_arguments_are_found(self, site: Site) -> None:
        @define(name="Job", loggable_arguments=[0])
        def _(_one: str, _other: str) -> None: ...

        add_entries(site.store, "dead", (NOW, job(1, args=["open", "secret"])))

        assert len(KEYS.findall(site.get("/dead?args=open").text)) == 1
        assert KEYS.findall(site.get("/dead?args=secret").text) == []

    def test_rare_matches_are_found_by_going_on(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sets_module, "PAGE_BUDGET", Budget(trips=1, seconds=1.0))
        monkeypatch.setattr(sets_module, "GOING_BUDGET", Budget(trips=1, seconds=1.0))
        fill_set(site.store, "dead", range(3_500))
        add_entries(
            site.store, "dead", (NOW - 1, job(7, **{"class": "Rare"})), (NOW + 3_000.5, job(8, **{"class": "Rare"}))
        )

        first = site.get("/dead?class=Rare")
        found, text, steps = shown(first.text), first.text, 0
        while (more := GOING.search(text)) is not None:
            text = site.fragment(unescape(more[1]), "more").text
            found += shown(text)
            steps += 1

        assert shown(first.text) == [8]
        assert "Looking: 1,000 of 3,502, 1 found…" in first.text
        assert (found, steps) == ([8, 7], 3)
        assert "Looked at 3,502 of 3,502, 2 found." in text

    def test_without_scripts_a_link_goes_on(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sets_module, "PAGE_BUDGET", Budget(trips=1, seconds=1.0))
        fill_set(site.store, "dead", range(1_500))
        add_entries(site.store, "dead", (NOW - 1, job(7, **{"class": "Rare"})))

        first = site.get("/dead?class=Rare").text
        refresh = link(re.compile(r'<noscript><meta http-equiv="refresh" content="1; url=([^"]+)"'), first)

        assert shown(site.get(refresh).text) == [7]


class TestPagesStay:
    @pytest.mark.parametrize("sort", ["newest", "oldest"])
    def test_pages_follow_each_other_both_ways_while_others_change_the_set(self, site: Site, sort: str) -> None:
        fill_set(site.store, "dead", range(100))
        order = list(range(100)) if sort == "oldest" else list(range(99, -1, -1))

        first = site.get(f"/dead?sort={sort}").text
        add_entries(site.store, "dead", (NOW + 500, job(900)), (NOW - 500, job(901)))
        removed = [raw for raw in entries(site.store, "dead") if json.loads(raw)["args"][0] in [*order[:10], order[24]]]
        site.store.call("ZREM", "dead", *removed)
        second = site.get(link(NEXT, first)).text
        third = site.get(link(NEXT, second)).text
        back = site.get(link(PREVIOUS, third)).text

        assert shown(first) == order[:25]
        assert shown(second) == order[25:50]
        assert shown(third) == order[50:75]
        assert shown(back) == order[25:50]

    def test_pages_of_one_score_follow_each_other(self, site: Site) -> None:
        fill_set(site.store, "schedule", range(60), score=NOW)

        seen, path = [], "/scheduled"
        while True:
            text = site.get(path).text
            seen += shown(text)
            if not NEXT.search(text):
                break
            path = link(NEXT, text)

        assert sorted(seen) == list(range(60))

    def test_what_is_due_next_comes_first_where_times_are_ahead(self, site: Site) -> None:
        for key in ("schedule", "retry", "dead"):
            fill_set(site.store, key, range(3))

        assert shown(site.get("/scheduled").text) == shown(site.get("/retries").text) == [0, 1, 2]
        assert shown(site.get("/dead").text) == [2, 1, 0]


class TestSelected:
    def test_selected_entries_get_another_time(self, site: Site) -> None:
        fill_set(site.store, "retry", range(3))
        key = KEYS.findall(site.get("/retries").text)[0]

        answer = site.post("/retries/reschedule", {"key": key, "when": "2030-01-01T00:00Z", "class": "Job"})

        assert answer.headers["Location"] == "/retries?class=Job"
        assert entries(site.store, "retry")[job(0)] == 1_893_456_000.0

    def test_a_time_that_is_none_changes_nothing(self, site: Site) -> None:
        fill_set(site.store, "retry", range(3))
        key, before = KEYS.findall(site.get("/retries").text)[0], entries(site.store, "retry")

        for when in ("", "soon", "9" * 400):
            assert site.post("/retries/reschedule", {"key": key, "when": when}).status_code == 400
        assert entries(site.store, "retry") == before

    def test_selected_entries_get_another_queue(self, site: Site) -> None:
        fill_set(site.store, "schedule", range(3))
        key = KEYS.findall(site.get("/scheduled").text)[0]

        site.post("/scheduled/move", {"key": key, "target": "low"})

        assert sorted(json.loads(raw)["queue"] for raw in entries(site.store, "schedule")) == [
            "default",
            "default",
            "low",
        ]

    def test_selected_jobs_of_a_queue_move_although_others_fetch(self, site: Site) -> None:
        fill_queue(site.store, range(60))
        keys = KEYS.findall(site.get("/queues/default").text)[15:18]
        pop_jobs(site.store, 10)

        site.post("/queues/default/move", {"key": keys, "target": "low"})

        assert queued_numbers(site.store, "low") == [15, 16, 17]
        assert not {15, 16, 17} & set(queued_numbers(site.store))

    def test_selected_jobs_of_a_queue_are_deleted_with_the_count_first(self, site: Site) -> None:
        fill_queue(site.store, range(60))
        keys = KEYS.findall(site.get("/queues/default").text)[3:6]

        assert "Delete 3 jobs for good?" in site.post("/queues/default/delete", {"key": keys, "confirmed": None}).text
        site.post("/queues/default/delete", {"key": keys})

        assert queued_numbers(site.store) == [0, 1, 2, *range(6, 60)]


class TestJob:
    def test_it_is_shown_with_its_course_where_a_link_has_seen_it(self, site: Site) -> None:
        fields = {
            "created_at": NOW,
            "enqueued_at": NOW + 1,
            "failed_at": NOW + 2,
            "retried_at": NOW + 3,
            "retry_count": 4,
        }
        chain = [{"class": "Next", "jid": "n1", "args": ["secret"]}]
        error = {"error_class": "Timeout", "error_message": "after 5 s", "interrupted_count": 2, "kiq_then": chain}
        add_entries(site.store, "retry", (NOW + 60, job(1, **fields, **error)))

        text = site.get(link(re.compile(r'class="jid" href="([^"]+)"'), site.get("/retries").text)).text

        steps = re.findall(r'datetime="([^"]+)">[^<]*</time></span> <b>([^<]+)</b>', text)
        assert [words for _, words in steps] == [
            "created",
            "enqueued",
            "failed for the first time",
            "failed again, and last",
            "Next try",
        ]
        assert "waits for another try" in text
        assert "Next" in text
        assert "secret" not in text
        assert 'action="/retries/kill"' in text

    @pytest.mark.parametrize("key", ["retry", "schedule", "dead", "kiq:dropped", "queue", "parked", "nowhere"])
    def test_it_is_found_wherever_it_is(self, site: Site, key: str) -> None:
        store, raw = site.store, job(1, jid="the-one")
        fill_queue(store, range(5), "other")
        fill_set(store, "dead", range(10, 20))
        if key == "queue":
            store.call("SADD", "queues", "mailers")
            store.call("LPUSH", "queue:mailers", raw)
        elif key == "parked":
            slots = store.keys.slots("Job")
            store.call("SADD", store.keys.parked_sets, slots)
            store.call("ZADD", store.keys.parked(slots), 1, b"queue:default\0" + raw)
        elif key != "nowhere":
            store.call("ZADD", key, NOW, raw)

        page = site.get("/jobs/the-one").text
        more = site.fragment(link(GOING, page), "more").text

        words = {
            "retry": "waits for another try",
            "schedule": "is scheduled",
            "dead": "is dead",
            "kiq:dropped": "was dropped",
            "queue": "waits in its queue",
            "parked": "is parked",
            "nowhere": "It is nowhere any more",
        }
        assert [each for each in words.values() if each in more] == [words[key]]

    def test_it_is_found_while_it_runs_and_in_the_hands_of_a_process(self, site: Site) -> None:
        store = site.store
        publish(store, "app-1:7:ab", queues=["default"])
        store.call("HSET", store.keys.members, "app-1:7:ab", "1 boot ns 7 1.0")
        store.call("HSET", store.keys.inflight("app-1:7:ab"), "1.1:default", job(1))
        assert "is held by a process" in site.get("/jobs/j1").text

        work = json.dumps({"queue": "default", "run_at": NOW, "payload": job(1).decode()})
        store.call("HSET", store.keys.work("app-1:7:ab"), "tid7", work)
        text = site.get("/jobs/j1").text

        assert ">runs<" in text
        assert "app-1:7:ab · tid7" in text

    def test_it_tells_what_is_kept_of_it(self, site: Site) -> None:
        keys = site.store.keys
        site.store.call("RPUSH", keys.result("j1"), b'{"state":"failed","error_class":"KeyError","error_message":"x"}')
        site.store.call("HSET", keys.iteration("j1"), "ex", 3, "c", "17", "rt", 2.5)
        site.store.call("SET", keys.progress("j1"), b'{"done": 3, "total": 4}')
        site.store.call("ZADD", keys.cancelled, NOW, "j1")

        text = site.get("/jobs/j1").text

        for words in ("KeyError", "3 runs", "at item 17", "3 / 4", "Cancelled"):
            assert words in text, words

    def test_values_of_a_wrong_type_break_nothing(self, site: Site) -> None:
        keys = site.store.keys
        for key in (keys.result("j1"), keys.progress("j1"), keys.iteration("j1"), keys.cancelled):
            site.store.call("SADD", key, "x")
        site.store.call("RPUSH", keys.result("j2"), "nonsense")
        site.store.call("HSET", keys.iteration("j2"), "ex", "many")

        assert site.get("/jobs/j1").status_code == site.get("/jobs/j2").status_code == 200

    def test_a_cancelled_job_is_kept_with_the_dropped_ones(self, site: Site) -> None:
        fill_set(site.store, "schedule", range(3))

        site.post("/jobs/j1/cancel")

        assert entry_numbers(site.store, "schedule") == [0, 2]
        assert entry_numbers(site.store, site.store.keys.dropped) == [1]

    def test_it_asks_six_times_beside_500_processes(self, counting: CountingStore) -> None:
        for number in range(500):
            publish(counting, f"app-{number}:7:ab", queues=["default"])
            counting.call("HSET", counting.keys.members, f"app-{number}:7:ab", "1 boot ns 7 1.0")
        site = Site(counting)
        site.get("/jobs/j1")
        counting.round_trips = 0

        site.get("/jobs/j1")

        assert counting.round_trips <= 6


@pytest.fixture
def counting(store: Store, setup: Setup, redis_server: Any) -> Any:
    made = CountingStore(redis_server.url)
    yield made
    made.close()


class FixedClock:
    """Its wall clock stands still."""

    def __init__(self, now: float) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return 0.0

    def cpu(self) -> float:
        return 0.0

    def process_cpu(self) -> float:
        return 0.0


class TestHiddenArguments:
    def test_a_page_that_hides_one_says_who_may_see_it_and_how(self, site: Site) -> None:
        @define(name="X", loggable_arguments=[0])
        def shown(name: str, note: str) -> None: ...

        for key, args in (("retry", ["ann", "secret"]), ("dead", ["ann", 5])):
            add_entries(site.store, key, (NOW, job(1, **{"class": "X", "args": args})))

        for path, is_hidden in (("/retries", True), ("/dead", False)):
            text = site.get(path).text
            page = site.get(unescape(re.findall(rf'href="({path}/(?!export)[^"]+)"', text)[0])).text
            assert "ann" in page
            assert "secret" not in text + page
            for each in (text, page):
                assert ("loggable_arguments; kiqctl shows it" in each) == is_hidden
