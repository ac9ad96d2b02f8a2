"""Steps on queues."""

from __future__ import annotations

import json
from functools import partial

from tests.browser.chromium import Watched
from tests.browser.live import LiveSite
from tests.kit import wait_until
from tests.stored_jobs import fill_queue, queued_numbers

QUEUE = "mailers"


def go_to_queue(site: LiveSite, watched: Watched) -> None:
    fill_queue(site.store, range(3), QUEUE)
    watched.open("/queues")
    watched.page.get_by_role("link", name=QUEUE, exact=True).click()
    watched.page.wait_for_url(f"**/queues/{QUEUE}")


def pause(site: LiveSite, watched: Watched) -> None:
    go_to_queue(site, watched)

    watched.press("Pause")

    assert site.store.call("SMEMBERS", "paused") == [QUEUE.encode()]
    assert "paused" in watched.page.inner_text("main .stats")


def resume(site: LiveSite, watched: Watched) -> None:
    site.store.call("SADD", "paused", QUEUE)
    go_to_queue(site, watched)

    watched.press("Resume")

    assert site.store.call("EXISTS", "paused") == 0


def clear(site: LiveSite, watched: Watched) -> None:
    go_to_queue(site, watched)

    watched.press("Clear…")
    assert queued_numbers(site.store, QUEUE) == [0, 1, 2]
    watched.confirm()

    wait_until(lambda: queued_numbers(site.store, QUEUE) == [], "the jobs to be deleted")
    watched.page.reload()
    assert "3 jobs were deleted" in watched.page.inner_text("main")


def forget(site: LiveSite, watched: Watched) -> None:
    site.store.call("SADD", site.store.keys.queues, QUEUE)
    watched.open(f"/queues/{QUEUE}")

    watched.press("Remove from the list")

    assert site.store.call("SISMEMBER", site.store.keys.queues, QUEUE) == 0
    assert "not in the list any more" in watched.message()


def delete_job(site: LiveSite, watched: Watched) -> None:
    go_to_queue(site, watched)

    watched.page.locator("input[name=key]").nth(1).check()
    watched.press("Delete…")
    watched.confirm()

    assert queued_numbers(site.store, QUEUE) == [0, 2]


def ask_for_all(verb: str, site: LiveSite, watched: Watched) -> None:
    """All that match are counted first, and nothing is done; then somebody begins it."""
    go_to_queue(site, watched)
    watched.open(f"/queues/{QUEUE}?jid=j1")
    watched.page.locator("details.more summary").click()
    if verb == "move":
        watched.page.locator("input[name=target]").fill("low")

    watched.send_to(f"/queues/{QUEUE}/bulk/{verb}")

    key = site.store.keys.bulk(watched.page.url.rpartition("/")[2])
    wait_until(lambda: site.store.call("HGET", key, "state") == b"counted", "the jobs to be counted")
    assert queued_numbers(site.store, QUEUE) == [0, 1, 2]
    watched.page.reload()
    watched.send_to(f"/bulk/{key.rpartition(':')[2]}/start")
    wait_until(lambda: site.store.call("HGET", key, "state") == b"done", "the bulk action to be done")
    assert (queued_numbers(site.store, QUEUE), queued_numbers(site.store, "low")) == (
        [0, 2],
        [1] if verb == "move" else [],
    )


def export(site: LiveSite, watched: Watched) -> None:
    go_to_queue(site, watched)
    watched.page.locator("input[name=key]").nth(1).check()

    with watched.page.expect_download() as download:
        watched.page.locator(f"main button[formaction='/queues/{QUEUE}/export']").click()

    (line,) = download.value.path().read_text().splitlines()
    assert json.loads(line)["jid"] == "j1"
    assert queued_numbers(site.store, QUEUE) == [0, 1, 2]


STEPS = {
    "queue_pause": pause,
    "queue_resume": resume,
    "queue_clear": clear,
    "queue_forget": forget,
    "queue_delete": delete_job,
    "queue_bulk_delete": partial(ask_for_all, "delete"),
    "queue_bulk_move": partial(ask_for_all, "move"),
    "queue_export_selected": export,
}
