"""Every page in a real browser: nothing goes wrong in it, it can be read and worked by everybody, on any screen.

Pages are found by links from the first one, so those that are added are looked at too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize

from kiqcluster.web.routing import table
from tests.browser import demo
from tests.browser.conftest import OpenPage
from tests.browser.links import find_pages
from tests.browser.live import LiveSite

# One of each layout: figures and charts, cards, a list with filters, one thing with its fields, one with charts.
SHORT = {"dashboard", "clusters", "dead", "job", "job_class"}
pytestmark = [pytest.mark.browser, pytest.mark.ruby]

PAGES = {name: page for name, page in table().pages.items() if page.template}
FILES = {name: page for name, page in table().pages.items() if not page.template}
AXE, AXE_AGAIN = Axe(), Axe(axe_script="null")  # the second one in a page that has it already
VIOLATIONS = {"resultTypes": ["violations"]}  # axe-core need not tell what is right
ALL_RULES = VIOLATIONS | {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}
CONTRAST = VIOLATIONS | {"runOnly": ["color-contrast"]}  # all that another theme may change
DESK: ViewportSize = {"width": 1280, "height": 720}
PHONE: ViewportSize = {"width": 390, "height": 844}
STOPS = 10  # of the key Tab between two looks
MAX_OTHERS = 20  # stops of the key Tab that are not ours: the browser's own, lists that scroll
# Numbers what can be worked, and returns how many of that are seen.
NUMBER_THE_WORKABLE = """() => {
  const all = [...document.querySelectorAll(
    "a[href], button:not([tabindex='-1']), input:not([type=hidden]), select, textarea, summary")];
  const seen = all.filter((each) => each.checkVisibility({checkVisibilityCSS: true}) && !each.disabled);
  seen.forEach((each, number) => { each.dataset.number = number; });
  return seen.length;
}"""
# Notes what gets the focus: its number, and whether it is marked.
NOTE_THE_FOCUS = """() => {
  window.focused = [];
  document.addEventListener("focusin", (event) => {
    const style = getComputedStyle(event.target);
    const isMarked = style.outlineStyle !== "none" && style.outlineWidth !== "0px";
    window.focused.push([event.target.dataset.number ?? "", isMarked]);
  });
}"""


@pytest.fixture(scope="module")
def paths(running_site: LiveSite) -> Iterator[dict[str, str]]:
    """Return page → a path of it, on a site with something on each page."""
    running_site.clear()
    demo.fill(running_site.store)
    yield find_pages(running_site.origin)
    running_site.clear()


def test_each_page_is_reached_by_links(paths: dict[str, str]) -> None:
    assert paths.keys() == table().pages.keys()


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in SHORT else pytest.mark.full) for each in sorted(PAGES)]
)
def test_everybody_can_read_and_work_a_page(name: str, paths: dict[str, str], open_page: OpenPage) -> None:
    with open_page(reduced_motion="reduce", viewport=DESK) as watched:
        watched.open(paths[name])
        if watched.page.locator("#refresh-rate").is_visible():  # live parts stay as they are
            watched.page.locator("#refresh-rate").select_option("0")

        assert violations(watched.page, ALL_RULES) == ""
        watched.page.emulate_media(color_scheme="dark")
        assert violations(watched.page, CONTRAST, AXE_AGAIN) == ""
        assert_worked_by_keys(watched.page)
        watched.page.set_viewport_size(PHONE)
        assert watched.page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        watched.page.set_viewport_size(DESK)
        watched.page.emulate_media(color_scheme="light")


def violations(page: Page, rules: dict[str, Any], axe: Axe = AXE) -> str:
    """Return what axe-core finds, "" for nothing."""
    found = axe.run(page, options=rules)
    return str(found.generate_report()) if found.violations_count else ""


def assert_worked_by_keys(page: Page) -> None:
    """Go through the page by the key Tab: it reaches all that can be worked, and marks where it is."""
    count = page.evaluate(NUMBER_THE_WORKABLE)
    page.evaluate(NOTE_THE_FOCUS)
    reached: dict[str, bool] = {}
    for _ in range(0, count + MAX_OTHERS, STOPS):
        for _ in range(STOPS):
            page.keyboard.press("Tab")
        focused = page.evaluate("focused")
        reached = dict(focused)
        if reached.keys() >= {str(each) for each in range(count)}:
            break
    assert reached.keys() - {""} == {str(each) for each in range(count)}
    assert [number for number, is_marked in reached.items() if number and not is_marked] == []


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_can_be_read_without_javascript(name: str, paths: dict[str, str], open_page: OpenPage) -> None:
    with open_page() as watched, open_page(java_script_enabled=False) as plain:
        watched.open(paths[name])
        plain.open(paths[name])

        assert plain.page.locator("h1").inner_text() == watched.page.locator("h1").inner_text()
        headings = "main h2, main th"
        assert set(watched.page.locator(headings).all_inner_texts()) <= set(
            plain.page.locator(headings).all_inner_texts()
        )


@pytest.mark.parametrize(  # the sets share a template; tests/redis/web/test_export.py reads the file of each
    "name",
    [
        pytest.param(each, marks=() if each in ("dead_export", "queue_export") else pytest.mark.full)
        for each in sorted(FILES)
    ],
)
def test_a_file_is_downloaded_as_json_lines(name: str, paths: dict[str, str], open_page: OpenPage) -> None:
    with open_page() as watched:
        watched.open(paths[name.removesuffix("_export")])
        watched.page.locator("details.more summary").click()

        with watched.page.expect_download() as download:
            watched.page.locator(f"main a[href='{paths[name]}']").click()

        lines = download.value.path().read_text().splitlines()
        assert len(lines) > 2
        assert all("class" in json.loads(line) for line in lines)
