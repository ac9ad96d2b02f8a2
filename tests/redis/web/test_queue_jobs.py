"""The jobs of a queue on its page: filters, pages and bulk actions, while others fetch."""

from __future__ import annotations

import re
from html import unescape

import pytest

from kiqcluster import job as job_function
from kiqcluster.api.bulk import read_bulk
from kiqcluster.batches import Batch
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web import Role
from tests.kit import RedisServer
from tests.redis.web.site import CountingStore, Site, entry_keys
from tests.stored_jobs import fill_queue, job, pop_jobs, push_payloads, queued_numbers

QUEUE = "mailers"
PATH = f"/queues/{QUEUE}"
NEXT = re.compile(r'rel="next" href="([^"]+)"')
GOING = re.compile(r'data-going hx-get="([^"]+)"')


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


def fill(store: Store, count: int) -> None:
    """Push jobs: each third one is red and tagged; each was enqueued a second after the one before it."""
    red = {"class": "Red", "tags": ["vip"]}
    more = [{**(red if at % 3 == 0 else {}), "enqueued_at": 1_795_168_740.0 + at} for at in range(count)]
    push_payloads(store, [job(at, **each) for at, each in enumerate(more)], QUEUE)


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("class=Red", [0, 3, 6, 9]),
        ("tag=vip", [0, 3, 6, 9]),
        ("args=7", [7]),
        ("jid=j4", [4]),
        ("from=2026-11-20T09:59:05&to=2026-11-20T09:59:07", [5, 6, 7]),
        ("class=Red&jid=j4", []),
    ],
)
def test_each_field_leaves_out_what_it_does_not_mean(site: Site, query: str, numbers: list[int]) -> None:
    fill(site.store, 10)

    assert shown(site.get(f"{PATH}?{query}").text) == numbers


def test_pages_of_a_filter_follow_each_other_while_others_fetch(site: Site) -> None:
    fill(site.store, 200)
    first = site.get(f"{PATH}?class=Red").text
    pop_jobs(site.store, 10, QUEUE)

    second = site.get(link(NEXT, first)).text

    assert shown(first) == list(range(0, 75, 3))
    assert shown(second) == list(range(75, 150, 3))


@pytest.mark.parametrize("place", [0, 40, 3_000, 99_999_999_999])
def test_a_page_behind_jobs_that_are_nowhere_asks_six_times_at_most(
    store: Store, setup: Setup, redis_server: RedisServer, place: int
) -> None:
    fill(store, 5_000)
    counting = CountingStore(redis_server.url)
    site = Site(counting)
    site.get("/queues")
    before = counting.round_trips

    after = entry_keys(store).seal(f"{place}-{'0' * 40}")
    text = site.get(f"{PATH}?class=Red&after={after}").text

    assert counting.round_trips - before <= 6
    assert all(number > place for number in shown(text))
    counting.close()


def test_rare_matches_are_found_by_going_on(site: Site) -> None:
    fill_queue(site.store, range(9_000), QUEUE)

    text = site.get(f"{PATH}?jid=j8500").text
    assert shown(text) == []
    for _ in range(20):
        if shown(text):
            break
        text = site.fragment(link(GOING, text), "more").text

    assert shown(text) == [8_500]


def test_all_that_match_are_counted_then_deleted_when_somebody_begins_it(site: Site) -> None:
    fill(site.store, 300)

    asked = site.post(f"{PATH}/bulk/delete", {"class": "Red"}).headers["Location"]
    assert "100 jobs match" in site.get(asked).text
    assert len(queued_numbers(site.store, QUEUE)) == 300
    site.post(f"{asked}/start")

    assert queued_numbers(site.store, QUEUE) == [at for at in range(300) if at % 3]
    assert site.get(asked).text.count("100 jobs were deleted") == 1
    done = read_bulk(site.store, asked.rpartition("/")[2])
    assert done is not None
    assert (done.state, done.counts.done, done.queue_name) == ("done", 100, QUEUE)
    assert site.events[0][1]["target"].startswith(f"delete queue {QUEUE} {{'class': 'Red'}}")


def test_all_that_match_move_to_another_queue(site: Site) -> None:
    fill(site.store, 30)

    asked = site.post(f"{PATH}/bulk/move", {"tag": "vip", "target": "low"}).headers["Location"]
    site.post(f"{asked}/start")

    assert queued_numbers(site.store, "low") == list(range(0, 30, 3))


def test_deleting_all_that_match_takes_an_administrator(store: Store, setup: Setup) -> None:
    fill(store, 3)

    answer = Site(store, Role.OPERATE).post(f"{PATH}/bulk/delete", {"class": "Red"})

    assert answer.status_code == 403
    assert store.call("EXISTS", store.keys.bulks) == 0


def test_an_action_on_selected_jobs_leads_back_to_the_filter(site: Site) -> None:
    fill(site.store, 9)
    key = link(re.compile(r'name="key" value="([^"]+)"'), site.get(f"{PATH}?class=Red").text)

    answer = site.post(f"{PATH}/delete", {"key": key, "class": "Red"})

    assert answer.headers["Location"] == f"{PATH}?class=Red"
    assert queued_numbers(site.store, QUEUE) == list(range(1, 9))


def test_clearing_releases_locks_and_ends_the_jobs_in_their_batches(site: Site, registry: object) -> None:
    @job_function(deduplicate="until_executed")
    def once(number: int) -> None: ...

    @job_function
    def row(number: int) -> None: ...

    first = once.perform_async(1)
    batch = Batch.create("import", row, [[1], [2]])

    site.post("/queues/default/clear")

    assert queued_numbers(site.store) == []
    assert (batch.status().error, batch.status().is_complete) == (2, True)
    assert once.perform_async(1) not in (first, None)
    assert len(queued_numbers(site.store)) == 1


def test_clearing_leaves_alone_what_comes_later(site: Site) -> None:
    later = SystemClock.now() + 3_600
    push_payloads(site.store, [job(1), job(2, enqueued_at=later)])

    site.post("/queues/default/clear")

    assert queued_numbers(site.store) == [2]


def test_only_an_empty_queue_leaves_the_list(site: Site) -> None:
    fill(site.store, 2)
    kept = site.post(f"{PATH}/forget")
    assert (kept.headers["Location"], site.events[0][1]["result"]) == (PATH, "failed")
    assert queued_numbers(site.store, QUEUE) == [0, 1]
    assert QUEUE in site.get("/queues").text
    assert "Remove from the list" not in site.get(PATH).text

    site.post(f"{PATH}/clear")
    assert "Remove from the list" in site.get(PATH).text
    site.post(f"{PATH}/forget")

    assert site.store.call("SISMEMBER", site.store.keys.queues, QUEUE) == 0
