"""Steps on what the browser keeps."""

from __future__ import annotations

from tests.browser.chromium import Watched
from tests.browser.live import LiveSite


def prefer(site: LiveSite, watched: Watched) -> None:
    watched.open("/queues")
    watched.page.locator("details.menu summary").click()
    watched.page.locator("#theme").select_option("dark")
    watched.page.locator("#language").select_option("ja")

    watched.press("Apply", within="details.menu")

    assert watched.page.url.endswith("/queues")
    assert watched.page.locator("html[lang=ja][data-theme=dark]").count() == 1
    assert site.store.call("EXISTS", "queues") == 0


STEPS = {"preferences": prefer}
