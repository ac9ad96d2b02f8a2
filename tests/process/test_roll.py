"""Rolling restarts: a process takes a slot only once it works, one slot at a time, and whoever served finishes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from kiqcluster.clock import SystemClock
from kiqcluster.control import control_messages
from kiqcluster.control.control_messages import Message
from kiqcluster.store import Store
from tests.kit import ROOT, Cluster, RedisServer, is_alive, wait_until
from tests.kit import cluster as run
from tests.process.stage import (
    Capacity,
    Releases,
    dead,
    holders,
    identities,
    ledger,
    metric,
    occupy,
    push,
    push_many,
    queued,
    release,
    restarts,
    wait_children,
    wait_gone,
    wait_noted,
    wait_only_live,
    wait_roll,
    wait_settled,
    wait_told,
    words,
)

RunCluster = Callable[..., Cluster]


def roll(cluster: Cluster, count: int = 1) -> None:
    """Send USR2 and wait for its end."""
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done", count=count)


# it works


def test_a_roll_says_what_of_the_new_configuration_it_leaves_alone(
    store: Store, redis_server: RedisServer, releases: Releases
) -> None:
    def configure(*lines: str) -> None:
        (releases.current / "kiqcluster.toml").write_text("\n".join(['require = ["shop"]', *lines]))

    configure('groups = ["default"]')
    environ = {"PYTHONPATH": str(ROOT), "PWD": str(releases.current)}
    with run("--redis", redis_server.url, cwd=releases.current, environ=environ) as cluster:
        cluster.wait_ready()
        releases.deploy("2")
        configure('groups = ["default", "other"]', "max_retries = 3", 'log_format = "json"', 'tag = "x"')

        roll(cluster)

        shown = wait_told(store, "what waits", lambda each: each["reload_needed"])
        assert shown["reload_needed"] == "groups, tag, max_retries"
        assert shown["restart_needed"] == ""  # a flag says how it logs, and wins
        assert len(cluster.pids()) == 1
        cluster.signal(signal.SIGHUP)
        assert cluster.wait_for("reloaded")["added"] == 1
        cluster.wait_ready(2)
        wait_told(store, "nothing to wait for a reload", lambda each: not each["reload_needed"])
        configure('groups = ["default", "other"]', "max_retries = 3", 'tag = "x"', 'control = "control.sock"')
        roll(cluster, 2)
        assert (
            "control"
            in wait_told(store, "a restart to be needed", lambda each: each["restart_needed"])["restart_needed"]
        )


def test_a_roll_replaces_every_process_by_one_of_the_new_release(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    cluster = releases.run(run_cluster, "default", "other", "-c", "1")
    before = cluster.wait_ready(2)
    releases.deploy("2")

    with Capacity(cluster) as capacity:
        roll(cluster)

    after = cluster.pids()
    assert set(before.values()).isdisjoint(after.values())
    assert wait_roll(store, "done")["done"] == wait_roll(store, "done")["of"] == 2
    wait_gone(*before.values())
    wait_only_live(store, *after.values())
    wait_children(cluster, *after.values())
    assert [restarts(cluster, "rolling", slot) for slot in (0, 1)] == [1, 1]
    push(store, "release")
    push(store, "release", queue="other")
    wait_until(lambda: ledger(store) == ["release 2", "release 2"], "the new release to run both")
    assert capacity.looks > 0
    assert capacity.fewest_ready == 2
    assert capacity.most_processes <= 3


def test_what_the_old_process_runs_ends_there_while_the_new_one_serves(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    before = occupy(cluster, store, 2)

    cluster.signal(signal.SIGUSR2)
    push(store, "nap", "b", 0.5)

    wait_noted(store, "ended b")  # in the same slot
    assert is_alive(before[0])
    assert cluster.seen("child_started", slot=1)[1:] == []  # the next slot waits for this one
    release(store)
    cluster.wait_for("roll_done")
    assert ledger(store) == ["began a", "began b", "ended b", "ended a"]
    wait_only_live(store, *cluster.pids().values())


def test_what_runs_longer_than_the_timeout_is_put_back_and_the_new_process_runs_it(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "-c", "1", "-t", "0.2")
    occupy(cluster, store)

    roll(cluster)

    wait_until(lambda: ledger(store) == ["began a", "began a"], "the job to run again")
    release(store)
    wait_noted(store, "ended a")
    wait_settled(store)
    assert ledger(store) == ["began a", "began a", "ended a"]
    assert dead(store) == []


def test_counters_do_not_go_back_while_two_processes_share_a_slot(run_cluster: RunCluster, store: Store) -> None:
    done = 'sidekiq_jobs_completion_seconds_count{job_status="done",queue="default",worker="record"}'
    cluster = run_cluster("default", "-c", "2")
    cluster.wait_ready()
    push_many(store, "record", [[str(number)] for number in range(7)])
    wait_until(lambda: metric(cluster, done) == 7, "seven jobs to be counted")
    push(store, "stubborn", "a")
    wait_noted(store, "began a")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced")
    push_many(store, "record", [[f"later {number}"] for number in range(5)])  # for the new one, beside the old
    wait_until(lambda: metric(cluster, done) == 12, "twelve jobs to be counted")
    release(store)
    cluster.wait_for("roll_done")

    assert metric(cluster, done) == 12


def test_a_roll_that_is_asked_for_by_message_is_found_by_its_id_and_begun_once(
    run_cluster: RunCluster, store: Store
) -> None:
    cluster = run_cluster("default", "-c", "1")
    first = cluster.wait_ready()[0]
    for _ in range(2):
        control_messages.send(store, *identities(store), Message("roll", id="deploy 7"))

    began = SystemClock.now()
    report = dict(wait_roll(store, "done"))
    assert began - 60 < report.pop("ended_at") <= SystemClock.now()
    assert report == {"id": "deploy 7", "state": "done", "done": 1, "of": 1, "error": ""}

    assert len(cluster.seen("roll_started")) == 1
    assert cluster.pids()[0] != first


# quiet


@pytest.mark.parametrize("source", ["", "raise RuntimeError('no database')", "assert 'KIQ_SLOT' not in os.environ"])
def test_a_quiet_ends_with_the_roll_also_when_it_fails(
    run_cluster: RunCluster, store: Store, releases: Releases, source: str
) -> None:
    cluster = releases.run(run_cluster, "default", "other", "-c", "1")
    cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    push(store, "record", "a")
    push(store, "record", "b", queue="other")
    releases.deploy("2", source)

    cluster.signal(signal.SIGUSR2)

    wait_noted(store, "ran a", "ran b")
    cluster.wait_for("cluster_resumed")
    wait_told(store, "the quiet to be over", lambda each: not each["quiet_by"])
    assert metric(cluster, "kiqcluster_quiet") == 0


def test_a_replacement_serves_while_what_it_replaces_was_quiet(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    occupy(cluster, store, 2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    push(store, "record", "b")
    push(store, "record", "c", queue="other")

    cluster.signal(signal.SIGUSR2)

    wait_noted(store, "ran b")
    assert metric(cluster, "kiqcluster_quiet") == 1  # the old process of this slot is not done yet
    wait_until(lambda: words(queued(store, "other")) == ["c"], "the other slot to stay quiet")
    release(store)
    wait_noted(store, "ran c")


def test_a_quiet_that_begins_during_a_roll_holds_for_all_and_outlasts_it(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    occupy(cluster, store, 2)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced", slot=0)

    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("cluster_quiet")
    release(store)
    cluster.wait_for("roll_done")
    push(store, "record", "b")
    push(store, "record", "c", queue="other")

    assert metric(cluster, 'kiqcluster_children{state="quiet"}') == 2
    wait_until(lambda: words(queued(store)) == ["b"] and words(queued(store, "other")) == ["c"], "the jobs to stay")
    cluster.signal(signal.SIGCONT)
    wait_noted(store, "ran b", "ran c")


# what comes between


def test_a_second_usr2_begins_again_and_nothing_of_the_first_is_left(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    before = cluster.wait_ready(2)
    cluster.signal(signal.SIGUSR2)
    dropped = cluster.wait_for("child_started", slot=0, count=2)["child"]

    roll(cluster)

    after = cluster.pids()
    assert set(after.values()).isdisjoint({*before.values(), dropped})
    wait_gone(*before.values(), dropped)
    wait_only_live(store, *after.values())
    wait_children(cluster, *after.values())
    assert len(cluster.seen("roll_started")) == 2
    assert wait_roll(store, "done")["of"] == 2
    rolls = [metric(cluster, f'kiqcluster_rolls_total{{result="{each}"}}') for each in ("done", "failed", "superseded")]
    assert rolls == [1, 0, 1]


def test_a_roll_that_comes_while_another_asks_for_the_release_is_no_failure_of_that(
    run_cluster: RunCluster, releases: Releases
) -> None:
    gate = releases.current.parent / "go"
    cluster = releases.run(run_cluster, "default", "-c", "1")
    cluster.wait_ready()
    releases.deploy("2", "while not pathlib.Path('../../go').exists(): time.sleep(0.01)")
    for count in (1, 2):
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_started", count=count)

    gate.touch()
    cluster.wait_for("roll_done")

    assert cluster.seen("roll_superseded")
    assert not cluster.seen("roll_failed")


def test_a_successor_that_is_given_up_once_it_runs_jobs_finishes_them(
    run_cluster: RunCluster, store: Store, application: Callable[[str], str]
) -> None:
    path = application(
        """
        import time
        from kiqcluster import on
        from kiqcluster.process.runtime import current_setup

        @on("ready")
        def hold_the_second_back():  # it fetches already, and its main thread does not beat yet
            store = current_setup().current_store()
            if store.call("INCR", "boots") == 2:
                while not store.call("LLEN", "go"):
                    time.sleep(0.01)
        """
    )
    cluster = run_cluster("default", "-c", "1", app=path)
    occupy(cluster, store)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_ready", count=2)
    push(store, "stubborn", "b")
    wait_noted(store, "began b")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_ready", count=3)
    store.call("RPUSH", "go", "now")
    release(store)
    cluster.wait_for("roll_done")

    assert sorted(ledger(store)) == ["began a", "began b", "ended a", "ended b"]


def test_a_roll_takes_over_from_a_recycling(run_cluster: RunCluster, store: Store, releases: Releases) -> None:
    cluster = releases.run(run_cluster, "default", "-c", "1", "--max-jobs", "5")
    first = cluster.wait_ready()[0]
    releases.deploy("2", "while 'KIQ_SLOT' in os.environ and not pathlib.Path('../../go').exists(): time.sleep(0.01)")
    push_many(store, "record", [[str(number)] for number in range(10)])
    dropped = cluster.wait_for("child_started", count=2)["child"]

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_started", count=3)
    (releases.current.parent / "go").touch()
    cluster.wait_for("roll_done")

    wait_gone(first, dropped)
    wait_only_live(store, *cluster.pids().values())
    wait_children(cluster, *cluster.pids().values())
    assert (restarts(cluster, "rolling"), restarts(cluster, "max_jobs")) == (1, 0)


def test_workers_killed_during_a_roll_are_replaced_by_the_new_release_and_the_roll_goes_on(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    cluster = releases.run(run_cluster, "default", "other", "-c", "1")
    pids = occupy(cluster, store, 2)
    releases.deploy("2")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_started", slot=0, count=2)

    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    cluster.wait_for("roll_done")

    assert wait_roll(store, "done")["done"] == 2
    wait_only_live(store, *cluster.pids().values())
    wait_until(lambda: ledger(store) == ["began a", "began a"], "the killed job to run again")
    release(store)
    push(store, "release", queue="other")
    wait_noted(store, "ended a", "release 2")
    assert [restarts(cluster, "killed", slot) for slot in (0, 1)] == [1, 1]


def test_a_slot_that_backs_off_is_renewed_with_the_others(
    run_cluster: RunCluster, store: Store, releases: Releases
) -> None:
    releases.deploy("1", "assert not pathlib.Path('../../broken').exists()")
    cluster = releases.run(run_cluster, "default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    broken = releases.current.parent / "broken"
    broken.touch()
    os.kill(pids[0], signal.SIGKILL)
    cluster.wait_for("child_backoff", slot=0)
    broken.unlink()
    releases.deploy("2")

    roll(cluster)

    assert wait_roll(store, "done")["done"] == 2
    push(store, "release")
    push(store, "release", queue="other")
    wait_until(lambda: ledger(store) == ["release 2", "release 2"], "the new release to run in both slots")


def test_term_in_the_middle_of_a_roll_leaves_nothing_behind(run_cluster: RunCluster, store: Store) -> None:
    cluster = run_cluster("default", "other", "-c", "1")
    pids = occupy(cluster, store, 2)
    cluster.signal(signal.SIGUSR2)
    successor = cluster.wait_for("child_replaced", slot=0)["child"]  # the old process still runs its job

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_quiet", pid=successor)
    cluster.signal(signal.SIGCONT)
    cluster.signal(signal.SIGUSR2)
    push(store, "record", "later")
    release(store)

    assert cluster.wait() == 0
    assert ledger(store) == ["began a", "ended a"]
    assert words(queued(store)) == ["later"]
    assert identities(store) == holders(store) == set()
    assert store.call("SMEMBERS", "processes") == []
    wait_gone(*(each["child"] for each in cluster.seen("child_started")))
    assert pids[0] in {each["child"] for each in cluster.seen("child_left")}


def test_term_while_a_successor_boots_ends_it_too(run_cluster: RunCluster, store: Store, releases: Releases) -> None:
    cluster = releases.run(run_cluster, "default", "-c", "1")
    cluster.wait_ready()
    releases.deploy("2", "if 'KIQ_SLOT' in os.environ: time.sleep(60)")
    cluster.signal(signal.SIGUSR2)
    successor = cluster.wait_for("child_started", count=2)["child"]

    assert cluster.stop() == 0

    assert not is_alive(successor)
    assert identities(store) == holders(store) == set()
