"""Steps on clusters and processes: orders to those that run."""

from __future__ import annotations

import signal
from collections.abc import Callable

from kiqcluster.api import ProcessSet
from kiqcluster.control.stacks import read_stacks
from tests.browser.chromium import Watched
from tests.browser.live import SLOTS, LiveSite
from tests.kit import wait_until

Step = Callable[[LiveSite, Watched], None]


def is_quiet(site: LiveSite, identity: str) -> bool:
    return any(each.is_quiet for each in ProcessSet(store=site.store) if each.identity == identity)


def resuming(step: Step) -> Step:
    """Have everything serve again afterwards."""

    def run(site: LiveSite, watched: Watched) -> None:
        try:
            step(site, watched)
        finally:
            watched.open("/clusters")
            watched.press("Resume")
            wait_until(lambda: not any(is_quiet(site, each) for each in site.identities), "all to serve again")

    return run


# clusters


@resuming
def quiet(site: LiveSite, watched: Watched) -> None:
    watched.open("/clusters")
    watched.page.get_by_label("Lease of the quiet").first.select_option("900")

    watched.press("Quiet")

    document = site.wait_document("a quiet", lambda each: each["quiet_by"])
    assert document["quiet_by"].startswith("web")
    assert 800 < document["lease_remaining"] <= 900
    watched.page.reload()
    assert "quiet by" in watched.page.inner_text("main")


@resuming
def resume(site: LiveSite, watched: Watched) -> None:
    site.cluster.signal(signal.SIGTSTP)
    site.wait_document("a quiet", lambda each: each["quiet_by"])
    watched.open("/clusters")

    watched.press("Resume")

    site.wait_document("the end of the quiet", lambda each: not each["quiet_by"])


def roll(site: LiveSite, watched: Watched) -> None:
    before = site.identities
    watched.open("/clusters")

    watched.press("Roll")

    site.wait_roll("done")
    wait_until(lambda: set(site.identities).isdisjoint(before) and len(site.identities) == SLOTS, "new processes")
    wait_until(site.everybody_is_there, "them to be listed")


def reload(site: LiveSite, watched: Watched) -> None:
    watched.open("/clusters")

    watched.press("Reload")

    site.wait_document("the reload to be done", lambda each: (each["reload"] or {}).get("state") == "done")


def dump(site: LiveSite, watched: Watched) -> None:
    watched.open("/clusters")

    watched.press("Stacks")

    wait_until(lambda: len(read_stacks(site.store, site.identities)) == SLOTS, "the stacks of all processes")
    watched.page.reload()
    assert "MainThread" in (watched.page.locator("main").text_content() or "")


def stop(site: LiveSite, watched: Watched) -> None:
    other = site.run_cluster("other", "-c", "1")
    other.wait_ready(1)
    wait_until(lambda: len(site.cluster_names()) == 2, "the other cluster to be listed")
    name = site.supervisor_of(other)
    watched.open(f"/clusters?q={name}")

    watched.press("Stop…")
    watched.confirm()

    assert other.wait() == 0
    wait_until(lambda: site.cluster_names() == {site.supervisor}, "it to be gone")


# processes


def open_process(site: LiveSite, watched: Watched) -> str:
    """Go from the clusters to the page of a process; return its identity."""
    identity = site.identities[0]
    watched.open("/clusters")
    watched.page.get_by_role("link", name=identity.split(":")[1], exact=True).click()
    watched.page.wait_for_url("**/processes/*")
    return identity


@resuming
def quiet_process(site: LiveSite, watched: Watched) -> None:
    identity = open_process(site, watched)

    watched.press("Quiet")

    wait_until(lambda: is_quiet(site, identity), "it to be quiet")
    assert not is_quiet(site, site.identities[1])


@resuming
def resume_process(site: LiveSite, watched: Watched) -> None:
    identity = site.identities[0]
    next(each for each in ProcessSet(store=site.store) if each.identity == identity).quiet()
    wait_until(lambda: is_quiet(site, identity), "it to be quiet")
    open_process(site, watched)

    watched.press("Resume")

    wait_until(lambda: not is_quiet(site, identity), "it to serve again")


def dump_process(site: LiveSite, watched: Watched) -> None:
    identity = open_process(site, watched)

    watched.press("Stacks")

    wait_until(lambda: identity in read_stacks(site.store, [identity]), "its stacks")


def stop_process(site: LiveSite, watched: Watched) -> None:
    identity = open_process(site, watched)

    watched.press("Stop…")
    watched.confirm()

    wait_until(lambda: identity not in site.identities and site.everybody_is_there(), "another one in its place")


STEPS = {
    "cluster_quiet": quiet,
    "cluster_resume": resume,
    "cluster_roll": roll,
    "cluster_reload": reload,
    "cluster_dump": dump,
    "cluster_stop": stop,
    "process_quiet": quiet_process,
    "process_resume": resume_process,
    "process_dump": dump_process,
    "process_stop": stop_process,
}
