"""Steps on jobs that run."""

from __future__ import annotations

from tests.browser.chromium import Watched
from tests.browser.live import LiveSite
from tests.kit import wait_until


def cancel(site: LiveSite, watched: Watched) -> None:
    jid = site.begin("patient", "a")
    watched.open("/busy")

    watched.press("Cancel", within=f"main tr:has-text('{jid}')")

    site.wait_noted("told a")
    site.wait_settled()
    assert site.store.call("ZCARD", "retry") == 0  # it has ended for good


def kill(site: LiveSite, watched: Watched) -> None:
    jid = site.begin("stubborn", "b")
    before = set(site.identities)
    watched.open("/busy")

    watched.press("Kill…", within=f"main tr:has-text('{jid}')")
    watched.confirm()

    wait_until(lambda: set(site.identities) != before and site.everybody_is_there(), "another process")
    wait_until(lambda: site.notes().count("began b") == 2, "the job to be back, and to begin again")


STEPS = {"busy_cancel": cancel, "busy_kill": kill}
