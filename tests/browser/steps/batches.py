"""Steps on batches."""

from __future__ import annotations

from contextlib import suppress

from kiqcluster.batches import Batch
from kiqcluster.process.runtime import Setup, using_setup
from tests.browser.chromium import Watched
from tests.browser.live import LiveSite


def open_batch(batch: Batch, watched: Watched) -> None:
    watched.open("/batches")
    watched.page.get_by_role("link", name="import").first.click()
    watched.page.wait_for_url("**/batches/*")


def cancel(site: LiveSite, watched: Watched) -> None:
    with using_setup(Setup(store=site.store)):
        batch = Batch.create("import", "HandleRow", [[1], [2]], queue="rows")
    open_batch(batch, watched)
    watched.page.get_by_label("Reason").fill("wrong file")

    watched.press("Cancel…")
    assert not batch.status().cancelled_at
    watched.confirm()

    assert batch.status().cancelled_at


def close(site: LiveSite, watched: Watched) -> None:
    with suppress(ValueError), Batch.open("import", store=site.store) as batch:
        batch.add("HandleRow", [[1]], queue="rows")
        raise ValueError("its creator died")
    open_batch(batch, watched)

    watched.press("Close…")
    assert batch.status().is_open
    watched.confirm()

    assert not batch.status().is_open


STEPS = {"batch_cancel": cancel, "batch_close": close}
