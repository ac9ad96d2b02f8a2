"""Tasks in real clusters: async jobs, and a creator that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.tasks import Task
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
from kiqcluster.tasks import Task

Task.create("import", "HardWorker", [[number] for number in range(300_000)], queue="low")
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
    with subprocess.Popen([sys.executable, "-c", CREATOR], env=environ) as creator:
        wait_until(lambda: stage.store.call("LLEN", "queue:low"), "the first jobs to be pushed")
        creator.kill()
    (found,) = Task.all()

    assert 0 < found.total == stage.store.call("LLEN", "queue:low") < found.expected
    assert (found.state, found.enqueue) == ("open", found.total)
    task = Task.get(found.id)
    task.close()
    assert task.status().state == "running"
