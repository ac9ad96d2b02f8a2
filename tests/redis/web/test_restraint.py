"""What one reader cannot take from all others: threads by slow exports, Redis' time by searches."""

from __future__ import annotations

import gc

import pytest
from werkzeug.test import Client, TestResponse

from kiqcluster.store import Store
from kiqcluster.web.app import MAX_DOWNLOADS
from tests.kit import ManualClock
from tests.redis.web.site import LOCAL, Site
from tests.stored_jobs import fill_set


@pytest.fixture
def limited(store: Store, setup: object) -> Site:
    """A browser whose clock stands still, so that no token comes back."""
    return Site(store, clock=ManualClock(), is_limited=True)


def begin_export(site: Site) -> TestResponse:
    """Begin to read an export, and stop after its first line."""
    answer = Client(site.app, use_cookies=False).get("/dead/export", environ_base=LOCAL, buffered=False)
    if answer.status_code == 200:
        next(iter(answer.response))
    return answer


def test_exports_that_are_read_slowly_leave_threads_for_pages(site: Site) -> None:
    fill_set(site.store, "dead", range(1_000))

    slow = [begin_export(site) for _ in range(MAX_DOWNLOADS)]
    refused = begin_export(site)

    assert [each.status_code for each in slow] == [200] * MAX_DOWNLOADS
    assert refused.status_code == 429
    assert refused.headers["Retry-After"]


@pytest.mark.parametrize("end", ["it is read", "the reader goes", "the server forgets it"])
def test_the_place_of_an_export_is_free_once_it_ends(site: Site, end: str) -> None:
    fill_set(site.store, "dead", range(300))
    for _ in range(3 * MAX_DOWNLOADS):
        answer = begin_export(site)
        assert answer.status_code == 200
        if end == "it is read":
            assert sum(1 for _ in answer.response) > 0
        elif end == "the reader goes":
            answer.close()
        else:
            del answer
            gc.collect(1)  # it is young; all that there is takes long


@pytest.mark.parametrize(
    ("path", "block"),
    [("/dead?args=7", ""), ("/dead?args=7", "live"), ("/dead?class=x", "more"), ("/limits/locks", "live")],
)
def test_searches_have_a_limit_whatever_part_of_a_page_is_asked_for(limited: Site, path: str, block: str) -> None:
    fill_set(limited.store, "dead", range(10))
    codes = [(limited.fragment(path, block) if block else limited.get(path)).status_code for _ in range(310)]

    assert codes[:50] == [200] * 50
    assert codes[-1] == 429
