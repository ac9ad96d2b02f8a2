"""The buttons of Ruby's busy page reach our workers, and those of no other."""

from __future__ import annotations

import pytest

from tests.apps.interop import Echo
from tests.interop.stage import AT_ONCE_SECONDS, presses
from tests.kit import is_alive, wait_until

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

PROCESSES = """
Sidekiq::ProcessSet.new.to_h { |each| [each.queues.first, [each.identity, each.stopping?, each["pid"]]] }
"""


@pytest.fixture
def look(stage, ruby):
    """Start slots for `default` and `low`; return what Ruby sees of them: queue → identity, quiet, pid."""
    cluster = stage.run_cluster("default", "low", "-c", "1")
    cluster.wait_ready(2)
    wait_until(lambda: len(ruby(PROCESSES)) == 2, "both processes to register")
    return lambda: ruby(PROCESSES)


@presses("POST /busy")
def test_quiet_is_for_the_process_beside_the_button(stage, look, browser):
    identity, _, _ = look()["default"]

    browser.press("/busy", "quiet", identity=identity)

    wait_until(lambda: look()["default"][1], "quiet to show", seconds=AT_ONCE_SECONDS)
    assert look()["low"][1] is False
    Echo.perform_async("kept")
    stage.wait_ran([Echo.set(queue="low").perform_async("runs")])
    page = browser.see("/busy")
    assert sum("quiet" in row for row in page.rows) == 1
    page.form("stop", identity=identity)
    with pytest.raises(pytest.fail.Exception):  # who is quiet has no such button any more
        page.form("quiet", identity=identity)


@presses("POST /busy")
def test_stop_is_for_the_process_beside_the_button(stage, look, browser):
    identity, _, pid = look()["default"]
    other = look()["low"][2]

    browser.press("/busy", "stop", identity=identity)

    wait_until(
        lambda: look().get("default", [identity])[0] != identity, "a replacement to register", seconds=AT_ONCE_SECONDS
    )
    assert not is_alive(pid)
    assert look()["low"][2] == other
    stage.wait_ran([Echo.perform_async("after")])


@presses("POST /busy")
def test_quiet_all_is_for_every_process(stage, look, browser):
    browser.press("/busy", "quiet", identity=None)

    wait_until(lambda: all(quiet for _, quiet, _ in look().values()), "both to be quiet", seconds=AT_ONCE_SECONDS)
    Echo.perform_async("kept")
    Echo.set(queue="low").perform_async("kept")
    wait_until(
        lambda: stage.store.call("LLEN", "queue:default") == stage.store.call("LLEN", "queue:low") == 1, "both to wait"
    )
    assert stage.ran() == []


@presses("POST /busy")
def test_stop_all_has_every_process_replaced(stage, look, browser):
    before = {pid for _, _, pid in look().values()}

    browser.press("/busy", "stop", identity=None)

    wait_until(
        lambda: len(look()) == 2 and before.isdisjoint(pid for _, _, pid in look().values()), "two new processes"
    )
    assert not any(is_alive(pid) for pid in before)
    stage.wait_ran([Echo.perform_async("x"), Echo.set(queue="low").perform_async("y")])
