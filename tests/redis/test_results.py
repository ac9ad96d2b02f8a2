"""Waits for results: of many coroutines at once, short ones, and those whose Redis goes away."""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.api import DeadSet, Queue, RetrySet, ScheduledSet, bulk
from kiqcluster.api.limits import ParkedJobs
from kiqcluster.application.registry import Registry
from kiqcluster.client import handle as handles
from kiqcluster.client.handle import Handle
from kiqcluster.client.result_waits import ResultWaits, aresult_of
from kiqcluster.contrib.celery import AsyncResult
from kiqcluster.errors import JobDropped, JobFailed, NormalFailure, RedisUnavailable, ReplyLost, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from tests.in_process_worker import Worker
from tests.kit import RedisServer, wait_until
from tests.proxy import Proxy

pytestmark = pytest.mark.usefixtures("setup")

SECONDS = 20.0


@pytest.fixture
def enqueue(store: Store) -> Callable[[], Handle[Any]]:
    """Return a function that enqueues a job, whose result nobody writes but the test."""

    @job(result_ttl=60)
    def price() -> Any: ...

    def push() -> Handle[Any]:
        handle = price.enqueue()
        assert handle is not None
        return handle

    return push


def end(store: Store, handle: Handle[Any], **result: Any) -> None:
    """Write a result as the end of the job would."""
    store.call("RPUSH", store.keys.result(handle.jid), ruby_json.encode({"state": "done", **result}))


def blocked(store: Store) -> int:
    """Return how many connections wait in Redis."""
    found = re.search(rb"blocked_clients:(\d+)", store.call("INFO", "clients"))
    assert found is not None
    return int(found[1])


def with_one_thread(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a loop whose pool has one thread."""

    async def run() -> Any:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        return await asyncio.wait_for(coroutine, SECONDS)

    return asyncio.run(run())


def test_waits_of_coroutines_leave_the_threads_of_their_loop_to_others(
    store: Store, enqueue: Callable[[], Handle[Any]]
) -> None:
    handles = [enqueue() for _ in range(100)]

    async def wait_for_all() -> list[Any]:
        waits = [asyncio.create_task(handle.aresult(SECONDS)) for handle in handles]
        await asyncio.to_thread(wait_until, lambda: blocked(store) == len(handles), "all to wait")
        for number, handle in enumerate(handles):
            await asyncio.to_thread(end, store, handle, value=number)
        return await asyncio.gather(*waits)

    assert with_one_thread(wait_for_all()) == list(range(100))
    assert not ResultWaits.of(store)._waits


def test_a_wait_that_is_cancelled_is_over(store: Store, enqueue: Callable[[], Handle[Any]]) -> None:
    handle, now = enqueue(), SystemClock().monotonic

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(handle.aresult(), 0.1)

    began = now()
    asyncio.run(give_up())

    assert now() < began + SECONDS / 2  # no thread of the loop's waits any longer, so the loop has closed
    wait_until(lambda: blocked(store) == 0, "Redis to hold nothing for it")


@pytest.mark.parametrize("wait", [Handle.result, lambda handle, seconds: asyncio.run(handle.aresult(seconds))])
def test_a_timeout_says_that_the_job_has_failed_and_waits_for_its_retry(
    store: Store,
    enqueue: Callable[[], Handle[Any]],
    wait: Callable[[Handle[Any], float], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handle, other = enqueue(), enqueue()
    failed = {"class": "price", "args": [], "jid": handle.jid, "error_class": "DoesNotExist", "error_message": "no 999"}
    store.call("ZADD", store.keys.retry, "2000000000", ruby_json.encode(failed), "1", f"no JSON {handle.jid}")

    with pytest.raises(TimeoutError, match=r"has not ended within .* s$"):
        wait(handle, 0.01)  # for so short a wait, Redis does not look through the set
    monkeypatch.setattr(handles, "MIN_EXPLAINED_SECONDS", 0.01)
    with pytest.raises(TimeoutError, match=r"within .* s: it has failed \(DoesNotExist\) and waits for a retry$"):
        wait(handle, 0.01)
    with pytest.raises(TimeoutError, match=r"has not ended within .* s$"):
        wait(other, 0.01)


def test_a_timeout_explains_a_job_whose_id_is_a_pattern(
    store: Store, enqueue: Callable[[], Handle[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller may name any id (`set(jid=…)`)."""
    monkeypatch.setattr(handles, "MIN_EXPLAINED_SECONDS", 0.01)
    handle = enqueue()
    handle.jid, handle.jids = "order[7]*", ("order[7]*",)
    failed = {"class": "price", "args": [], "jid": handle.jid, "error_class": "DoesNotExist"}
    store.call("ZADD", store.keys.retry, "2000000000", ruby_json.encode(failed))

    with pytest.raises(TimeoutError, match=r"it has failed \(DoesNotExist\) and waits for a retry$"):
        handle.result(0.01)


@pytest.mark.parametrize("seconds", [-1, 0, 1e-9])
def test_a_job_that_has_ended_needs_no_time(store: Store, enqueue: Callable[[], Handle[Any]], seconds: float) -> None:
    handle = enqueue()
    for wait in (handle.result, lambda timeout: asyncio.run(handle.aresult(timeout))):
        with pytest.raises(TimeoutError, match="has not ended within"):
            wait(seconds)

    end(store, handle, value=[1, "two"])

    assert handle.result(seconds) == asyncio.run(handle.aresult(seconds)) == [1, "two"]


def test_a_large_result_comes_to_a_coroutine(store: Store, enqueue: Callable[[], Handle[Any]]) -> None:
    handle = enqueue()

    async def wait() -> Any:
        waiting = asyncio.create_task(handle.aresult(SECONDS))
        await asyncio.to_thread(wait_until, lambda: blocked(store) == 1, "it to wait")
        await asyncio.to_thread(end, store, handle, value="x" * 900_000)
        return await waiting

    assert asyncio.run(wait()) == "x" * 900_000


def test_a_coroutine_is_told_that_redis_goes_away_and_can_wait_again(
    redis_server: RedisServer, enqueue: Callable[[], Handle[Any]]
) -> None:
    handle, store = enqueue(), redis_server.store()
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        waiting = Handle(handle.jid, handle._definition, Store(proxy.url))

        async def wait() -> None:
            tasks = [asyncio.create_task(waiting.aresult(SECONDS)) for _ in range(5)]
            await asyncio.to_thread(wait_until, lambda: blocked(store) == 5, "all to wait")
            with proxy.away():
                assert {type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)} == {ReplyLost}
                again = await asyncio.gather(*(waiting.aresult(1) for _ in range(5)), return_exceptions=True)
                assert {type(each) for each in again} == {RedisUnavailable}
            end(store, handle, value=7)
            assert await waiting.aresult(SECONDS) == 7

        asyncio.run(wait())


def test_an_error_in_the_thread_comes_to_all_that_wait_and_they_can_wait_again(
    store: Store, enqueue: Callable[[], Handle[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = enqueue()

    async def wait() -> list[Any]:
        waits = asyncio.gather(*(handle.aresult(SECONDS) for _ in range(3)), return_exceptions=True)
        return await asyncio.wait_for(waits, SECONDS)

    def out_of_memory(_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(ResultWaits, "_end_overdue", out_of_memory)
        assert [type(each) for each in asyncio.run(wait())] == [MemoryError] * 3

    end(store, handle, value=7)
    assert asyncio.run(wait()) == [7] * 3


def test_a_job_that_has_failed_without_an_error_has_failed(store: Store, enqueue: Callable[[], Handle[Any]]) -> None:
    handle = enqueue()
    end(store, handle, state="failed", error_class="", error_message="")

    with pytest.raises(JobFailed):
        handle.result(0)


def test_the_thread_ends_with_its_store(redis_server: RedisServer) -> None:
    store = redis_server.store()
    assert asyncio.run(aresult_of(store, "nothing", 0)) is None
    waits = ResultWaits.of(store)

    store.close()
    del store
    gc.collect()

    assert waits.join(SECONDS)


def test_a_job_that_failed_in_the_sense_of_its_work_is_no_success(
    store: Store, setup: Setup, registry: Registry
) -> None:
    @job(result_ttl=60)
    def check_row(name: str) -> None:
        raise NormalFailure(f"row {name} is empty")

    handle = check_row.enqueue("7")
    assert handle is not None

    assert isinstance(Worker(store, setup, registry).run(), Done)

    assert (handle.status().state, handle.status().error_message) == ("failed", "row 7 is empty")
    with pytest.raises(JobFailed, match="row 7 is empty"):
        handle.result(0)


def test_a_job_waits_for_another_one_only_with_a_timeout(
    store: Store, enqueue: Callable[[], Handle[Any]], setup: Setup, registry: Registry
) -> None:
    ended, refused = enqueue(), list[str]()
    end(store, ended, value=7)

    @job(queue="parents")
    def parent() -> None:
        waits = (ended.result, AsyncResult(ended).get, lambda: asyncio.run(ended.aresult()))
        for wait in waits:
            with pytest.raises(UsageError, match="give a timeout") as caught:
                wait()
            refused.append(str(caught.value))
        assert (ended.result(0), asyncio.run(ended.aresult(SECONDS))) == (7, 7)

    parent.perform_async()
    assert isinstance(Worker(store, setup, registry).run("parents"), Done)

    assert len(refused) == 3
    assert (ended.result(), asyncio.run(ended.aresult())) == (7, 7)  # outside of jobs


def moved_to(store: Store, name: str) -> bytes:
    """Move the only job of the queue to a sorted set, or to a line of parked jobs."""
    raw: bytes = store.call("RPOP", "queue:default")
    if name != "parked":
        store.call("ZADD", name, 9e9, raw)
        return raw
    slots = store.keys.slots("price")
    store.call("SADD", store.keys.parked_sets, slots)
    store.call("ZADD", store.keys.parked(slots), 1, b"queue:default\0" + raw)
    return raw


def start_bulk(store: Store, source: Any, verb: str) -> None:
    action = bulk.ask(store, source, verb, bulk.Selection())
    runner = bulk.BulkRunner()
    assert bulk.start(store, action)
    runner.run(store, action)
    assert runner.wait(SECONDS)


@pytest.mark.parametrize("way", ["delete", "bulk"])
def test_who_waits_for_a_job_that_is_deleted_from_its_queue_is_told(
    store: Store, enqueue: Callable[[], Handle[Any]], way: str
) -> None:
    handles = [enqueue() for _ in range(3)]

    if way == "bulk":
        start_bulk(store, Queue("default", store=store), "delete")
    else:
        Queue("default", store=store).delete_all(list(Queue("default", store=store)))

    assert [(each.status().state, each.status().reason) for each in handles] == [("dropped", "deleted")] * 3
    with pytest.raises(JobDropped, match="deleted"):
        handles[0].result(0)


@pytest.mark.parametrize("place", ["schedule", "retry", "parked"])
@pytest.mark.parametrize("way", ["delete", "bulk"])
def test_who_waits_for_a_job_that_is_deleted_where_it_waits_is_told(
    store: Store, enqueue: Callable[[], Handle[Any]], place: str, way: str
) -> None:
    handle = enqueue()
    moved_to(store, place)

    if place == "parked":
        parked = ParkedJobs("price", store=store)
        assert parked.delete_all(list(parked)) == 1
    else:
        kind = ScheduledSet if place == "schedule" else RetrySet
        start_bulk(store, kind, "delete") if way == "bulk" else kind(store=store).delete(list(kind(store=store)))

    assert (handle.status().state, handle.status().reason) == ("dropped", "deleted")


@pytest.mark.parametrize("way", ["kill", "bulk"])
def test_who_waits_for_a_job_that_is_killed_by_hand_is_told(
    store: Store, enqueue: Callable[[], Handle[Any]], way: str
) -> None:
    handle = enqueue()
    moved_to(store, "retry")

    retries = RetrySet(store=store)
    start_bulk(store, RetrySet, "kill") if way == "bulk" else retries.kill(list(retries))

    with pytest.raises(JobFailed, match="moved to the dead set by hand"):
        handle.result(0)
    assert len(DeadSet(store=store)) == 1


def test_a_dead_job_that_is_deleted_keeps_its_end(store: Store, enqueue: Callable[[], Handle[Any]]) -> None:
    handle = enqueue()
    moved_to(store, "dead")
    end(store, handle, state="failed", error_class="ValueError", error_message="no luck")

    dead = DeadSet(store=store)
    assert dead.delete(list(dead)) == 1

    assert handle.status().error_message == "no luck"


def test_who_waits_for_a_due_job_that_middleware_stops_is_told(
    store: Store, enqueue: Callable[[], Handle[Any]], setup: Setup
) -> None:
    handle = enqueue()
    moved_to(store, "schedule")

    def stop(_push: Any, _call_next: Any) -> None: ...

    setup.client_middleware.add(stop)
    jobs = ScheduledSet(store=store)
    jobs.add_to_queue(list(jobs))

    assert (handle.status().state, handle.status().reason) == ("dropped", "middleware")


def test_who_waits_for_a_chain_whose_job_is_deleted_from_its_queue_is_told(store: Store, registry: Registry) -> None:
    @job
    def load() -> int: ...

    @job(result_ttl=60)
    def price(number: int) -> int: ...

    handle = load.then(price).enqueue()
    assert handle is not None
    (queued,) = Queue("default", store=store)

    assert Queue("default", store=store).delete(queued)

    with pytest.raises(JobDropped, match="load"):
        handle.result(0)
