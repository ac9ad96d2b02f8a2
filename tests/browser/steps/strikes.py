"""Steps on strikes."""

from __future__ import annotations

from kiqcluster.api import StrikeSet
from tests.browser.chromium import Watched
from tests.browser.live import LiveSite
from tests.stored_jobs import fill_queue


def add(site: LiveSite, watched: Watched) -> None:
    fill_queue(site.store, range(3))
    watched.open("/strikes")
    watched.page.get_by_label("Class", exact=True).fill("Job")
    watched.page.get_by_label("Action").select_option("drop")
    watched.page.get_by_label("Reason").fill("it fails")

    watched.press("Preview…")
    assert StrikeSet(store=site.store).list() == []
    watched.confirm()

    ((strike, _),) = StrikeSet(store=site.store).list()
    assert (strike.name, strike.action, strike.reason) == ("Job", "drop", "it fails")


def remove(site: LiveSite, watched: Watched) -> None:
    StrikeSet(store=site.store).add("defer", 60, name="Job")
    watched.open("/strikes")

    watched.press("Remove")

    assert StrikeSet(store=site.store).list() == []


STEPS = {"strike_add": add, "strike_remove": remove}
