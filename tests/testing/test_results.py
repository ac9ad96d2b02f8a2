"""Results of jobs that a test has in memory: a handle answers as after a run in a worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta

import pytest

from kiqcluster import cancel, job
from kiqcluster.client.handle import Handle
from kiqcluster.contrib.celery import Celery
from kiqcluster.errors import JobDropped, JobFailed, NormalFailure, UsageError
from kiqcluster.job import JobFunction
from kiqcluster.testing import drain, fake, frozen_clock, inline, real

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def price(kiq_setup: object) -> JobFunction[[int], int]:
    @job(result_ttl=60, retry=0)
    def price(order: int) -> int:
        if order < 0:
            raise ValueError(f"no order {order}")
        if not order:
            raise NormalFailure("it is empty")
        return 10 * order

    return price


def enqueued(price: JobFunction[[int], int], order: int) -> Handle[int]:
    handle = price.enqueue(order)
    assert handle is not None
    return handle


class TestInline:
    def test_the_result_is_there_when_the_push_returns(self, price: JobFunction[[int], int]) -> None:
        with inline():
            handle = enqueued(price, 7)

            assert handle.result() == 70
            assert handle.result(timeout=0) == 70
            assert asyncio.run(handle.aresult()) == 70
            assert handle.status().state == "done"

    def test_a_value_has_the_type_of_its_annotation(self) -> None:
        @job(result_ttl=60)
        def noon() -> datetime:
            return NOON

        with inline():
            handle = noon.enqueue()

            assert handle is not None
            assert handle.result() == NOON

    def test_an_async_job_has_one_too(self) -> None:
        @job(result_ttl=60)
        async def doubled(number: int) -> int:
            return 2 * number

        async def test() -> int:
            with inline():
                handle = await doubled.aenqueue(4)
                assert handle is not None
                return await handle.aresult()

        assert asyncio.run(test()) == 8

    def test_a_chain_has_that_of_its_last_job(self, price: JobFunction[[int], int]) -> None:
        @job
        def order(number: int) -> int:
            return number + 1

        with inline():
            handle = order.then(price).enqueue(6)

            assert handle is not None
            assert handle.result() == 70

    def test_a_task_as_in_celery_has_one(self) -> None:
        app = Celery("shop")

        @app.task
        def add(left: int, right: int) -> int:
            return left + right

        with inline():
            found = add.delay(1, 2)

            assert (found.get(timeout=1), found.status) == (3, "SUCCESS")
            assert app.AsyncResult(found.id).get() == 3


@pytest.mark.parametrize("mode", [fake, inline])
def test_a_job_that_waits_without_a_timeout_fails_as_in_a_worker(
    mode: Callable[[], AbstractContextManager[object]], price: JobFunction[[int], int]
) -> None:
    """Also for a job that has ended: a test must not pass where each run of a worker fails."""
    ended: list[Handle[int]] = []

    @job(retry=0)
    def waits() -> None:
        ended[0].result()

    @job(retry=0)
    async def awaits() -> None:
        await ended[0].aresult()

    with mode():
        ended.append(enqueued(price, 7))
        drain()

        for waiting in (waits, awaits):
            with pytest.raises(UsageError, match="without a timeout"):
                waiting.perform_async()
                drain()


class TestFake:
    def test_it_is_there_once_the_job_has_run(self, price: JobFunction[[int], int]) -> None:
        with fake():
            handle = enqueued(price, 7)
            assert handle.status().state == "pending"
            for timeout in (None, 0, 5):
                with pytest.raises(TimeoutError, match=r"drain\(\)"):
                    handle.result(timeout)

            drain()

            assert handle.result() == 70

    @pytest.mark.parametrize(("order", "error"), [(-1, "ValueError"), (0, "kiqcluster.errors.NormalFailure")])
    def test_a_failure_is_raised(self, price: JobFunction[[int], int], order: int, error: str) -> None:
        with fake():
            handle = enqueued(price, order)

            drain(raise_errors=False)

            assert (handle.status().state, handle.status().error_class) == ("failed", error)
            with pytest.raises(JobFailed):
                handle.result()

    def test_a_job_that_was_cancelled_or_has_expired_was_dropped(self, price: JobFunction[[int], int]) -> None:
        with fake(), frozen_clock(NOON) as clock:
            cancelled, late = enqueued(price, 1), price.set(expires_in=60).enqueue(2)
            assert late is not None

            assert cancel(cancelled.jid)
            clock.move(timedelta(hours=1))
            drain()

            for handle, reason in ((cancelled, "cancelled"), (late, "expiry")):
                assert (handle.status().state, handle.status().reason) == ("dropped", reason)
                with pytest.raises(JobDropped):
                    handle.result()

    def test_a_class_without_the_option_keeps_none(self) -> None:
        @job
        def note() -> None: ...

        with fake():
            handle = note.enqueue()
            assert handle is not None

            with pytest.raises(UsageError, match="result_ttl"):
                handle.result()

    def test_after_its_mode_nobody_knows_it(self, price: JobFunction[[int], int]) -> None:
        with fake():
            handle = enqueued(price, 7)

        with real(), pytest.raises(UsageError, match="mode that has ended"):
            handle.result()
