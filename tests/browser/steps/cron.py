"""Steps on cron entries."""

from __future__ import annotations

from kiqcluster.api import CronSet
from tests.browser.chromium import Watched
from tests.browser.live import LiveSite
from tests.redis.web.scenes import cron as scenes

NAME = "nightly"


def is_enabled(site: LiveSite) -> bool:
    status = CronSet(store=site.store).get(NAME)
    return status is not None and status.is_enabled


def enqueue(site: LiveSite, watched: Watched) -> None:
    scenes.entry(site.store)
    watched.open("/cron")

    watched.press("Enqueue now")

    (job,) = site.queued("reports")
    assert (job["class"], job["args"]) == ("Report", ["all"])


def disable(site: LiveSite, watched: Watched) -> None:
    scenes.entry(site.store)
    watched.open("/cron")

    watched.press("Disable")

    assert not is_enabled(site)


def enable(site: LiveSite, watched: Watched) -> None:
    scenes.disabled(site.store)
    watched.open("/cron")

    watched.press("Enable")

    assert is_enabled(site)


def remove(site: LiveSite, watched: Watched) -> None:
    scenes.entry(site.store)
    watched.open("/cron")
    watched.page.get_by_role("link", name=NAME).first.click()

    watched.press("Remove…")
    watched.confirm()

    assert CronSet(store=site.store).list() == []


STEPS = {"cron_enqueue": enqueue, "cron_disable": disable, "cron_enable": enable, "cron_remove": remove}
