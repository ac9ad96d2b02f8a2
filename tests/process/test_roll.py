"""Rolling restarts: a process takes a slot only once it works, one slot at a time, and whoever served finishes."""

from __future__ import annotations

import os
import signal

import pytest

from kiqcluster.control import control_messages
from kiqcluster.control.control_messages import Message
from kiqcluster.process.clock import SystemClock
from tests.kit import ROOT, Cluster, is_alive, wait_until
from tests.kit import cluster as run
from tests.proc import wait_exited
from tests.process.capacity import Capacity
from tests.process.releases import Releases
from tests.stage import Stage


def roll(cluster: Cluster, count: int = 1) -> None:
    """Send USR2 and wait for its end."""
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("roll_done", count=count)


# it works


def test_a_roll_says_what_of_the_new_configuration_it_leaves_alone(stage: Stage, releases: Releases) -> None:
    def configure(*lines: str) -> None:
        (releases.current / "kiqcluster.toml").write_text("\n".join(['require = ["shop"]', *lines]))

    configure('groups = ["default"]')
    environ = {"PYTHONPATH": str(ROOT), "PWD": str(releases.current)}
    with run("--redis", stage.redis.url, cwd=releases.current, environ=environ) as cluster:
        cluster.wait_ready()
        releases.deploy("2")
        configure('groups = ["default", "other"]', "max_retries = 3", 'log.format = "json"', 'tag = "x"')

        roll(cluster)

        shown = stage.wait_document("what waits", lambda each: each["reload_needed"])
        assert shown["reload_needed"] == "groups, tag, max_retries"
        assert shown["restart_needed"] == ""  # a flag says how it logs, and wins
        assert len(cluster.pids()) == 1
        cluster.signal(signal.SIGHUP)
        assert cluster.wait_for("reloaded")["added"] == 1
        cluster.wait_ready(2)
        stage.wait_document("nothing to wait for a reload", lambda each: not each["reload_needed"])
        configure('groups = ["default", "other"]', "max_retries = 3", 'tag = "x"', 'control = "control.sock"')
        roll(cluster, 2)
        assert (
            "control"
            in stage.wait_document("a restart to be needed", lambda each: each["restart_needed"])["restart_needed"]
        )


def test_a_roll_replaces_every_process_by_one_of_the_new_release(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    before = cluster.wait_ready(2)
    releases.deploy("2")

    with Capacity(cluster) as capacity:
        roll(cluster)

    after = cluster.pids()
    assert set(before.values()).isdisjoint(after.values())
    assert stage.wait_roll("done")["done"] == stage.wait_roll("done")["of"] == 2
    wait_exited(*before.values())
    stage.wait_members(*after.values())
    cluster.wait_children(*after.values())
    assert [cluster.restarts("rolling", slot) for slot in (0, 1)] == [1, 1]
    stage.push("release")
    stage.push("release", queue="other")
    wait_until(lambda: stage.notes() == ["release 2", "release 2"], "the new release to run both")
    assert capacity.samples > 0
    assert capacity.fewest_ready == 2
    assert capacity.most_processes <= 3


def test_what_the_old_process_runs_ends_there_while_the_new_one_serves(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    before = stage.occupy(cluster, 2)

    cluster.signal(signal.SIGUSR2)
    stage.push("nap", "b", 0.5)

    stage.wait_noted("ended b")  # in the same slot
    assert is_alive(before[0])
    assert cluster.seen("child_started", slot=1)[1:] == []  # the next slot waits for this one
    stage.release()
    cluster.wait_for("roll_done")
    assert stage.notes() == ["began a", "began b", "ended b", "ended a"]
    stage.wait_members(*cluster.pids().values())


def test_what_runs_longer_than_the_timeout_is_put_back_and_the_new_process_runs_it(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.2")
    stage.occupy(cluster)

    roll(cluster)

    wait_until(lambda: stage.notes() == ["began a", "began a"], "the job to run again")
    stage.release()
    stage.wait_noted("ended a")
    stage.wait_settled()
    assert stage.notes() == ["began a", "began a", "ended a"]
    assert stage.dead() == []


def test_counters_do_not_go_back_while_two_processes_share_a_slot(stage: Stage) -> None:
    done = 'sidekiq_jobs_completion_seconds_count{job_status="done",queue="default",worker="record"}'
    cluster = stage.run_cluster("default", "-c", "2")
    cluster.wait_ready()
    stage.push_many("record", [[str(number)] for number in range(7)])
    wait_until(lambda: cluster.metric(done) == 7, "seven jobs to be counted")
    stage.push("stubborn", "a")
    stage.wait_noted("began a")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced")
    stage.push_many("record", [[f"later {number}"] for number in range(5)])  # for the new one, beside the old
    wait_until(lambda: cluster.metric(done) == 12, "twelve jobs to be counted")
    stage.release()
    cluster.wait_for("roll_done")

    assert cluster.metric(done) == 12


def test_a_roll_that_is_asked_for_by_message_is_found_by_its_id_and_begun_once(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1")
    first = cluster.wait_ready()[0]
    for _ in range(2):
        control_messages.send(stage.store, *stage.members(), Message("roll", id="deploy 7"))

    began = SystemClock.now()
    report = dict(stage.wait_roll("done"))
    assert began - 60 < report.pop("ended_at") <= SystemClock.now()
    assert report == {"id": "deploy 7", "state": "done", "done": 1, "of": 1, "error": ""}

    assert len(cluster.seen("roll_started")) == 1
    assert cluster.pids()[0] != first


# quiet


@pytest.mark.parametrize("source", ["", "raise RuntimeError('no database')", "assert 'KIQ_SLOT' not in os.environ"])
def test_a_quiet_ends_with_the_roll_also_when_it_fails(stage: Stage, releases: Releases, source: str) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    cluster.wait_ready(2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    stage.push("record", "a")
    stage.push("record", "b", queue="other")
    releases.deploy("2", source)

    cluster.signal(signal.SIGUSR2)

    stage.wait_noted("ran a", "ran b")
    cluster.wait_for("cluster_resumed")
    stage.wait_document("the quiet to be over", lambda each: not each["quiet_by"])
    assert cluster.metric("kiqcluster_quiet") == 0


def test_a_replacement_serves_while_what_it_replaces_was_quiet(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    stage.occupy(cluster, 2)
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet", count=2)
    stage.push("record", "b")
    stage.push("record", "c", queue="other")

    cluster.signal(signal.SIGUSR2)

    stage.wait_noted("ran b")
    assert cluster.metric("kiqcluster_quiet") == 1  # the old process of this slot is not done yet
    wait_until(lambda: stage.queued_args("other") == ["c"], "the other slot to stay quiet")
    stage.release()
    stage.wait_noted("ran c")


def test_a_quiet_that_begins_during_a_roll_holds_for_all_and_outlasts_it(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    stage.occupy(cluster, 2)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_replaced", slot=0)

    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("cluster_quiet")
    stage.release()
    cluster.wait_for("roll_done")
    stage.push("record", "b")
    stage.push("record", "c", queue="other")

    assert cluster.metric('kiqcluster_children{state="quiet"}') == 2
    wait_until(lambda: stage.queued_args() == ["b"] and stage.queued_args("other") == ["c"], "the jobs to stay")
    cluster.signal(signal.SIGCONT)
    stage.wait_noted("ran b", "ran c")


# what comes between


def test_a_second_usr2_begins_again_and_nothing_of_the_first_is_left(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    before = cluster.wait_ready(2)
    cluster.signal(signal.SIGUSR2)
    dropped = cluster.wait_for("child_started", slot=0, count=2)["child"]

    roll(cluster)

    after = cluster.pids()
    assert set(after.values()).isdisjoint({*before.values(), dropped})
    wait_exited(*before.values(), dropped)
    stage.wait_members(*after.values())
    cluster.wait_children(*after.values())
    assert len(cluster.seen("roll_started")) == 2
    assert stage.wait_roll("done")["of"] == 2
    rolls = [cluster.metric(f'kiqcluster_rolls_total{{result="{each}"}}') for each in ("done", "failed", "superseded")]
    assert rolls == [1, 0, 1]


def test_a_roll_that_comes_while_another_asks_for_the_release_is_no_failure_of_that(
    stage: Stage, releases: Releases
) -> None:
    gate = releases.current.parent / "go"
    cluster = releases.run(stage, "default", "-c", "1")
    cluster.wait_ready()
    releases.deploy("2", "while not pathlib.Path('../../go').exists(): time.sleep(0.01)")
    for count in (1, 2):
        cluster.signal(signal.SIGUSR2)
        cluster.wait_for("roll_started", count=count)

    gate.touch()
    cluster.wait_for("roll_done")

    assert cluster.seen("roll_superseded")
    assert not cluster.seen("roll_failed")


def test_a_successor_that_is_given_up_once_it_runs_jobs_finishes_them(stage: Stage) -> None:
    path = stage.write_application(
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
    cluster = stage.run_cluster("default", "-c", "1", app=path)
    stage.occupy(cluster)
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_ready", count=2)
    stage.push("stubborn", "b")
    stage.wait_noted("began b")

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_ready", count=3)
    stage.store.call("RPUSH", "go", "now")
    stage.release()
    cluster.wait_for("roll_done")

    assert sorted(stage.notes()) == ["began a", "began b", "ended a", "ended b"]


def test_a_roll_takes_over_from_a_recycling(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1", "--set", "recycle.jobs=5")
    first = cluster.wait_ready()[0]
    releases.deploy("2", "while 'KIQ_SLOT' in os.environ and not pathlib.Path('../../go').exists(): time.sleep(0.01)")
    stage.push_many("record", [[str(number)] for number in range(10)])
    dropped = cluster.wait_for("child_started", count=2)["child"]

    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_started", count=3)
    (releases.current.parent / "go").touch()
    cluster.wait_for("roll_done")

    wait_exited(first, dropped)
    stage.wait_members(*cluster.pids().values())
    cluster.wait_children(*cluster.pids().values())
    assert (cluster.restarts("rolling"), cluster.restarts("max_jobs")) == (1, 0)


def test_workers_killed_during_a_roll_are_replaced_by_the_new_release_and_the_roll_goes_on(
    stage: Stage, releases: Releases
) -> None:
    cluster = releases.run(stage, "default", "other", "-c", "1")
    pids = stage.occupy(cluster, 2)
    releases.deploy("2")
    cluster.signal(signal.SIGUSR2)
    cluster.wait_for("child_started", slot=0, count=2)

    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    cluster.wait_for("roll_done")

    assert stage.wait_roll("done")["done"] == 2
    stage.wait_members(*cluster.pids().values())
    wait_until(lambda: stage.notes() == ["began a", "began a"], "the killed job to run again")
    stage.release()
    stage.push("release", queue="other")
    stage.wait_noted("ended a", "release 2")
    assert [cluster.restarts("killed", slot) for slot in (0, 1)] == [1, 1]


def test_a_slot_that_backs_off_is_renewed_with_the_others(stage: Stage, releases: Releases) -> None:
    releases.deploy("1", "assert not pathlib.Path('../../broken').exists()")
    cluster = releases.run(stage, "default", "other", "-c", "1")
    pids = cluster.wait_ready(2)
    broken = releases.current.parent / "broken"
    broken.touch()
    os.kill(pids[0], signal.SIGKILL)
    cluster.wait_for("child_backoff", slot=0)
    broken.unlink()
    releases.deploy("2")

    roll(cluster)

    assert stage.wait_roll("done")["done"] == 2
    stage.push("release")
    stage.push("release", queue="other")
    wait_until(lambda: stage.notes() == ["release 2", "release 2"], "the new release to run in both slots")


def test_term_in_the_middle_of_a_roll_leaves_nothing_behind(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "other", "-c", "1")
    pids = stage.occupy(cluster, 2)
    cluster.signal(signal.SIGUSR2)
    successor = cluster.wait_for("child_replaced", slot=0)["child"]  # the old process still runs its job

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_quiet", pid=successor)
    cluster.signal(signal.SIGCONT)
    cluster.signal(signal.SIGUSR2)
    stage.push("record", "later")
    stage.release()

    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.queued_args() == ["later"]
    assert stage.members() == stage.holders() == set()
    assert stage.store.call("SMEMBERS", "processes") == []
    wait_exited(*(each["child"] for each in cluster.seen("child_started")))
    assert pids[0] in {each["child"] for each in cluster.seen("child_left")}


def test_term_while_a_successor_boots_ends_it_too(stage: Stage, releases: Releases) -> None:
    cluster = releases.run(stage, "default", "-c", "1")
    cluster.wait_ready()
    releases.deploy("2", "if 'KIQ_SLOT' in os.environ: time.sleep(60)")
    cluster.signal(signal.SIGUSR2)
    successor = cluster.wait_for("child_started", count=2)["child"]

    assert cluster.stop() == 0

    assert not is_alive(successor)
    assert stage.members() == stage.holders() == set()
