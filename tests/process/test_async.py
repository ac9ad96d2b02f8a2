"""Async jobs: many at once in one process, beside jobs in threads; how they end, and how their process ends."""

from __future__ import annotations

import os
import re
import signal

import pytest

from kiqcluster import cancel
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq import ruby_json
from tests.kit import is_alive, wait_until
from tests.stage import Stage

APP = "tests.apps.async_jobs"


def test_many_wait_at_once_in_one_process_beside_jobs_in_threads(stage: Stage) -> None:
    stage.push_many("count", [[f"{number}"] for number in range(500)])
    stage.push_many("record", [[f"sync {number}"] for number in range(20)])
    cluster = stage.run_cluster("default", "-c", "2", app=APP, KIQ_TEST_WAITING="500")

    stage.wait_noted("all wait", *(f"ran sync {number}" for number in range(20)))
    # A job notes its end in its last step, and is running until that has ended.
    wait_until(lambda: [len(slot["running"]) for slot in cluster.slots()] == [500], "the others to have ended")
    stage.release()

    stage.wait_noted(*(f"ran {number}" for number in range(500)))
    wait_until(lambda: not stage.remaining(), "all jobs to be settled")
    assert len(stage.notes()) == 521  # each once
    assert cluster.stop() == 0
    assert stage.store.call("GET", "stat:processed") == b"520"


def test_a_job_knows_itself_in_each_of_its_steps(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1", app=APP)
    jids = {word: stage.push("tell", word) for word in ("a", "b")}

    stage.wait_noted(*(f"{word}" + f" tell {jid}" * 3 for word, jid in jids.items()))


def test_one_that_fails_is_retried_and_one_that_takes_too_long_is_cancelled(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1", app=APP)
    stage.push("fail", "a")
    stage.push("too_long", "b")

    wait_until(lambda: stage.store.call("ZCARD", "retry") == 2, "both to be retried")
    retried = [ruby_json.decode(raw) for raw in stage.store.call("ZRANGE", "retry", 0, -1)]
    assert {each["class"]: each["error_class"] for each in retried} == {
        "fail": "ValueError",
        "too_long": "kiqcluster.errors.JobTimedOut",
    }
    assert stage.notes() == ["cleaned up b"]


def test_a_stop_cancels_what_does_not_end_in_time_and_puts_it_back(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", "-t", "0.3", app=APP)
    for word in ("a", "b"):
        stage.push("wait", word)
    stage.wait_noted("began a", "began b")

    assert cluster.stop() == 0

    assert set(stage.notes()) == {"began a", "began b", "cancelled a", "cancelled b"}
    assert {(each["args"][0], each["interrupted_count"]) for each in stage.queued()} == {("a", 1), ("b", 1)}
    assert stage.members() == stage.holders() == set()


def test_a_stop_lets_them_end_in_time(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP)
    stage.push("wait", "a")
    stage.wait_noted("began a")
    (pid,) = cluster.wait_ready(1).values()

    cluster.signal(signal.SIGTERM)
    cluster.wait_for("worker_stopping", pid=pid)
    stage.release()

    assert cluster.wait() == 0
    assert stage.notes() == ["began a", "ended a"]
    assert stage.remaining() == {}


def test_none_is_lost_when_their_process_is_killed_and_at_most_one_is_suspected(stage: Stage) -> None:
    stage.push_many("count", [[f"{number}"] for number in range(200)])
    cluster = stage.run_cluster("default", "-c", "2", app=APP, KIQ_TEST_WAITING="200")
    (pid,) = cluster.wait_ready(1).values()
    stage.wait_noted("all wait")

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: stage.notes().count("all wait") == 2, "all to wait in the next process", 30)

    assert stage.store.call("HLEN", stage.store.keys.suspects) <= 1
    stage.release()
    stage.wait_noted(*(f"ran {number}" for number in range(200)))
    assert len(stage.notes()) == 202


def test_one_that_kills_its_processes_is_buried_and_the_others_run(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=APP, KIQ_MAX_RETRIES_AFTER_INTERRUPTION="2")
    for number in range(5):
        stage.push("pause", 0.5, f"{number}")
    stage.push("kill", "a")

    wait_until(lambda: stage.dead_args() == ["a"], "the job to be buried", 60)
    stage.wait_noted(*(f"ran {number}" for number in range(5)))
    assert stage.dead()[0]["interrupted_count"] == 2
    assert stage.notes().count("kills a") == 2


def test_what_has_no_place_stays_in_its_queue_until_one_is_free(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "2", "--async-concurrency", "2", app=APP)
    cluster.wait_ready(1)
    for word in ("a", "b"):
        stage.push("wait", word)
    stage.wait_noted("began a", "began b")
    (identity,) = stage.members()
    returned = returns(stage)
    for word in ("c", "d", "e", "f"):
        stage.push("wait", word)

    wait_until(lambda: returns(stage) >= returned + 2, "each of the two threads to have met a loop without a place")
    wait_until(lambda: sorted(stage.queued_args()) == ["c", "d", "e", "f"], "those without a place to be put back")
    wait_until(lambda: len(stage.held(identity)) == 2, "the loop's own to be all that is held")
    stage.release()

    stage.wait_noted(*(f"ended {word}" for word in "abcdef"))


def returns(stage: Stage) -> int:
    """Return how often something was added at the right end of a list: a put back is, a push is not."""
    found = re.search(rb"cmdstat_rpush:calls=(\d+)", stage.store.call("INFO", "commandstats"))
    return int(found[1]) if found else 0


@pytest.mark.parametrize("job", ["leave", "fork"])
def test_the_loop_goes_on_after_a_job_that_exits_or_forks(stage: Stage, job: str) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP)
    (pid,) = cluster.wait_ready(1).values()
    stage.push("wait", "a")
    stage.wait_noted("began a")
    stage.push(job, "b", retry=0)
    if job == "leave":
        wait_until(lambda: stage.dead_args() == ["b"], "the job to be buried")
    else:
        stage.wait_noted("ran b")
    stage.release()

    stage.wait_noted("ended a")
    assert is_alive(pid)
    assert not any("runs our code" in line for line in stage.notes())
    assert cluster.stop() == 0


def test_a_job_that_blocks_the_loop_is_named(stage: Stage) -> None:
    cluster = stage.run_cluster("default", "-c", "1", app=APP)
    jid = stage.push("block", 4)

    said = cluster.wait_for("event_loop_blocked")

    assert (said["name"], said["jid"]) == ("block", jid)


def test_a_hard_timeout_ends_the_process_of_one_that_holds_the_loop(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "1", "-t", "1", app=APP)
    stage.push("wait", "a")
    stage.wait_noted("began a")
    stage.push("holds_loop", "b")

    wait_until(lambda: stage.store.call("ZCARD", "retry") == 1, "the job to have failed", 30)
    (raw,) = stage.store.call("ZRANGE", "retry", 0, -1)
    assert ruby_json.decode(raw)["error_class"] == "kiqcluster.errors.JobTimedOut"
    wait_until(lambda: stage.notes().count("began a") == 2, "the other one to run again", 30)
    assert stage.store.call("HLEN", stage.store.keys.suspects) == 0


@pytest.mark.parametrize("method", ["async def acall", "def __call__"])
def test_middleware_is_around_them(stage: Stage, method: str) -> None:
    is_async = method.startswith("async")
    app = stage.write_application(f"""
        import asyncio
        import threading
        from kiqcluster import job, server_middleware
        from tests.apps.basic import note

        class Around:
            def __call__(self, run, proceed):
                note("thread", run.job.name)
                try:
                    return proceed()
                finally:
                    note("after")

            {"async def acall(self, run, proceed):" if is_async else "async def unused(self, run, proceed):"}
                note("loop", run.job.name)
                try:
                    return await proceed()
                finally:
                    note("after")

        server_middleware.add(Around)

        @job()
        async def step(word):
            await asyncio.sleep(0)
            note("step", word, threading.current_thread().name)
    """)
    stage.push("step", "a")
    cluster = stage.run_cluster("default", "-c", "1", app=app)

    where = "loop" if is_async else "thread"
    stage.wait_noted(f"{where} step", "step a kiq.async", "after")
    wait_until(lambda: not stage.remaining(), "it to be settled")
    assert stage.notes() == [f"{where} step", "step a kiq.async", "after"]
    assert cluster.stop() == 0


def test_a_job_inside_middleware_that_is_not_async_is_cancelled_where_it_waits(stage: Stage) -> None:
    app = stage.write_application("""
        from kiqcluster import server_middleware
        from tests.apps import async_jobs

        server_middleware.add(lambda run, proceed: proceed())
    """)
    stage.run_cluster("default", "-c", "1", app=app)
    jid = stage.push("wait", "a")
    stage.wait_noted("began a")

    with using_setup(Setup(store=stage.store)):
        assert cancel(jid)

    wait_until(lambda: not stage.remaining(), "the job to end")
    assert stage.notes() == ["began a", "cancelled a"]
