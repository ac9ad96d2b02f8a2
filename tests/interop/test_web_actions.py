"""Every button of Ruby's pages about jobs does what it says on what we wrote, and our cluster goes on from there.

The buttons are those of the pages' own forms (browser.py), with session and token.
"""

from __future__ import annotations

import pytest

from kiqcluster import Client
from kiqcluster.sidekiq.ruby_json import decode
from tests.apps.interop import Echo
from tests.interop.programs import exact
from tests.interop.stage import presses
from tests.interop.values import ALL_KINDS
from tests.kit import wait_until

pytestmark = pytest.mark.ruby

LATER_SECONDS = 3_600


def keys_of(page, *wanted):
    """Return the check boxes of these jobs."""
    return [key for key in page.choices if key.split("-", 1)[1] in wanted]


# queues


@presses("POST /queues/:name")
def test_a_queue_is_deleted_and_comes_back_with_the_next_job(site, browser):
    Echo.set(queue="waiting").perform_bulk([[1], [2]])
    Echo.set(queue="kept").perform_async(3)

    page = browser.press("/queues", "delete", "/queues/waiting")

    assert [row.split()[0] for row in page.rows] == ["kept"]
    assert site.queued("waiting") == []
    assert len(site.queued("kept")) == 1
    Echo.set(queue="waiting").perform_async(4)
    assert [row.split()[:2] for row in browser.see("/queues").rows] == [["kept", "1"], ["waiting", "1"]]


@presses("POST /queues/:name")
def test_a_deleted_queue_is_still_served(site, browser):
    site.wait_ran([Echo.perform_async("before")])

    browser.press("/queues", "delete", "/queues/default")

    jid = Echo.perform_async("after")
    wait_until(lambda: jid in site.ran(), "a job of the deleted queue to run")
    assert site.store.call("SISMEMBER", "queues", "default") == 1


@presses("POST /queues/:name/delete")
def test_one_job_is_deleted_from_its_queue_whatever_its_arguments_are(site, browser):
    before = Echo.set(queue="waiting").perform_async("before")
    strange = Echo.set(queue="waiting", tags=["é"]).perform_async(*ALL_KINDS)
    after = Echo.set(queue="waiting").perform_async("after")
    (bytes_of_it,) = (raw for raw in site.store.call("LRANGE", "queue:waiting", 0, -1) if strange.encode() in raw)

    browser.press("/queues/waiting", "delete", "/queues/waiting/delete", key_val=bytes_of_it.decode())

    assert [payload["jid"] for payload in site.queued("waiting")] == [before, after]


# retries


@presses("POST /retries/:key")
def test_one_retry_runs_at_once(site, browser):
    first, second = site.fail_jobs(2)
    site.mend_jobs()
    (key,) = keys_of(browser.see("/retries"), first)

    browser.press(f"/retries/{key}", "retry")

    site.wait_ran([first])
    assert site.jids("retry") == {second}


@presses("POST /retries/:key")
def test_one_retry_that_fails_again_has_used_up_no_attempt(site, browser):
    (jid,) = site.fail_jobs(1)
    (key,) = keys_of(browser.see("/retries"), jid)

    browser.press(f"/retries/{key}", "retry")

    again = wait_until(lambda: "retried_at" in site.entries("retry").get(jid, {}), "the second failure")
    assert again
    assert site.entries("retry")[jid]["retry_count"] == 0


@presses("POST /retries/:key")
def test_one_retry_is_deleted(site, browser):
    first, second = site.fail_jobs(2)
    (key,) = keys_of(browser.see("/retries"), first)

    browser.press(f"/retries/{key}", "delete")

    assert site.jids("retry") == {second}
    assert site.ran() == site.queued("default") == []


@presses("POST /retries/:key")
def test_one_retry_is_killed_by_its_address_and_keeps_its_bytes(site, browser):
    first, second = site.fail_jobs(2)
    (before,) = (raw for raw in site.store.call("ZRANGE", "retry", 0, -1) if first.encode() in raw)
    (key,) = keys_of(browser.see("/retries"), first)

    browser.post(f"/retries/{key}", [("authenticity_token", browser.token()), ("kill", "Kill")])

    assert site.store.call("ZRANGE", "dead", 0, -1) == [before]
    assert site.jids("retry") == {second}


@presses("POST /retries")
@pytest.mark.parametrize("button", ["retry", "delete", "kill"])
def test_the_chosen_retries_go_and_the_others_stay(button, site, browser):
    every = site.fail_jobs(6)
    chosen, others = every[:3], set(every[3:])
    site.mend_jobs()

    browser.press("/retries", button, "/retries", chosen=keys_of(browser.see("/retries"), *chosen))

    assert site.jids("retry") == others
    assert site.jids("dead") == (set(chosen) if button == "kill" else set())
    site.wait_ran(chosen if button == "retry" else [])


@presses("POST /retries/all/retry")
def test_all_retries_run_at_once(site, browser):
    every = site.fail_jobs(30)  # more than a page
    site.mend_jobs()

    browser.press("/retries", "retry", "/retries/all/retry")

    site.wait_ran(every)
    assert site.jids("retry") == set()


@presses("POST /retries/all/delete")
def test_all_retries_are_deleted(site, browser):
    site.fail_jobs(30)

    browser.press("/retries", "delete", "/retries/all/delete")

    assert site.jids("retry") == site.jids("dead") == set()
    assert site.ran() == site.queued("default") == []


@presses("POST /retries/all/kill")
def test_all_retries_are_killed(site, browser):
    every = site.fail_jobs(30)

    browser.press("/retries", "kill", "/retries/all/kill")

    assert site.jids("retry") == set()
    assert site.jids("dead") == set(every)


def test_the_second_page_of_retries_is_where_the_reader_stays(site, browser):
    site.fail_jobs(30)
    page = browser.see("/retries?page=2")

    after = browser.press("/retries?page=2", "delete", "/retries", chosen=page.choices[:1])

    assert after.path.endswith("/retries?page=2")
    assert len(site.jids("retry")) == 29


# scheduled


@presses("POST /scheduled/:key")
def test_one_scheduled_job_runs_at_once(site, browser):
    first, second = (Echo.perform_in(LATER_SECONDS, *ALL_KINDS), Echo.perform_in(LATER_SECONDS, "x"))
    (key,) = keys_of(browser.see("/scheduled"), first)

    browser.press(f"/scheduled/{key}", "add_to_queue")

    site.wait_ran([first])
    assert site.jids("schedule") == {second}
    (echo,) = site.store.call("LRANGE", "echoes", 0, -1)
    assert exact(decode(echo)["args"]) == exact(ALL_KINDS)


@presses("POST /scheduled/:key")
def test_one_scheduled_job_is_deleted(site, browser):
    first, second = (Echo.perform_in(LATER_SECONDS, *ALL_KINDS), Echo.perform_in(LATER_SECONDS, "x"))
    (key,) = keys_of(browser.see("/scheduled"), first)

    browser.press(f"/scheduled/{key}", "delete")

    assert site.jids("schedule") == {second}


@presses("POST /scheduled")
@pytest.mark.parametrize("button", ["add_to_queue", "delete"])
def test_the_chosen_scheduled_jobs_go_and_the_others_stay(button, site, browser):
    at = 4_000_000_000.5  # the same for all: Ruby tells them apart by their jids
    every = Client().push_bulk({"class": Echo, "args": [[number] for number in range(6)], "at": at})
    chosen = every[:3]

    browser.press("/scheduled", button, "/scheduled", chosen=keys_of(browser.see("/scheduled"), *chosen))

    assert site.jids("schedule") == set(every[3:])
    site.wait_ran(chosen if button == "add_to_queue" else [])


# morgue


@presses("POST /morgue/:key")
def test_one_dead_job_is_revived(site, browser):
    first, second = site.kill_jobs(2)
    site.mend_jobs()
    (key,) = keys_of(browser.see("/morgue"), first)

    browser.press(f"/morgue/{key}", "retry")

    site.wait_ran([first])
    assert site.jids("dead") == {second}


@presses("POST /morgue/:key")
def test_one_dead_job_is_deleted(site, browser):
    first, second = site.kill_jobs(2)
    (key,) = keys_of(browser.see("/morgue"), first)

    browser.press(f"/morgue/{key}", "delete")

    assert site.jids("dead") == {second}


@presses("POST /morgue")
@pytest.mark.parametrize("button", ["retry", "delete"])
def test_the_chosen_dead_jobs_go_and_the_others_stay(button, site, browser):
    every = site.kill_jobs(6)
    chosen, others = every[:3], set(every[3:])
    site.mend_jobs()

    browser.press("/morgue", button, "/morgue", chosen=keys_of(browser.see("/morgue"), *chosen))

    assert site.jids("dead") == others
    site.wait_ran(chosen if button == "retry" else [])


@presses("POST /morgue/all/retry")
def test_all_dead_jobs_are_revived(site, browser):
    every = site.kill_jobs(30)
    site.mend_jobs()

    browser.press("/morgue", "retry", "/morgue/all/retry")

    site.wait_ran(every)
    assert site.jids("dead") == set()


@presses("POST /morgue/all/delete")
def test_all_dead_jobs_are_deleted(site, browser):
    site.kill_jobs(30)

    browser.press("/morgue", "delete", "/morgue/all/delete")

    assert site.jids("dead") == set()
    assert site.ran() == site.queued("default") == []


def test_a_dead_job_that_is_revived_too_early_is_buried_again(site, browser):
    (jid,) = site.kill_jobs(1)
    before = site.entries("dead")[jid]
    (key,) = keys_of(browser.see("/morgue"), jid)

    browser.press(f"/morgue/{key}", "retry")

    wait_until(lambda: site.entries("dead").get(jid, {}).get("retried_at"), "the second death")
    after = site.entries("dead")[jid]
    assert after["failed_at"] == before["failed_at"] <= after["retried_at"]


# what is refused, or asks for nothing


@pytest.mark.parametrize("fields", [[], [("authenticity_token", "nonsense")], [("authenticity_token", "A" * 88)]])
def test_without_its_token_no_button_does_anything(fields, site, browser):
    site.fail_jobs(1)

    page = browser.post("/retries/all/delete", [*fields, ("delete", "Delete All")])

    assert page.status == 403
    assert len(site.jids("retry")) == 1


@pytest.mark.parametrize("name", ["retries", "scheduled", "morgue"])
@pytest.mark.parametrize("key", ["1.5-nobody", "nonsense", "0"])
def test_a_button_for_what_is_gone_changes_nothing(name, key, site, browser):
    site.fail_jobs(1)
    site.kill_jobs(1)
    Echo.perform_in(LATER_SECONDS, "x")

    for button in ("retry", "delete", "kill", "add_to_queue"):
        page = browser.post(f"/{name}/{key}", [("authenticity_token", browser.token()), (button, "1")])
        assert page.status == 302

    assert [len(site.jids(each)) for each in ("retry", "schedule", "dead")] == [1, 1, 1]


@pytest.mark.parametrize("name", ["retries", "scheduled", "morgue"])
def test_a_button_without_a_choice_changes_nothing(name, site, browser):
    site.fail_jobs(1)
    site.kill_jobs(1)
    Echo.perform_in(LATER_SECONDS, "x")

    browser.press(f"/{name}", "delete", f"/{name}")

    assert [len(site.jids(each)) for each in ("retry", "schedule", "dead")] == [1, 1, 1]
