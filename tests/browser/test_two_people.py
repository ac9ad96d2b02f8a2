"""Two people at one dead set, in two browsers: what each is told, and what is in Redis afterwards, is true."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Watched
from tests.browser.conftest import OpenPage
from tests.browser.live import LiveSite
from tests.kit import wait_until
from tests.stored_jobs import entry_numbers, fill_set, queued_numbers

pytestmark = [pytest.mark.browser, pytest.mark.ruby]

BEFORE = 1_795_000_000.0  # epoch seconds of the deaths


def select(watched: Watched, *numbers: int) -> None:
    """Select the jobs of these numbers; a list that has a selection does not refresh."""
    for number in numbers:
        watched.page.locator("tr", has_text=f"j{number}").locator("input[name=key]").check()


def delete(watched: Watched, *numbers: int) -> str:
    """Delete jobs, and return what the page says then."""
    watched.open("/dead")
    select(watched, *numbers)
    watched.send_to("/dead/delete")
    watched.confirm()
    return watched.message()


def test_one_deletes_what_the_other_retries(site: LiveSite, open_page: OpenPage) -> None:
    fill_set(site.store, "dead", range(6), BEFORE)
    with open_page() as ada, open_page() as bob:
        bob.open("/dead")
        select(bob, 0)
        assert delete(ada, 0).startswith("1 job was deleted.")

        bob.send_to("/dead/retry")

        told = bob.page.locator(".message-failed").inner_text()
        assert "0 jobs were put back into their queues. 1 other was gone." in told
        assert queued_numbers(site.store) == []
        assert entry_numbers(site.store, "dead") == [1, 2, 3, 4, 5]

        select(bob, 1, 2, 3, 4, 5)
        delete(ada, 1, 2)
        bob.send_to("/dead/retry")

        assert "3 jobs were put back into their queues. 2 others were gone." in bob.message()
        assert sorted(queued_numbers(site.store)) == [3, 4, 5]
        assert entry_numbers(site.store, "dead") == []
        assert bob.page.locator("input[name=key]").count() == 0


def test_one_deletes_what_the_other_is_about_to_retry_with_all_that_match(site: LiveSite, open_page: OpenPage) -> None:
    fill_set(site.store, "dead", range(6), BEFORE)
    with open_page() as ada, open_page() as bob:
        bob.open("/dead?class=Job")
        bob.page.locator("details.more summary").click()
        bob.send_to("/dead/bulk/retry")
        bob.page.locator("form[action$='/start'] button").wait_for()
        assert "6 jobs match" in bob.page.inner_text("main")
        delete(ada, 0, 1)

        with bob.page.expect_navigation():
            bob.page.locator("form[action$='/start'] button").click()
        wait_until(lambda: len(queued_numbers(site.store)) == 4, "the jobs to be put back")

        bob.page.get_by_text("4 jobs were put back into their queues.").wait_for()
        assert sorted(queued_numbers(site.store)) == [2, 3, 4, 5]
        assert entry_numbers(site.store, "dead") == []
        ada.open("/dead")
        assert ada.page.locator("input[name=key]").count() == 0
