"""Results: who has enqueued a job waits for what it returns, also while it is retried, and in coroutines."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from kiqcluster.client.handle import Handle
from kiqcluster.errors import JobDropped, JobFailed, UsageError
from kiqcluster.job import Enqueuer, JobFunction
from tests.apps import results as app
from tests.kit import wait_until
from tests.stage import Stage

pytestmark = pytest.mark.usefixtures("setup")

SECONDS = 20.0


@pytest.fixture
def running(stage: Stage) -> Stage:
    """A stage with a worker."""
    stage.run_cluster("default", "-c", "2", app="tests.apps.results").wait_ready(1)
    return stage


def enqueued(job: Enqueuer[..., Any], *arguments: Any) -> Handle[Any]:
    handle = job.enqueue(*arguments)
    assert handle is not None
    return handle


def test_a_result_comes_to_all_that_wait_and_stays_for_its_time(running: Stage) -> None:
    handle, found = enqueued(app.double, 21), list[int]()
    threads = [threading.Thread(target=lambda: found.append(handle.result(SECONDS))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert found == [42, 42, 42]
    assert (handle.status().state, handle.result(0)) == ("done", 42)
    assert 50 < running.store.call("TTL", running.store.keys.result(handle.jid)) <= 60


def test_coroutines_enqueue_and_wait_while_their_loop_goes_on(running: Stage) -> None:
    async def double(number: int) -> int:
        handle = await app.adouble.aenqueue(number)
        assert handle is not None
        result: int = await handle.aresult(SECONDS)
        return result

    async def double_all() -> list[int]:
        return await asyncio.gather(*(double(number) for number in range(20)))

    assert asyncio.run(double_all()) == [2 * number for number in range(20)]


def test_a_failure_is_raised_once_no_retry_follows(running: Stage) -> None:
    handle = enqueued(app.fail)

    with pytest.raises(JobFailed, match="ValueError: no luck") as caught:
        handle.result(SECONDS)
    assert (caught.value.jid, caught.value.error_class) == (handle.jid, "ValueError")


@pytest.mark.parametrize(
    ("job", "message"), [(app.fail_without_words, "cannot be shown"), (app.die, "it was given up")]
)
def test_a_failure_without_a_message_is_raised_too(running: Stage, job: JobFunction[[], None], message: str) -> None:
    with pytest.raises(JobFailed, match=message):
        enqueued(job).result(SECONDS)


def test_a_retry_is_waited_for(running: Stage) -> None:
    handle = enqueued(app.succeed_later)
    wait_until(lambda: running.store.call("ZCARD", "retry"), "the job to have failed")
    assert handle.status().state == "pending"

    running.store.call("ZADD", "retry", "XX", 0, running.store.call("ZRANGE", "retry", 0, 0)[0])

    assert handle.result(SECONDS) == "at last"


def test_a_dropped_job_and_a_result_that_cannot_be_kept_are_told(running: Stage) -> None:
    with pytest.raises(JobDropped, match="expiry"):
        enqueued(app.expires).result(SECONDS)
    with pytest.raises(JobFailed, match="TypeError"):
        enqueued(app.unwritable).result(SECONDS)
    with pytest.raises(JobFailed, match=r"the result\['mean'\] is nan, which JSON cannot store"):
        enqueued(app.not_a_number).result(SECONDS)
    with pytest.raises(JobFailed, match="bytes of JSON, and 1000000"):
        enqueued(app.huge).result(SECONDS)
    assert running.dead() == []


def test_nobody_waits_longer_than_it_says(stage: Stage) -> None:
    handle = enqueued(app.double, 1)

    for seconds in (0, 0.05):
        with pytest.raises(TimeoutError, match="has not ended within"):
            handle.result(seconds)


def test_a_job_without_the_option_keeps_nothing(running: Stage) -> None:
    handle = enqueued(app.forgetful)

    with pytest.raises(UsageError, match="result_ttl=3600"):
        handle.result(SECONDS)
    running.wait_settled()
    assert running.store.call("KEYS", "kiq:result:*") == []
