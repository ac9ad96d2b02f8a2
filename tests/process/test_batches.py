"""Batches in real clusters: async jobs, cancelled batches whose jobs run, and a creator that is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from kiqcluster.api import DroppedSet
from kiqcluster.batches import Batch
from kiqcluster.control.cancellation import cancel_in
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store.batches import cancel_batch
from tests import forkserver
from tests.kit import ROOT, wait_until
from tests.stage import Stage

ASYNC_JOBS = """
import asyncio

from kiqcluster import current_job, job
from kiqcluster.batches import NormalFailure, current_batch


@job(name="batches::wait")
async def wait(number: int) -> None:
    current_job().log(f"row {number}")
    await asyncio.sleep(0.001)
    if number % 5 == 0:
        raise NormalFailure(f"no {number}")
    if number == 1:
        current_batch().mark([current_job().jid], "finish")
"""
CREATOR = """
import os, signal
from kiqcluster.store import batches
from kiqcluster.batches import Batch

push_calls = batches._push_calls

def until_killed(*args):
    for number, call in enumerate(push_calls(*args)):
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        yield call

batches._push_calls = until_killed
Batch.create("import", "HardWorker", [[number] for number in range(5_000)], queue="low")
"""


@pytest.fixture
def setup_of_stage(stage: Stage) -> Iterator[None]:
    with using_setup(Setup(store=stage.store, config=Config())):
        yield


@pytest.mark.usefixtures("setup_of_stage")
def test_async_jobs_have_events_as_others_have(stage: Stage) -> None:
    stage.run_cluster("default", app=stage.write_application(ASYNC_JOBS))
    batch = Batch.create("import", "batches::wait", [[number] for number in range(1, 101)], queue="default")

    wait_until(lambda: batch.status().is_complete, "the batch to be complete")

    status = batch.status()
    assert (status.finish, status.failed, status.total) == (80, 20, 100)
    assert {batch_job.messages for batch_job in status.failures} == {(f"row {n}", f"no {n}") for n in range(5, 101, 5)}


@pytest.mark.usefixtures("setup_of_stage")
def test_a_creator_that_is_killed_leaves_no_job_counted_that_is_not_in_its_queue(stage: Stage) -> None:
    environ = {**os.environ, "REDIS_URL": stage.redis.url, "PYTHONPATH": str(ROOT)}
    assert forkserver.run([sys.executable, "-c", CREATOR], env=environ).returncode == -signal.SIGKILL
    (found,) = Batch.all()

    assert 0 < found.total == stage.store.call("LLEN", "queue:low") < found.expected
    assert (found.state, found.enqueue) == ("open", found.total)
    batch = Batch.get(found.id)
    batch.close()
    assert batch.status().state == "running"


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
def test_running_jobs_of_a_cancelled_batch_are_told_within_moments_and_do_not_run_again(stage: Stage) -> None:
    """Those of its child batches are as well; those of other batches, and those in no batch, go on."""
    stage.run_cluster("default", "-c", "5", app=CANCELLED).wait_ready(1)
    with Batch.open("parent") as parent:
        parent.add("patient", [["thread"]], queue="default")
        parent.add("waiting", [["async"]], queue="default")
        child = Batch.create("child", "patient", [["child"]], queue="default", parent=parent)
    other = Batch.create("other", "patient", [["other"]], queue="default")
    alone = stage.push("patient", "alone")
    stage.wait_noted(*(f"began {word}" for word in ("thread", "async", "child", "other", "alone")))

    parent.cancel("wrong file")
    wait_until(lambda: parent.status().is_complete, "its jobs to end", seconds=5)

    assert sorted(line for line in stage.notes() if not line.startswith("began")) == ["told child", "told thread"]
    assert [(each.status().error, each.status().cancelled) for each in (parent, child)] == [(2, 2), (1, 1)]
    assert {batch_job.messages for batch_job in parent.status().failures} == {("cancelled with its batch",)}
    assert set(by_whom(stage).values()) == {"batch"}
    assert other.status().working == 1
    assert stage.store.call("EXISTS", stage.store.keys.batches_cancelled, "stat:failed") == 0
    assert cancel_in(stage.store, alone)
    other.cancel()
    wait_until(lambda: stage.remaining() == {}, "the others to end", seconds=5)


@pytest.mark.usefixtures("setup_of_stage")
@pytest.mark.parametrize(("word", "is_dropped"), [("fails", True), ("gives_way", True), ("returns", False)])
def test_a_job_of_a_cancelled_batch_that_does_not_ask_is_not_run_again(
    stage: Stage, word: str, is_dropped: bool
) -> None:
    stage.run_cluster("default", "-c", "2", app=CANCELLED).wait_ready(1)
    batch = Batch.create("import", "heedless", [[word]], queue="default")
    stage.wait_noted(f"began {word}")

    batch.cancel()
    wait_until(lambda: batch.status().is_complete, "the job to end", seconds=5)

    status = batch.status()
    assert (status.error, status.cancelled, status.finish) == ((1, 1, 0) if is_dropped else (0, 0, 1))
    assert list(by_whom(stage).values()) == ["batch"] * is_dropped
    assert stage.remaining() == {}


@pytest.mark.usefixtures("setup_of_stage")
def test_a_process_that_has_missed_the_message_is_told_by_its_heartbeat(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=CANCELLED).wait_ready(1)
    batch = Batch.create("import", "patient", [["a"]], queue="default")
    stage.wait_noted("began a")

    cancel_batch(stage.store, batch.id, "the process that cancels dies here, before it tells anybody")
    stage.ask_for_beats()

    wait_until(lambda: batch.status().is_complete, "the job to end", seconds=5)
    assert (batch.status().cancelled, list(by_whom(stage).values())) == (1, ["batch"])


@pytest.mark.usefixtures("setup_of_stage")
def test_an_async_job_behind_middleware_that_waits_for_it_is_cancelled_where_it_waits(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=stage.write_application(MIDDLEWARE)).wait_ready(1)
    batch = Batch.create("import", "waiting", [["in a batch"]], queue="default")
    alone = stage.push("waiting", "alone")
    stage.wait_noted("began in a batch", "began alone")

    batch.cancel()
    assert cancel_in(stage.store, alone).running == 1

    wait_until(lambda: stage.remaining() == {}, "both jobs to end", seconds=5)
    assert sorted(by_whom(stage).values()) == ["batch", "cancelled"]


@pytest.mark.usefixtures("setup_of_stage")
def test_an_async_job_is_cancelled_once_and_may_clean_up(stage: Stage) -> None:
    stage.run_cluster("default", "-c", "2", app=CANCELLED).wait_ready(1)
    batch = Batch.create("import", "shielded", [["a"]], queue="default")
    stage.wait_noted("began a")

    batch.cancel()
    stage.wait_noted("told a")
    batch.cancel()

    wait_until(lambda: batch.status().is_complete, "the job to end", seconds=5)
    assert stage.notes() == ["began a", "told a", "ended a"]
    assert batch.status().finish == 1
