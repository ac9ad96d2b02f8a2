"""Recycling: a process that has run enough jobs, or grown too large, is replaced; no job is lost, no slot is empty."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from kiqcluster.store import Store
from tests.kit import Cluster, wait_until
from tests.process.stage import (
    Capacity,
    Releases,
    ledger,
    push,
    push_many,
    release,
    restarts,
    slots,
    wait_gone,
    wait_noted,
    wait_only_live,
    wait_settled,
)

RunCluster = Callable[..., Cluster]
Application = Callable[[str], str]

HUNGRY = """
    import time
    from kiqcluster import current_job, job
    from tests.apps.basic import note, stubborn
    from kiqcluster.process.runtime import current_setup

    kept = []

    @job()
    def eat(word, megabytes):
        "The first time it eats, and then waits for the list `release`; later it has had enough."
        note("began", word)
        if current_setup().current_store().call("INCR", f"eaten:{word}") == 1:
            kept.append(bytearray(b"x") * megabytes * 1_000_000)
            while not current_setup().current_store().call("LLEN", "release"):
                time.sleep(0.01)
        note("ended", word)
"""


# max_jobs


def test_a_process_is_replaced_after_max_jobs_and_every_job_runs_once(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "2", "--max-jobs", "20")
    first = cluster.wait_ready(2)

    with Capacity(cluster) as capacity:
        for number in range(60):
            push(store, "nap", f"a{number}", 0.02)
            push(store, "record", f"b{number}", queue="other")
        for slot in first:
            cluster.wait_for("child_replaced", slot=slot, reason="max_jobs")
        wait_until(lambda: len(ledger(store)) == 180, "all jobs to have run")
        wait_gone(*first.values())

    assert len(set(ledger(store))) == 180
    wait_settled(store)
    assert restarts(cluster, "max_jobs", 0) >= 1
    assert restarts(cluster, "max_jobs", 1) >= 1
    assert capacity.fewest_ready == 2
    assert capacity.most_processes <= 3  # one slot at a time


def test_what_runs_in_a_process_that_is_recycled_ends_there(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "-c", "2", "--max-jobs", "5")
    first = cluster.wait_ready()[0]
    push(store, "stubborn", "a")
    push_many(store, "record", [[str(number)] for number in range(10)])
    cluster.wait_for("child_replaced", reason="max_jobs")

    release(store)
    wait_gone(first)

    assert ledger(store).count("began a") == ledger(store).count("ended a") == 1
    wait_only_live(store, cluster.pids()[0])


def test_a_process_goes_on_when_the_one_that_should_replace_it_does_not_boot(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    cluster = releases.run(run_cluster, "default", "-c", "1", "--max-jobs", "5")
    first = cluster.wait_ready()[0]
    releases.deploy("1", "assert 'KIQ_SLOT' not in os.environ")  # in place: another release would wait for a roll
    push_many(store, "record", [[str(number)] for number in range(10)])

    cluster.wait_for("recycle_failed")
    push(store, "release")

    wait_noted(store, "release 1")
    wait_only_live(store, first)
    assert restarts(cluster, "max_jobs") == 0
    assert len(cluster.seen("child_started")) == 2  # it is not tried again at once


# max_rss


GROWS = """
kept = []

@on("ready")
def grow_when_told():
    def grow():
        grow = pathlib.Path(os.environ["GROW"])
        while not grow.exists():
            time.sleep(0.01)
        grow.unlink()  # the next process is thrifty
        kept.append(bytearray(b"x") * 200_000_000)

    threading.Thread(target=grow, daemon=True).start()
"""


def test_a_process_beyond_the_hard_limit_is_replaced_at_once_and_its_job_runs_again(
    run_cluster: RunCluster, store: Store, releases: Releases, tmp_path: Path
) -> None:
    releases.deploy("1", GROWS)
    push(store, "stubborn", "a")
    cluster = releases.run(run_cluster, "default", "-c", "1", KIQ_MAX_RSS_HARD="150", GROW=str(tmp_path / "grow"))
    first = cluster.wait_ready()[0]
    wait_noted(store, "began a")
    (tmp_path / "grow").touch()

    wait_until(lambda: ledger(store).count("began a") > 1, "the job to run again")
    release(store)

    wait_noted(store, "ended a")
    wait_gone(first)
    wait_settled(store)
    assert ledger(store).count("ended a") == 1
    assert ledger(store).count("began a") == 1 + restarts(cluster, "max_rss")
    wait_only_live(store, cluster.pids()[0])
    assert cluster.seen("child_died") == []  # it did as it was told
    assert slots(cluster)[0]["last_death"] is None


@pytest.mark.parametrize("limit", ["KIQ_MAX_RSS", "KIQ_MAX_RSS_HARD"])
def test_a_limit_that_is_too_low_for_any_worker_replaces_none(
    run_cluster: RunCluster, store: Store, limit: str
) -> None:
    cluster = run_cluster("default", "-c", "1", **{limit: "1"})
    first = cluster.wait_ready()[0]

    assert "max_rss" in cluster.wait_for("setting_doubtful")["problem"]

    push(store, "record", "a")
    wait_noted(store, "ran a")
    wait_only_live(store, first)


@pytest.mark.full
def test_a_process_that_stays_beyond_the_soft_limit_is_replaced_and_its_job_ends_first(
    run_cluster: RunCluster, store: Store, application: Application
) -> None:
    cluster = run_cluster("default", "-c", "2", "--max-rss", "150", app=application(HUNGRY))
    first = cluster.wait_ready()[0]
    push(store, "eat", "a", 200)

    cluster.wait_for("child_replaced", reason="max_rss", seconds=40)
    push(store, "stubborn", "b")
    wait_noted(store, "began b")
    release(store)

    wait_gone(first)
    wait_noted(store, "ended b")
    assert sorted(ledger(store)) == ["began a", "began b", "ended a", "ended b"]
    assert restarts(cluster, "max_rss") == 1
    wait_only_live(store, cluster.pids()[0])


@pytest.mark.full
def test_two_processes_beyond_the_hard_limit_do_not_go_together(
    run_cluster: RunCluster, store: Store, application: Application
) -> None:
    """The floor is all but one: where the other is not there, the one that outgrew serves until it is replaced."""
    cluster = run_cluster("default", "other", "-c", "1", app=application(HUNGRY), KIQ_MAX_RSS_HARD="150")
    first = cluster.wait_ready(2)

    with Capacity(cluster) as capacity:
        push(store, "eat", "a", 200)
        push(store, "eat", "b", 200, queue="other")
        for slot in first:
            wait_until(lambda slot=slot: restarts(cluster, "max_rss", slot) == 1, "the slot to be renewed")
        release(store)
        wait_gone(*first.values())
        wait_noted(store, "ended a", "ended b")

    assert capacity.fewest_ready == 1
    assert Counter(ledger(store))["ended a"] == Counter(ledger(store))["ended b"] == 1
    wait_only_live(store, *cluster.pids().values())
