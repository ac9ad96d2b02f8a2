"""Modes: where pushes go while a test runs, and that what was before comes back."""

from __future__ import annotations

import asyncio
import threading
import uuid
from contextvars import ContextVar

import pytest

import kiqcluster
from kiqcluster import Client, Store, job
from kiqcluster.application.registry import Registry, using_registry
from kiqcluster.errors import InvalidArguments, RedisUnavailable, UsageError
from kiqcluster.job import JobFunction
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.outcome import Retry
from kiqcluster.testing import assert_enqueued, current_fake, drain, enqueued, fake, inline, performed, real, retries

pytestmark = pytest.mark.usefixtures("setup")


class TestFake:
    def test_a_push_is_kept_and_never_gets_to_redis(self) -> None:
        @job(queue="mailers")
        def welcome(user_id: int) -> None: ...

        with fake():
            jid = welcome.perform_async(7)

            (kept,) = enqueued()
        assert (kept.jid, kept.name, kept.args, kept.queue, kept.at) == (jid, "welcome", [7], "mailers", None)

    def test_what_the_block_was_in_comes_back_even_after_an_error(self, setup: Setup) -> None:
        @job
        def welcome() -> None: ...

        with pytest.raises(ZeroDivisionError), fake():
            raise ZeroDivisionError

        assert setup.delivery is None
        with pytest.raises(RedisUnavailable):
            welcome.perform_async()

    def test_a_nested_block_has_jobs_of_its_own(self) -> None:
        @job
        def welcome(user_id: int) -> None: ...

        with fake():
            welcome.perform_async(1)
            with fake():
                welcome.perform_async(2)
                assert [each.args for each in enqueued()] == [[2]]
            welcome.perform_async(3)

            assert [each.args for each in enqueued()] == [[1], [3]]

    def test_the_id_of_a_last_job_cancels_a_chain_that_waits_for_its_time(self) -> None:
        @job
        def load(number: int) -> int: ...

        with fake():
            last = load.then(load).perform_in(60, 1)
            assert last is not None
            assert kiqcluster.cancel(last)
            assert enqueued() == []

            last = load.then(load).perform_async(1)
            assert last is not None
            assert not kiqcluster.cancel(last)
            assert len(enqueued()) == 1

    @pytest.mark.parametrize("strategy", ["until_executing", "until_executed", "while_executing"])
    def test_every_push_counts_also_of_jobs_that_are_deduplicated(self, strategy: str) -> None:
        ran: list[int] = []

        @job(deduplicate=strategy, **({"reschedule_once": True} if strategy == "until_executed" else {}))
        def welcome(user_id: int) -> None:
            ran.append(user_id)

        with fake():
            assert welcome.perform_async(1) != welcome.perform_async(1)
            assert len(enqueued()) == 2
            drain()
        with inline():
            welcome.perform_async(1)

        assert ran == [1, 1, 1]

    def test_jobs_that_other_threads_push_are_kept_too(self) -> None:
        @job
        def welcome(user_id: int) -> None: ...

        def push(start: int) -> None:
            for number in range(start, start + 100):
                welcome.perform_async(number)

        with fake():
            threads = [threading.Thread(target=push, args=(100 * each,)) for each in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

            assert sorted(each.args[0] for each in enqueued(welcome)) == list(range(400))

    def test_a_client_that_was_made_before_is_kept_from_redis_too(self) -> None:
        client = Client()

        with fake():
            client.push({"class": "Acme::Mail", "args": [1], "queue": "ruby"})

            assert_enqueued("Acme::Mail", 1, queue="ruby")

    def test_arguments_are_as_they_were_when_they_were_pushed(self) -> None:
        @job
        def ship(order: dict) -> None: ...

        with fake():
            order = {"id": 7, "items": [1]}
            ship.perform_async(order)
            order["items"].append(2)

            assert enqueued()[0].args == [{"id": 7, "items": [1]}]

    def test_what_json_cannot_hold_is_refused_as_ever(self) -> None:
        @job
        def ship(order_id: object) -> None: ...

        with fake():
            with pytest.raises(InvalidArguments, match="UUID"):
                ship.perform_async(uuid.uuid4())

            assert enqueued() == []

    def test_client_middleware_sees_every_push(self, setup: Setup) -> None:
        def middleware(push: Push, proceed):
            push.payload["tenant"] = 3
            return None if push.payload["args"] == [0] else proceed()

        @job
        def welcome(user_id: int) -> None: ...

        setup.client_middleware.add(middleware)
        with fake():
            assert welcome.perform_async(0) is None
            welcome.perform_bulk([[1], [0], [2]])

            assert [(each.args, each["tenant"]) for each in enqueued()] == [([1], 3), ([2], 3)]

    def test_a_job_says_which_shard_it_was_for(self) -> None:
        @job
        def welcome() -> None: ...

        with fake():
            with Client.via(Store("redis://127.0.0.1:2/0", name="eu")):
                welcome.perform_async()
            welcome.perform_async()

            assert [each.shard for each in enqueued()] == ["eu", "default"]


class TestInline:
    def test_a_job_has_run_when_its_push_returns(self) -> None:
        ran = []

        @job(queue="low")
        def note(value: object) -> None:
            ran.append((value, current_job().queue, current_job().jid))

        with inline():
            jid = note.perform_async(["x"])

            assert ran == [(["x"], "low", jid)]
            assert enqueued() == []
            assert [each.args for each in performed(note)] == [[["x"]]]

    def test_arguments_go_through_json(self) -> None:
        got = []

        @job
        def note(value: dict) -> None:
            got.append(value)

        with inline():
            value = {"list": []}
            note.perform_async(value)

        assert got == [value]
        assert got[0] is not value

    def test_a_jobs_error_is_raised_by_its_push_and_its_retry_kept(self) -> None:
        @job
        def fail() -> None:
            raise ValueError("no")

        with inline():
            with pytest.raises(ValueError, match="no"):
                fail.perform_async()

            assert [each.error_class for each in retries(fail)] == ["ValueError"]
            assert isinstance(performed()[0].outcome, Retry)

    def test_what_a_job_pushes_runs_after_it_and_before_its_own_push_returns(self) -> None:
        order = []

        @job
        def inner(number: int) -> None:
            order.append(number)

        @job
        def outer() -> None:
            inner.perform_async(1)
            inner.perform_async(2)
            order.append("outer")

        with inline():
            outer.perform_async()

        assert order == ["outer", 1, 2]

    def test_a_job_that_is_due_later_waits(self) -> None:
        ran = []

        @job
        def note() -> None:
            ran.append(1)

        with inline():
            note.perform_in(60)
            assert ran == []

            assert drain(scheduled=True) == 1
        assert ran == [1]

    def test_jobs_after_one_that_failed_stay_enqueued(self) -> None:
        @job
        def divide(by: int) -> None:
            1 / by

        with inline():
            with pytest.raises(ZeroDivisionError):
                divide.perform_bulk([[1], [0], [2]])

            assert [each.args for each in enqueued()] == [[2]]
            divide.perform_async(3)
            assert [each.args for each in performed()] == [[1], [0], [3]]
            assert [each.args for each in enqueued()] == [[2]]
            assert drain() == 1

    def test_threads_run_their_own_jobs(self) -> None:
        ran: list[tuple[int, int]] = []

        @job
        def note(number: int) -> None:
            ran.append((number, threading.get_ident()))

        def push(number: int, pushed_by: list[int]) -> None:
            note.perform_async(number)
            pushed_by.append(threading.get_ident() if (number, threading.get_ident()) in ran else -1)

        with inline():
            pushed_by: list[int] = []
            threads = [threading.Thread(target=push, args=(each, pushed_by)) for each in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        assert -1 not in pushed_by
        assert len(pushed_by) == len(ran) == 8

    def test_a_job_that_only_ruby_has_stays_enqueued(self) -> None:
        with inline():
            Client().push({"class": "Acme::Mail", "args": [1]})

            assert_enqueued("Acme::Mail", 1)

    def test_a_job_that_pushes_itself_for_ever_is_told_apart_from_one_that_hangs(self, monkeypatch) -> None:
        monkeypatch.setattr("kiqcluster.testing.memory.MAX_RUNS", 50)

        @job
        def again() -> None:
            again.perform_async()

        with (
            inline(),
            pytest.raises(AssertionError, match=r"50 jobs have run, and again\(\) on default is still to come"),
        ):
            again.perform_async()


class TestWhereAnEventLoopRuns:
    """A worker's threads have none, so a job may call asyncio.run; a test that is a coroutine has one."""

    @pytest.fixture
    def ran(self) -> list[str]:
        return []

    @pytest.fixture
    def fetch(self, ran: list[str]) -> JobFunction[[str], None]:
        @job
        def read(url: str) -> None:
            ran.append(f"read {url}")

        @job(retry=False)
        def fetch(url: str) -> None:
            async def get() -> None:
                if not url:
                    raise ValueError("no url")
                read.perform_async(url)
                ran.append(f"fetched {url}")

            asyncio.run(get())

        return fetch

    def test_a_push_inline_runs_its_jobs(self, fetch: JobFunction[[str], None], ran: list[str]) -> None:
        async def test() -> None:
            with inline():
                fetch.perform_async("a")

        asyncio.run(test())

        assert ran == ["fetched a", "read a"]

    def test_a_drain_runs_its_jobs(self, fetch: JobFunction[[str], None], ran: list[str]) -> None:
        async def test() -> int:
            with fake():
                fetch.perform_async("a")
                return drain()

        assert asyncio.run(test()) == 2
        assert ran == ["fetched a", "read a"]

    def test_a_jobs_error_comes_out(self, fetch: JobFunction[[str], None]) -> None:
        async def test() -> None:
            with inline():
                fetch.perform_async("")

        with pytest.raises(ValueError, match="no url"):
            asyncio.run(test())

    def test_jobs_see_the_tests_context(self, ran: list[str]) -> None:
        tenant = ContextVar("tenant", default="nobody")

        @job
        def note() -> None:
            ran.append(tenant.get())

        async def test() -> None:
            tenant.set("acme")
            with inline():
                note.perform_async()

        asyncio.run(test())

        assert ran == ["acme"]


class TestReal:
    def test_jobs_go_to_redis_within_a_fake_block(self, store: Store) -> None:
        @job
        def welcome() -> None: ...

        with fake():
            with real(), Client.via(store):
                welcome.perform_async()

            assert enqueued() == []
        assert store.call("LLEN", "queue:default") == 1

    def test_what_asks_for_kept_jobs_says_how_to_keep_them(self) -> None:
        with pytest.raises(UsageError, match="kiq_fake"):
            enqueued()
        with fake(), real(), pytest.raises(UsageError, match="no jobs are kept here"):
            drain()


def test_the_mode_of_a_registry_and_set_up_of_ones_own_is_its_own() -> None:
    with fake():
        mine = current_fake()
        with using_registry(Registry()):
            assert current_fake() is mine


class TestAsyncJobs:
    def test_they_run_when_the_queues_are_drained(self) -> None:
        seen: list[str] = []

        @job
        async def greet(name: str) -> None:
            running = await asyncio.to_thread(current_job)
            seen.append(f"{name} {running and running.name}")

        with fake():
            greet.perform_async("Ada")
            drain()

        assert seen == ["Ada greet"]

    def test_they_run_inline_also_within_a_loop(self) -> None:
        @job
        async def double(number: int) -> int:
            await asyncio.to_thread(seen.append, number)
            return 2 * number

        seen: list[int] = []

        async def caller() -> object:
            double.perform_async(1)
            return double.perform_inline(2)

        with inline():
            assert asyncio.run(caller()) == 4

        assert seen == [1, 2]
