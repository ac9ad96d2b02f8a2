"""Steps on limits and locks.  Nothing of the limit may run, so that the live cluster leaves what is parked alone."""

from __future__ import annotations

from kiqcluster.api import override_limit
from tests.browser.chromium import Watched
from tests.browser.live import LiveSite
from tests.redis.web.scenes.limits import lock, park
from tests.stored_jobs import job

LIMIT, KEY = "Sync", "shop 7"


def open_limit(site: LiveSite, watched: Watched) -> None:
    park(site.store, LIMIT, [job(number) for number in range(3)], KEY, limit=-1)
    watched.open("/limits")
    watched.page.get_by_role("link", name=LIMIT).first.click()
    watched.page.wait_for_url(f"**/limits/concurrency/{LIMIT}*")


def parked(site: LiveSite) -> int:
    count: int = site.store.call("ZCARD", site.store.keys.parked(site.store.keys.slots(LIMIT, KEY)))
    return count


def override(site: LiveSite, watched: Watched) -> None:
    open_limit(site, watched)
    watched.page.locator("#number").fill("0")
    watched.page.locator("#seconds").select_option("3600")

    watched.press("Put into force")

    assert overrides(site) != []


def overrides(site: LiveSite) -> list[bytes]:
    names = site.store.call("HKEYS", site.store.keys.limits)
    return [each for each in names if each.endswith(b"|override")]


def reset(site: LiveSite, watched: Watched) -> None:
    override_limit(LIMIT, -1, 600, store=site.store)
    open_limit(site, watched)

    watched.press("Reset")

    assert overrides(site) == []


def delete(site: LiveSite, watched: Watched) -> None:
    open_limit(site, watched)
    for number in range(2):
        watched.page.locator("main tbody input[type=checkbox]").nth(number).check()

    watched.press("Delete selected…")
    assert parked(site) == 3
    watched.confirm()

    assert parked(site) == 1


def clear(site: LiveSite, watched: Watched) -> None:
    open_limit(site, watched)

    watched.press("Delete all…")
    assert parked(site) == 3
    watched.confirm()

    assert parked(site) == 0


def release(site: LiveSite, watched: Watched) -> None:
    lock(site.store)
    key = site.store.keys.lock("Report:abc")
    watched.open("/limits/locks")

    watched.press("Release…")
    assert site.store.call("EXISTS", key) == 1
    watched.confirm()

    assert site.store.call("EXISTS", key) == 0


STEPS = {
    "limit_override": override,
    "limit_reset": reset,
    "limit_delete": delete,
    "limit_clear": clear,
    "lock_release": release,
}
