"""Tasks in real clusters: async jobs, cancelled tasks whose jobs run, and a creator that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from kiqcluster.api import DroppedSet
from kiqcluster.control.cancellation import cancel_in
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store.tasks import cancel_task
from kiqcluster.tasks import Task
from tests import forkserver
from tests.kit import ROOT, wait_until
from tests.stage import Stage

ASYNC_JOBS = """
import asyncio

from kiqcluster import current_job, job
from kiqcluster.tasks import NormalFailure, current_task


@job(name="tasks::wait")
async def wait(number: int) -> None:
    current_job().log(f"row {number}")
    await asyncio.sleep(0.001)
    if number % 5 == 0:
        raise NormalFailure(f"no {number}")
    if number == 1:
        current_task().mark([current_job().jid], "finish")
"""
CREATOR = """
import os, signal
from kiqcluster.store import tasks
from kiqcluster.tasks import Task

push_calls = tasks._push_calls

def until_killed(*args):
    for number, call in enumerate(push_calls(*args)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield call

tasks._push_calls = until_killed
Task.create("import", "HardWorker", [[number] for number in range(5_000)], queue="low")
"""


@pytest.fixture
def setup_of_stage(stage: Stage) -> Iterator[None]:
    with using_setup(Setup(store=stage.store, config=Config())):
        yield


@pytest.mark.usefixtures("setup_of_stage")
def test_async_jobs_have_events_as_others_have(stage: Stage) -> None:
    stage.run_cluster("default", app=stage.write_application(ASYNC_JOBS))
    task = Task.create("import", "tasks::wait", [[number] for number in range(1, 101)], queue="default")

    wait_until(lambda: task.status().is_complete, "the task to be complete")

    status = task.status()
    assert (status.finish, status.failed, status.total) == (80, 20, 100)
    assert {event.messages for event in status.failures} == {(f"row {n}", f"no {n}") for n in range(5, 101, 5)}


@pytest.mark.usefixtures("setup_of_stage")
def test_a_creator_that_is_killed_leaves_no_job_counted_that_is_not_in_its_queue(stage: Stage) -> None:
    environ = {**os.environ, "REDIS_URL": stage.redis.url, "PYTHONPATH": str(ROOT)}
    assert forkserver.run([sys.executable, "-c", CREATOR], env=environ).returncode == -signal.SIGKILL
    (found,) = Task.all()

    assert 0 < found.total == stage.store.call("LLEN", "queue:low") < found.expected
    assert (found.state, found.enqueue) == ("open", found.total)
    task = Task.get(found.id)
    task.close()
    assert task.status().state == "running"


CANCELLED = "tests.apps.cancelled"
MIDDLEWARE = """
from collections.abc import Callable

from kiqcluster import Outcome, Run, server_middleware
from tests.apps.cancelled import waiting


def plain(run: Run, call_next: Callable[[], Outcome | None]) -> Outcome | None:
    return call_next()


server_middleware.add(plain)
"""


def by_whom(stage: Stage) -> dict[str, str]:
    """Return jid → by what it was dropped."""
    return {each.jid: each["dropped_by"] for each in DroppedSet(store=stage.store)}


@pytest.mark.usefixtures("setup_of_stage")
def test_running_jobs_of_a_cancelled_task_are_told_within_moments_and_do_not_run_again(stage: Stage) -> None:
    """Those of its child tasks are as well; those of other tasks, and those in no task, go on."""
    stage.run_cluster("default", "-c", "5", app=CANCELLED).wait_ready(1)
    with Task.open("parent") as parent:
        parent.add("patient", [["thread"]], queue="default")
        parent.add("waiting", [["async"]], queue="default")
        child = Task.create("child", "patient", [["child"]], queue="default", parent=parent)
    other = Task.create("other", "patient", [["other"]], queue="default")
    alone = stage.push("patient", "alone")
    stage.wait_noted(*(f"began {word}" for word in ("thread", "async", "child", "other", "alone")))

    parent.cancel("wrong file")
    wait_until(lambda: parent.status().is_complete, "its jobs to end", seconds=5)

    assert sorted(line for line in stage.notes() if not line.startswith("began")) == ["told child", "told thread"]
    assert [(each.status().error, each.status().cancelled) for each in (parent, child)] == [(2, 2), (1, 1)]
    assert {event.messages for event in parent.status().failures} == {("cancelled with its task",)}
    assert set(by_whom(stage).values()) == {"task"}
    assert other.status().working == 1
    assert stage.store.call("EXISTS", stage.store.keys.tasks_cancelled, "stat:failed") == 0
    assert cancel_in(stage.store, alone)
    other.cancel()
    wait_until(lambda: stage.remaining() == {}, "the others to end", seconds=5)


@pytest.mark.usefixtures("setup_of_stage")
@pytest.mark.parametrize(("word", "is_dropped"), [("fails", True), ("gives_way", True), ("returns", False)])
def test_a_job_of_a_cancelled_task_that_does_not_ask_is_not_run_again(
    stage: Stage, word: str, is_dropped: bool
) -> None:
    stage.run_cluster("default", "-c", "2", app=CANCELLED).wait_ready(1)
    task = Task.create("import", "heedless", [[word]], queue="default")
    stage.wait_noted(f"began {word}")

    task.cancel()
    wait_until(lambda: task.status().is_complete, "the job to end", seconds=5)

    status = task.status()
    assert (status.error, status.cancelled, status.finish) == ((1, 1, 0) if is_dropped else (0, 0, 1))
    assert list(by_whom(stage).values()) == ["task"] * is_dropped
    assert stage.remaining() == {}


@pytest.mark.usefixtures("setup_of_stage")
def test_a_process_that_has_missed_the_message_is_told_by_its_heartbeat(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=CANCELLED).wait_ready(1)
    task = Task.create("import", "patient", [["a"]], queue="default")
    stage.wait_noted("began a")

    cancel_task(stage.store, task.id, "the process that cancels dies here, before it tells anybody")
    stage.ask_for_beats()

    wait_until(lambda: task.status().is_complete, "the job to end", seconds=5)
    assert (task.status().cancelled, list(by_whom(stage).values())) == (1, ["task"])


@pytest.mark.usefixtures("setup_of_stage")
def test_an_async_job_behind_middleware_that_waits_for_it_is_cancelled_where_it_waits(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=stage.write_application(MIDDLEWARE)).wait_ready(1)
    task = Task.create("import", "waiting", [["in a task"]], queue="default")
    alone = stage.push("waiting", "alone")
    stage.wait_noted("began in a task", "began alone")

    task.cancel()
    assert cancel_in(stage.store, alone).running == 1

    wait_until(lambda: stage.remaining() == {}, "both jobs to end", seconds=5)
    assert sorted(by_whom(stage).values()) == ["cancelled", "task"]


@pytest.mark.usefixtures("setup_of_stage")
def test_an_async_job_is_cancelled_once_and_may_clean_up(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=CANCELLED).wait_ready(1)
    task = Task.create("import", "shielded", [["a"]], queue="default")
    stage.wait_noted("began a")

    task.cancel()
    stage.wait_noted("told a")
    task.cancel()

    wait_until(lambda: task.status().is_complete, "the job to end", seconds=5)
    assert stage.notes() == ["began a", "told a", "ended a"]
    assert task.status().finish == 1
