"""Bulk actions on a million dead jobs, or a long queue: killed half-way, gone on with elsewhere, exact; also pages."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from html import unescape
from typing import Any

import pytest

from kiqcluster.api import DeadSet, Queue
from kiqcluster.api.bulk import BulkAction, BulkRunner, Selection, ask, read_bulk, start
from kiqcluster.api.bulk.sources import MAX_DISTANCE_JOBS
from kiqcluster.api.bulk.verbs import Target
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store
from tests.chaos.scale import FULL, sized
from tests.kit import ROOT, RedisServer, wait_until
from tests.redis.web.site import CountingStore, Site
from tests.stored_jobs import add_entries, job, push_payloads

# In the short form: process/test_kiqctl_jobs.py kills a migration, redis/test_bulk_slices.py and
# conformance/test_bulk_scripts.py hold each step.
pytestmark = pytest.mark.full

ENTRIES = sized(20_000, 1_000_000)
KILLS = sized(2, 5)  # of processes that work on it
MEANT = ENTRIES // 2
QUEUED = sized(6_000, 200_000)  # jobs of a queue
RED = QUEUED // 2
MANY_FAR = max(0, RED - 2 * MAX_DISTANCE_JOBS)  # of them, about so many are too far from both ends
FETCHED = 20  # by others, after each kill
SECONDS = sized(120, 1_800)  # for all of it
FIRST_PAGE_SECONDS = 0.3
MAX_SCRIPT_SECONDS = (
    0.005  # of Redis, on average: single ones wait for a core, too, on a machine that does other things
)

Report = Callable[[Mapping[str, Any]], None]
WORK = """
import sys
from kiqcluster import Store
from kiqcluster.api.bulk import BulkRunner
runner = BulkRunner()
runner.run(Store(sys.argv[1]), sys.argv[2])
runner.wait(3600)
"""


@pytest.fixture
def filled(own_server: RedisServer) -> Iterator[RedisServer]:
    """A server with many dead jobs, each second one of which is Red, and one is Rare, the oldest."""
    store = own_server.store()
    more = {"error_class": "Timeout", "error_message": "x" * 100, "failed_at": 1.5, "retry_count": 3}
    for begin in range(1, ENTRIES, 10_000):
        numbers = range(begin, min(ENTRIES, begin + 10_000))
        names = {0: "Blue", 1: "Red"}
        add_entries(store, "dead", *[(float(at), job(at, **{"class": names[at % 2], **more})) for at in numbers])
    add_entries(store, "dead", (0.0, job(0, **{"class": "Rare", **more})))
    with using_setup(Setup(store=store)):
        yield own_server
    store.close()


def found(store: Store, identifier: str) -> BulkAction:
    action = read_bulk(store, identifier)
    assert action is not None
    return action


def is_done(store: Store, identifier: str, count: int) -> bool:
    return found(store, identifier).counts.done >= count


def evaluations(store: Store) -> tuple[int, float]:
    """Return how many scripts ran, and the seconds that they took."""
    told = re.search(rb"cmdstat_evalsha:calls=(\d+),usec=(\d+)", store.call("INFO", "commandstats"))
    return (int(told[1]), int(told[2]) / 1e6) if told else (0, 0.0)


def test_counts_are_exact_although_the_processes_are_killed_that_work_on_it(
    filled: RedisServer, report: Report
) -> None:
    store = filled.store()
    identifier = ask(store, DeadSet, "retry", Selection(name="Red"))
    runner = BulkRunner()
    began = time.monotonic()
    runner.run(store, identifier)
    assert runner.wait(SECONDS)
    assert found(store, identifier).counts.count == MEANT
    counted = time.monotonic() - began
    assert start(store, identifier)
    store.call("CONFIG", "RESETSTAT")

    began = time.monotonic()
    for kill in range(KILLS):
        process = subprocess.Popen([sys.executable, "-c", WORK, filled.url, identifier], cwd=ROOT)
        wait_until(partial(is_done, store, identifier, MEANT * (kill + 1) // (KILLS + 2)), "a part", seconds=SECONDS)
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        store.call("HSET", store.keys.bulk(identifier), "until", 1)  # as if its lease had ended
    runner.run(store, identifier)
    assert runner.wait(SECONDS)
    moved = time.monotonic() - began

    done, (calls, seconds) = found(store, identifier), evaluations(store)
    report({"entries": ENTRIES, "counted s": round(counted, 1), "moved": MEANT, "moved s": round(moved, 1)})
    report({"scripts": calls, "ms each": round(1e3 * seconds / calls, 2)})
    assert done.state == "done"
    assert (done.counts.found, done.counts.done, done.counts.gone, done.counts.failed) == (MEANT, MEANT, 0, 0)
    assert len(DeadSet(store=store)) == ENTRIES - MEANT
    assert len(Queue("default", store=store)) == MEANT
    assert seconds / calls < MAX_SCRIPT_SECONDS
    store.close()


@pytest.mark.parametrize("verb", ["move", "delete"])
def test_no_job_of_a_queue_is_lost_or_doubled_although_the_processes_are_killed(
    own_server: RedisServer, report: Report, verb: str
) -> None:
    store = own_server.store()
    push_payloads(store, [job(at, **{"class": "Red" if at % 2 else "Blue"}) for at in range(QUEUED)], "mailers")
    fetched: list[bytes] = []
    with using_setup(Setup(store=store)):
        mailers, target = Queue("mailers", store=store), Target(queue="low")
        identifier = ask(store, mailers, verb, Selection(name="Red"), target)
        runner = BulkRunner()
        runner.run(store, identifier)
        assert runner.wait(SECONDS)
        assert found(store, identifier).counts.count == RED
        assert start(store, identifier)

        for kill in range(KILLS):
            process = subprocess.Popen([sys.executable, "-c", WORK, own_server.url, identifier], cwd=ROOT)
            part = (RED - MANY_FAR) * (kill + 1) // (KILLS + 2)
            wait_until(partial(is_done, store, identifier, part), "a part", seconds=SECONDS)
            process.send_signal(signal.SIGKILL)
            process.wait(10)
            assert found(store, identifier).state == "running", "it has ended before it was killed"
            fetched += store.call("RPOP", store.keys.queue("mailers"), FETCHED)
            store.call("HSET", store.keys.bulk(identifier), "until", 1)  # as if its lease had ended
        runner.run(store, identifier)
        assert runner.wait(SECONDS)

    action, left, moved = found(store, identifier), all_of(store, "mailers"), all_of(store, "low")
    counts = action.counts
    report({"queued": QUEUED, verb: counts.done, "gone": counts.gone, "too far": counts.failed})
    assert action.state == "done"
    assert counts.found == counts.done + counts.gone + counts.failed
    assert counts.done + counts.failed + sum(map(is_red, fetched)) == RED
    assert sum(map(is_red, left)) == counts.failed
    assert (counts.failed > 0) == (MANY_FAR > 0)
    assert len(moved) == (counts.done if verb == "move" else 0)
    kept = Counter(json.loads(raw)["args"][0] for raw in (*fetched, *left, *moved))
    assert set(kept.values()) == {1}, "a job is there twice"
    assert len(kept) == (QUEUED if verb == "move" else QUEUED - counts.done), "a job is lost"
    store.close()


def is_red(raw: bytes) -> bool:
    return b'"Red"' in raw


def all_of(store: Store, queue: str) -> list[bytes]:
    """Return the jobs of a queue, also those that are handed to waiting processes."""
    lists: list[list[bytes]] = store.pipeline(
        [("LRANGE", key, 0, -1) for key in (store.keys.queue(queue), store.keys.wake(queue))]
    )
    return [raw for some in lists for raw in some]


def test_pages_of_a_filter_come_at_once_and_go_on_to_the_end(filled: RedisServer, report: Report) -> None:
    store = CountingStore(filled.url)
    site = Site(store)
    site.get("/dead?class=Rare")  # by now Redis knows the script
    times = {}
    for path in ("/dead", "/dead?class=Red", "/dead?class=Rare", "/dead?error=nothing", "/dead?args=-1", "/jobs/j0"):
        store.round_trips = 0
        began = time.monotonic()
        assert site.get(path).status_code == 200
        times[path] = time.monotonic() - began
        assert store.round_trips <= 6, path

    text, rows, steps, began = site.get("/dead?class=Rare").text, 0, 0, time.monotonic()
    while True:
        rows += text.count('name="key"')
        more = re.search(r'data-going hx-get="([^"]+)"', text)
        if more is None:
            break
        text, steps = site.fragment(unescape(more[1]), "more").text, steps + 1
    whole = time.monotonic() - began

    report({"entries": ENTRIES, "to the end s": round(whole, 1)})
    report({f"{path} ms": round(1e3 * each) for path, each in times.items()})
    assert rows == 1
    assert steps > (20 if FULL else 0) or ENTRIES < 50_000
    assert max(times.values()) < FIRST_PAGE_SECONDS
    store.close()
