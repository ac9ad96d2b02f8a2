"""What the script of the pages does: it refreshes live parts, rests while nobody looks, says when Redis is away, and
knows keys.

The page's clock is the test's: nothing waits for seconds to pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from playwright.sync_api import Page, Request, ViewportSize, expect

from kiqcluster.web import routing
from tests.browser.chromium import Watched
from tests.browser.conftest import OpenPage
from tests.browser.live import LiveSite, WebServer
from tests.kit import RedisServer, wait_until
from tests.stored_jobs import fill_queue, fill_set

pytestmark = [pytest.mark.browser, pytest.mark.ruby]

LATER = 4_000_000_000.0  # epoch seconds; no poller takes these jobs
REFRESH_MS = 2_000
PAUSED_AHEAD_SECONDS = 60  # longer than a page takes to load, however busy the machine is
KEYS = [(page.key, page) for page in routing.table().pages.values() if page.key]
PHONE: ViewportSize = {"width": 390, "height": 780}
PLACE_IN_MENU = """(() => {
  const {left, right} = document.querySelector(".pages [aria-current]").getBoundingClientRect();
  return [left, right];
})()"""
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


class Live:
    """A page whose time passes only when the test says so.  asked: paths of live parts that were asked for."""

    def __init__(self, watched: Watched, path: str) -> None:
        self.watched = watched
        self.page: Page = watched.page
        self.asked: list[str] = []
        self.page.on("request", self._note)
        self.page.clock.resume()
        watched.open(path)
        self.page.clock.pause_at(self.page.evaluate("Date.now()") / 1_000 + PAUSED_AHEAD_SECONDS)
        expect(self.page.locator(".htmx-request")).to_have_count(0)
        self.asked.clear()

    def close(self) -> None:
        self.page.remove_listener("request", self._note)

    def _note(self, request: Request) -> None:
        if request.headers.get("hx-request") == "true":
            self.asked.append(request.url.removeprefix(self.watched.origin))

    def pass_time(self, milliseconds: int = REFRESH_MS) -> int:
        """Let time pass; return how often a live part was asked for in it."""
        before = len(self.asked)
        self.page.clock.run_for(milliseconds)
        self.page.evaluate("null")  # requests that were sent have been told by now
        return len(self.asked) - before


@pytest.fixture
def queues(site: LiveSite, open_page: OpenPage) -> Iterator[Live]:
    fill_queue(site.store, range(3), "mailers")
    with open_page(has_clock=True) as watched, closing(Live(watched, "/queues")) as live:
        yield live


class TestRefresh:
    def test_a_live_part_shows_what_has_changed(self, site: LiveSite, queues: Live) -> None:
        fill_queue(site.store, range(39), "mailers")

        assert queues.pass_time() == 1
        expect(queues.page.locator("main tbody")).to_contain_text("42")

    def test_nothing_is_asked_for_while_the_tab_is_hidden(self, queues: Live) -> None:
        queues.page.evaluate(HIDE, True)
        hidden = queues.pass_time(30 * REFRESH_MS)
        queues.page.evaluate(HIDE, False)
        expect(queues.page.locator(".htmx-request")).to_have_count(0)

        assert hidden == 0
        assert queues.asked == [queues.asked[0]]  # at once when somebody looks again
        assert queues.pass_time() == 1

    def test_the_rate_is_chosen_and_kept_by_the_browser(self, queues: Live) -> None:
        queues.page.locator("#refresh-rate").select_option("15")
        assert queues.pass_time(14_000) == 0
        assert queues.pass_time(1_000) == 1

        queues.watched.open("/queues")

        assert queues.page.locator("#refresh-rate").input_value() == "15"

    def test_p_pauses_and_goes_on(self, queues: Live) -> None:
        queues.page.keyboard.press("p")
        assert queues.pass_time(30 * REFRESH_MS) == 0

        queues.page.keyboard.press("p")

        assert queues.pass_time() == 1

    def test_r_refreshes_at_once(self, queues: Live) -> None:
        queues.page.keyboard.press("r")
        queues.page.evaluate("null")

        assert len(queues.asked) == 1

    def test_what_is_selected_stays_selected(self, site: LiveSite, open_page: OpenPage) -> None:
        fill_set(site.store, "dead", range(3), LATER)
        with open_page(has_clock=True) as watched, closing(Live(watched, "/dead")) as live:
            live.page.keyboard.press("a")

            assert live.pass_time(5 * REFRESH_MS) == 0
            assert live.page.locator("input[name=key]:checked").count() == 3
            expect(live.page.locator("[data-count]")).to_contain_text("3")

    def test_times_are_in_the_zone_of_the_reader(self, site: LiveSite, open_page: OpenPage) -> None:
        fill_set(site.store, "dead", [1], 1_795_168_740.0)
        shown = []
        with open_page() as watched:
            context = watched.page.context
            context.add_cookies([{"name": "kiqweb_language", "value": "ja", "url": watched.origin}])
            session = context.new_cdp_session(watched.page)
            for zone in ("UTC", "Asia/Tokyo"):
                session.send("Emulation.setTimezoneOverride", {"timezoneId": zone})
                watched.open("/dead")
                shown.append(watched.page.locator("main tbody time").get_attribute("title"))
            session.detach()

        assert shown == ["2026/11/20 9:59:00", "2026/11/20 18:59:00"]


class TestKeys:
    @pytest.mark.parametrize("count", [3, pytest.param(len(KEYS), marks=pytest.mark.full)])
    def test_g_and_a_letter_lead_to_each_page(self, site: LiveSite, open_page: OpenPage, count: int) -> None:
        with open_page() as watched:
            watched.open("/queues?q=x")
            for key, page in KEYS[:count]:
                watched.page.keyboard.press("g")
                watched.page.keyboard.press(key)
                watched.page.wait_for_url(f"{watched.origin}{page.path}")

    def test_a_question_mark_shows_the_keys_and_escape_hides_them(self, queues: Live) -> None:
        queues.page.keyboard.press("?")
        expect(queues.page.get_by_role("dialog")).to_be_visible()
        assert queues.page.get_by_role("dialog").locator("kbd").count() >= 2 * len(KEYS)

        queues.page.keyboard.press("Escape")

        expect(queues.page.get_by_role("dialog")).to_be_hidden()

    def test_a_slash_leads_into_the_search_where_keys_are_letters(self, queues: Live) -> None:
        queues.page.keyboard.press("/")
        queues.page.keyboard.type("gp?mail")
        assert queues.page.locator("input[type=search]").input_value() == "gp?mail"

        queues.page.locator("input[type=search]").fill("mail")
        with queues.page.expect_navigation():
            queues.page.keyboard.press("Enter")

        assert queues.page.locator("main tbody tr").count() == 1

    def test_the_first_tab_skips_to_the_content(self, queues: Live) -> None:
        queues.page.keyboard.press("Tab")
        queues.page.keyboard.press("Enter")

        assert queues.page.evaluate("document.activeElement.id") == "main"


class TestOutage:
    @pytest.fixture
    def away(self, own_server: RedisServer, tmp_path: Path) -> Iterator[WebServer]:
        """The pages in front of a Redis that the test may stop."""
        fill_queue(own_server.store(), range(3), "mailers")
        web = WebServer(own_server.url, tmp_path)
        yield web
        web.close()

    def test_a_live_part_keeps_what_it_shows_and_comes_back(
        self, away: WebServer, own_server: RedisServer, open_page: OpenPage
    ) -> None:
        with open_page(away.origin, has_clock=True) as watched, closing(Live(watched, "/queues")) as live:
            own_server.kill()
            live.pass_time()
            expect(live.page.locator("#away")).to_contain_text("503")
            assert live.page.locator("main tbody").inner_text().startswith("mailers")

            own_server.start()
            fill_queue(own_server.store(), range(7), "mailers")
            wait_until(lambda: live.pass_time() and live.page.locator("#away").is_hidden(), "the pages to be back")

            expect(live.page.locator("main tbody")).to_contain_text("7")
            assert all("503" in fault for fault in watched.faults), watched.faults  # which the browser tells
            watched.faults.clear()

    def test_a_page_says_that_redis_is_away_and_comes_back(
        self, away: WebServer, own_server: RedisServer, open_page: OpenPage
    ) -> None:
        with open_page(away.origin) as watched:
            own_server.kill()
            answer = watched.page.goto(f"{away.origin}/queues")
            assert answer is not None
            assert answer.status == 503
            expect(watched.page.locator("h1")).to_have_text("Redis does not answer")

            own_server.start()
            expect(watched.page.locator("h1")).to_have_text("Queues")
            watched.faults.clear()


class TestLooks:
    def test_a_page_is_dark_for_each_browser_that_prefers_it(self, site: LiveSite, open_page: OpenPage) -> None:
        grounds = []
        with open_page() as watched:
            watched.open("/dead")
            for scheme in ("dark", "light"):
                watched.page.emulate_media(color_scheme=scheme)
                grounds.append(watched.page.evaluate("getComputedStyle(document.body).backgroundColor"))

        assert grounds[0] != grounds[1]

    def test_the_page_that_is_shown_is_in_sight_in_the_menu_of_a_phone(
        self, site: LiveSite, open_page: OpenPage
    ) -> None:
        with open_page() as watched:
            whole = watched.page.viewport_size
            watched.page.set_viewport_size(PHONE)
            boxes = {}
            for path in ("/", "/routes"):  # the first one and the last one
                watched.open(path)
                boxes[path] = watched.page.evaluate(PLACE_IN_MENU)
            watched.page.set_viewport_size(whole)

        assert all(0 <= left <= right <= PHONE["width"] for left, right in boxes.values()), boxes
