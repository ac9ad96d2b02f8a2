"""Timeouts: a job that runs too long ends with its process, has failed, and costs no other job anything."""

from __future__ import annotations

import os
import signal
from collections import Counter

import pytest

from kiqcluster.sidekiq import ruby_json
from tests.kit import wait_until
from tests.stage import Stage

APP = "tests.apps.timed"


def test_a_job_beyond_its_hard_timeout_has_failed_and_its_neighbour_goes_back_without_a_count(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "-t", "1", app=APP)
    stage.push("stubborn", "beside")
    stage.wait_noted("began beside")
    pid = cluster.wait_ready()[0]
    overlong = stage.push("endless", "a")

    event = cluster.wait_for("job_timed_out", child=pid)

    assert [each["jid"] for each in event["running"]] == [overlong]
    (entry,) = wait_until(lambda: stage.store.call("ZRANGE", "retry", 0, -1), "the job to wait for its retry")
    failed = ruby_json.decode(entry)
    assert (failed["jid"], failed["error_class"], failed["retry_count"]) == (
        overlong,
        "kiqcluster.errors.JobTimedOut",
        0,
    )
    assert failed["error_message"] == "endless ran for longer than its timeout_hard of 0.5 s"
    wait_until(lambda: stage.notes().count("began beside") == 2, "the other one to run again")
    (beside,) = [raw for identity in stage.holders() for raw in stage.held(identity)]
    assert "interrupted_count" not in ruby_json.decode(beside)
    assert stage.store.call("EXISTS", "kiq:suspects") == 0
    assert (cluster.restarts("job_timeout"), cluster.seen("child_died")) == (1, [])
    assert cluster.metric('sidekiq_jobs_timed_out_total{queue="default",worker="endless"}') == 1
    assert cluster.metric('sidekiq_jobs_interrupted_total{queue="default",worker="stubborn"}') == 1
    stage.release()
    stage.wait_noted("ended beside")


def test_a_worker_whose_last_job_is_overdue_leaves_without_waiting_for_it(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "-t", "600", app=APP)
    stage.push("endless", "a")

    stage.wait_noted("began a")
    cluster.wait_for("child_left")

    wait_until(lambda: stage.store.call("ZCARD", "retry") == 1, "the job to wait for its retry")
    cluster.wait_for("child_ready", count=2)
    assert stage.notes() == ["began a"]


def test_an_overdue_job_whose_process_is_killed_before_it_is_settled_runs_again(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "-t", "600", app=APP)
    stage.push("stubborn", "beside")
    stage.wait_noted("began beside")
    pid = cluster.wait_ready()[0]
    stage.push("endless", "a")

    cluster.wait_for("job_timed_out", child=pid)  # it is quiet, and waits for the other job
    os.kill(pid, signal.SIGKILL)
    died = cluster.wait_for("child_died", child=pid)  # though it was asked to stop
    assert (died["reason"], len(died["running"])) == ("job_timeout", 2)
    stage.release()

    stage.wait_noted("ended beside", "ended a")
    stage.wait_settled()
    assert Counter(stage.notes()) == {"began beside": 2, "began a": 2, "ended beside": 1, "ended a": 1}
    assert stage.remaining() == {}
    assert stage.store.call("GET", "stat:failed") in (None, b"0")


def test_a_job_that_holds_the_interpreter_ends_with_its_process_and_alone_to_blame(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "-t", "600", app=APP)
    stage.push("stubborn", "beside")
    stage.wait_noted("began beside")
    pid = cluster.wait_ready()[0]
    jid = stage.push("deaf", "a", retry=0)
    stage.wait_noted("holds a")

    died = cluster.wait_for("child_died", child=pid)

    assert died["reason"] == "job_timeout"
    (buried,) = wait_until(lambda: stage.dead(), "the job to be buried")
    assert (buried["jid"], buried["error_class"]) == (jid, "kiqcluster.errors.JobTimedOut")
    wait_until(lambda: stage.notes().count("began beside") == 2, "the other one to run again")
    assert stage.store.call("EXISTS", "kiq:suspects") == 0
    assert cluster.restarts("job_timeout") == 1
    stage.release()
    stage.wait_noted("ended beside")
    stage.wait_settled()


def test_a_job_that_holds_the_interpreter_beside_an_overdue_one_is_a_suspect(stage: Stage) -> None:
    """It has no timeout.  Else it would come back without a count, again and again."""
    cluster = stage.run_cluster("default", "-c", "3", "-t", "600", app=APP)
    stage.push("stubborn", "beside")
    stage.wait_noted("began beside")
    pid = cluster.wait_ready()[0]
    overlong = stage.push("endless", "a", retry=0)
    stage.wait_noted("began a")
    stage.push("hog", "b")

    assert cluster.wait_for("child_died", child=pid)["reason"] == "job_timeout"

    (buried,) = wait_until(lambda: stage.dead(), "the overdue job to be buried")
    assert buried["jid"] == overlong
    failed = cluster.wait_for("job_failed")
    assert (failed["ctx"]["class"], failed["ctx"]["jid"]) == ("endless", overlong)
    (hog,) = wait_until(lambda: stage.store.call("HKEYS", "kiq:suspects"), "the hog to be a suspect")
    stage.release()
    wait_until(lambda: stage.notes().count("holds b") == 2, "the hog to run again")
    stage.wait_noted("ended beside")
    stage.wait_settled()
    assert len(hog) == 40
    assert stage.store.call("EXISTS", "kiq:suspects") == 0, "it has ended well"


@pytest.mark.full
def test_hooks_that_hang_forget_no_overdue_job_and_stop_no_other_worker(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "1", "-t", "1", app=APP)
    pids = cluster.wait_ready(2)
    stage.push("asking", "a")
    stage.wait_noted("began a", "asked")

    died = cluster.wait_for("child_died")  # it does not respond any more, since its hook hangs as it leaves

    assert died["reason"] == "job_timeout"
    wait_until(lambda: stage.notes().count("asked") == 2, "the worker that recovers to ask the hook as well")
    other = ({*pids} - {died["child"]}).pop()
    stage.push_many("record", [["b"]] * 3)
    wait_until(lambda: stage.notes().count("ran b") == 3, "the others to work meanwhile")
    stage.store.call("RPUSH", "answer", "now")
    (entry,) = wait_until(lambda: stage.store.call("ZRANGE", "retry", 0, -1), "the job to wait for its retry")
    assert ruby_json.decode(entry)["retry_count"] == 0
    assert stage.store.call("EXISTS", "kiq:suspects") == 0
    assert stage.notes().count("began a") == 1
    assert not cluster.seen("child_died", child=other)
