"""What the test kit and perform_inline do about limits, locks and timeouts: the table of docs/guides/testing.md."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import Client, current_job, job, limits
from kiqcluster.batches import Batch
from kiqcluster.errors import UsageError
from kiqcluster.policies import Drop
from kiqcluster.testing import RedisServer, drain, enqueued, fake, inline, real

pytestmark = pytest.mark.usefixtures("setup")
done: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


def seconds_left() -> float | None:
    running = current_job()
    return None if running is None else running.seconds_left


LIMITED: dict[str, Any] = {
    "concurrency_limit": -1,
    "rate_limit": limits.fixed_window(1, 3600),
    "deduplicate": "until_executed",
}


@pytest.mark.parametrize("mode", ["fake", "inline", "perform_inline"])
def test_nothing_is_limited_and_no_push_is_dropped(mode: str) -> None:
    @job(**LIMITED)
    def limited(word: str) -> None:
        with limits.leaky_bucket(1, per_second=0.01, name="crm"), limits.concurrent(1, name="printer"):
            done.append(word)

    if mode == "perform_inline":
        with fake():
            limited.perform_inline("a")
            limited.perform_inline("a")
    elif mode == "inline":
        with inline():
            limited.perform_async("a")
            limited.perform_async("a")
    else:
        with fake():
            limited.perform_async("a")
            limited.perform_async("a")
            assert (len(enqueued(limited)), drain()) == (2, 2)

    assert done == ["a", "a"]


def test_a_job_is_told_its_timeout_but_not_by_perform_inline() -> None:
    @job(timeout=5, timeout_hard=60)
    def slow() -> None:
        done.append(seconds_left())

    with fake():
        slow.perform_async()
        drain()
        slow.perform_inline()

    assert done == [pytest.approx(5, abs=1), None]


def test_what_expired_and_what_a_policy_drops_does_not_run_but_by_perform_inline() -> None:
    @job(expires_in=0.000001)
    def late(word: str) -> None:
        done.append(word)

    @job(policy=lambda *_: Drop("off"))
    def unwanted(word: str) -> None:
        done.append(word)

    with fake():
        late.perform_async("drained")
        unwanted.perform_async("drained")
        drain()
        late.perform_inline("inline")
        unwanted.perform_inline("inline")

    assert done == ["inline", "inline"]


@pytest.mark.parametrize("mode", [fake, inline])
def test_a_batch_is_refused_with_the_fixture_that_has_a_redis_of_the_tests(mode: Any) -> None:
    @job
    def row(number: int) -> None: ...

    with mode(), pytest.raises(UsageError, match="kiq_store"):
        Batch.create("import", row, [(1,)])


def test_without_pytest_a_batch_is_in_a_server_of_its_test() -> None:
    @job
    def row(number: int) -> None: ...

    with RedisServer() as server, real(), Client.via(server.store()):
        batch = Batch.create("import", row, [(1,), (2,)])

        assert batch.status().total == 2
