"""Steps on the sets, one for each verb of each set: on what is selected, on all that match, and exports of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from kiqcluster.web.views.set_kinds import SETS, VERBS, SetKind
from tests.browser.chromium import Watched
from tests.browser.live import LiveSite
from tests.kit import wait_until
from tests.stored_jobs import entries, entry_numbers, fill_queue, fill_set, queued_numbers

LATER = 4_000_000_000.0  # epoch seconds; no poller takes these jobs
BEFORE = 1_795_000_000.0  # of those that have died; what is marked later than a bulk action is not meant by it
COUNT, SELECTED = 4, 2


def key_of(kind: SetKind, site: LiveSite) -> str:
    return kind.job_set(store=site.store).key


def open_set(kind: SetKind, site: LiveSite, watched: Watched, query: str = "") -> None:
    fill_set(site.store, key_of(kind, site), range(COUNT), LATER if kind.is_ahead else BEFORE)
    watched.open(f"/{kind.name}{query}")


def select(kind: SetKind, site: LiveSite, watched: Watched) -> None:
    open_set(kind, site, watched)
    boxes = watched.page.locator("input[name=key]")
    for number in range(SELECTED):
        boxes.nth(number).check()


def fill_in(verb: str, watched: Watched) -> None:
    """Open the part of the form that is folded, and say where or when."""
    if VERBS[verb].needs:
        watched.page.locator("details.more summary").click()
        watched.page.locator(f"input[name={VERBS[verb].needs}]").fill(
            {"when": "15m", "target": "mailers"}[VERBS[verb].needs]
        )


def check(kind: SetKind, verb: str, site: LiveSite, count: int) -> None:
    """Hold that so many jobs went where the verb puts them, and the others stayed."""
    left = entries(site.store, key_of(kind, site))
    stay = COUNT if verb in ("move", "reschedule") else COUNT - count
    assert len(left) == stay
    if verb in ("retry", "enqueue"):
        assert sorted([*queued_numbers(site.store), *entry_numbers(site.store, key_of(kind, site))]) == [*range(COUNT)]
    elif verb == "kill":
        assert len(entry_numbers(site.store, "dead")) == count
    elif verb == "move":
        assert sum(json.loads(raw)["queue"] == "mailers" for raw in left) == count
    elif verb == "reschedule":
        assert sum(score < LATER for score in left.values()) == count
    else:
        assert queued_numbers(site.store) == []


def do_selected(kind: SetKind, verb: str, site: LiveSite, watched: Watched) -> None:
    select(kind, site, watched)
    fill_in(verb, watched)

    watched.send_to(f"/{kind.name}/{verb}")
    if VERBS[verb].asks:
        check(kind, verb, site, 0)
        watched.confirm()

    check(kind, verb, site, SELECTED)


def ask_for_all(kind: SetKind, verb: str, site: LiveSite, watched: Watched) -> None:
    """All that match are counted first, and nothing is done."""
    open_set(kind, site, watched, "?class=Job")
    watched.page.locator("details.more summary").click()
    if needs := VERBS[verb].needs:
        watched.page.locator(f"input[name={needs}]").fill({"when": "15m", "target": "mailers"}[needs])

    watched.send_to(f"/{kind.name}/bulk/{verb}")

    wait_counted(site, watched)
    assert int(site.store.call("HGET", site.store.keys.bulk(bulk_id(watched)), "found")) == COUNT
    check(kind, verb, site, 0)


def bulk_id(watched: Watched) -> str:
    return watched.page.url.rpartition("/")[2]


def bulk_state(site: LiveSite, watched: Watched) -> str:
    raw: bytes = site.store.call("HGET", site.store.keys.bulk(bulk_id(watched)), "state") or b""
    return raw.decode()


def wait_counted(site: LiveSite, watched: Watched) -> None:
    wait_until(lambda: bulk_state(site, watched) == "counted", "the jobs to be counted")
    watched.page.reload()


def begin_bulk(site: LiveSite, watched: Watched) -> None:
    ask_for_all(SETS[2], "retry", site, watched)

    watched.send_to(f"/bulk/{bulk_id(watched)}/start")

    wait_until(lambda: bulk_state(site, watched) == "done", "the bulk action to be done")
    check(SETS[2], "retry", site, COUNT)


def cancel_bulk(site: LiveSite, watched: Watched) -> None:
    ask_for_all(SETS[2], "delete", site, watched)

    watched.send_to(f"/bulk/{bulk_id(watched)}/cancel")

    assert bulk_state(site, watched) == "cancelled"
    check(SETS[2], "delete", site, 0)


def resume_bulk(site: LiveSite, watched: Watched) -> None:
    """One whose process has failed goes on where it was."""
    ask_for_all(SETS[2], "retry", site, watched)
    site.store.call("HSET", site.store.keys.bulk(bulk_id(watched)), "state", "failed", "started", "1", "error", "x")
    watched.page.reload()

    watched.send_to(f"/bulk/{bulk_id(watched)}/resume")

    wait_until(lambda: bulk_state(site, watched) == "done", "the bulk action to be done")
    check(SETS[2], "retry", site, COUNT)


def export(kind: SetKind, site: LiveSite, watched: Watched) -> None:
    select(kind, site, watched)

    with watched.page.expect_download() as download:
        watched.page.locator(f"main button[formaction='/{kind.name}/export']").click()

    lines = download.value.path().read_text().splitlines()
    assert len(lines) == SELECTED
    assert all(json.loads(line) for line in lines)
    check(kind, "delete", site, 0)


def move_queued(site: LiveSite, watched: Watched) -> None:
    fill_queue(site.store, range(3), "mailers")
    watched.open("/queues/mailers")
    watched.page.locator("input[name=key]").nth(1).check()
    watched.page.locator("details.more summary").click()
    watched.page.locator("input[name=target]").fill("low")

    watched.send_to("/queues/mailers/move")

    assert (queued_numbers(site.store, "mailers"), queued_numbers(site.store, "low")) == ([0, 2], [1])


def cancel_job(site: LiveSite, watched: Watched) -> None:
    fill_queue(site.store, range(3), "mailers")
    watched.open("/jobs/j1")

    watched.press("Cancel the job…")
    assert queued_numbers(site.store, "mailers") == [0, 1, 2]
    watched.confirm()

    assert queued_numbers(site.store, "mailers") == [0, 2]


EACH = [(kind, verb) for kind in SETS for verb in kind.verbs]
STEPS: dict[str, Callable[[LiveSite, Watched], None]] = {
    **{f"{kind.name}_{verb}": partial(do_selected, kind, verb) for kind, verb in EACH},
    **{f"{kind.name}_bulk_{verb}": partial(ask_for_all, kind, verb) for kind, verb in EACH},
    **{f"{kind.name}_export_selected": partial(export, kind) for kind in SETS},
    "bulk_start": begin_bulk,
    "bulk_cancel": cancel_bulk,
    "bulk_resume": resume_bulk,
    "queue_move": move_queued,
    "job_cancel": cancel_job,
}
