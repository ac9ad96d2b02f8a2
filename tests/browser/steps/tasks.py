"""Steps on tasks."""

from __future__ import annotations

from contextlib import suppress

from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.tasks import Task
from tests.browser.chromium import Watched
from tests.browser.live import LiveSite


def open_task(task: Task, watched: Watched) -> None:
    watched.open("/tasks")
    watched.page.get_by_role("link", name="import").first.click()
    watched.page.wait_for_url("**/tasks/*")


def cancel(site: LiveSite, watched: Watched) -> None:
    with using_setup(Setup(store=site.store)):
        task = Task.create("import", "HandleRow", [[1], [2]], queue="rows")
    open_task(task, watched)
    watched.page.get_by_label("Reason").fill("wrong file")

    watched.press("Cancel…")
    assert not task.status().cancelled_at
    watched.confirm()

    assert task.status().cancelled_at


def close(site: LiveSite, watched: Watched) -> None:
    with suppress(ValueError), Task.open("import", store=site.store) as task:
        task.add("HandleRow", [[1]], queue="rows")
        raise ValueError("its creator died")
    open_task(task, watched)

    watched.press("Close…")
    assert task.status().is_open
    watched.confirm()

    assert not task.status().is_open


STEPS = {"task_cancel": cancel, "task_close": close}
