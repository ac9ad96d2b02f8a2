"""Pushes of coroutines: what they write is what other pushes write, together, and errors come to those they concern."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kiqcluster import Job, job
from kiqcluster.client.async_writes import Request
from kiqcluster.client.handle import Handle
from kiqcluster.errors import InvalidArguments, RedisRefused, RedisUnavailable
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import Push, Setup, using_setup
from kiqcluster.process.service import NoThread
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.testing import enqueued, fake
from tests.kit import TIMEOUT_SECONDS, RedisServer
from tests.proxy import Proxy
from tests.unit.process.test_service import no_threads

pytestmark = pytest.mark.usefixtures("setup")


@pytest.fixture
def note() -> JobFunction[[int], None]:
    @job
    def note(number: int) -> None: ...

    return note


def queued(store: Store, queue: str = "default") -> list[dict[str, Any]]:
    return [ruby_json.decode(raw) for raw in reversed(store.call("LRANGE", store.keys.queue(queue), 0, -1))]


def lpush_calls(store: Store) -> int:
    found = re.search(r"cmdstat_lpush:calls=(\d+)", store.call("INFO", "commandstats").decode())
    return int(found[1]) if found else 0


def test_a_push_or_a_wait_without_a_thread_raises_instead_of_waiting_for_ever(store: Store) -> None:
    @job(result_ttl=60)
    def note(number: int) -> None: ...

    handle = note.enqueue(1)

    with no_threads():
        for _ in range(2):
            with pytest.raises(NoThread):
                asyncio.run(note.aenqueue(2))
            with pytest.raises(NoThread):
                asyncio.run(handle.aresult(1))

    assert asyncio.run(note.aenqueue(3)) is not None


def test_a_push_writes_what_perform_async_writes(store: Store) -> None:
    class Report(Job, queue="reports", retry=3):
        def perform(self, year: int, draft: bool = False) -> None: ...

    async def push() -> Handle[None] | None:
        return await Report.aenqueue(2026)

    handle, jid = asyncio.run(push()), Report.perform_async(2026)

    first, second = queued(store, "reports")
    assert handle is not None
    assert (first.pop("jid"), second.pop("jid")) == (handle.jid, jid)
    for payload in (first, second):
        assert payload.pop("created_at")
        assert payload.pop("enqueued_at")
    assert first == second


def test_many_at_once_are_written_in_few_round_trips(store: Store, note: JobFunction[[int], None]) -> None:
    async def push_all() -> None:
        await asyncio.gather(*(note.aenqueue(number) for number in range(500)))

    before = lpush_calls(store)
    asyncio.run(push_all())

    assert sorted(payload["args"] for payload in queued(store)) == [[number] for number in range(500)]
    assert lpush_calls(store) - before <= 250  # the loop and the writer take turns as a busy machine has them


def test_a_bulk_push_returns_its_jids_in_order(store: Store, note: JobFunction[[int], None]) -> None:
    async def push() -> list[str | None]:
        return list(await note.aenqueue_bulk([[1], [2], [3]]))

    jids = asyncio.run(push())

    assert [(payload["jid"], payload["args"]) for payload in queued(store)] == [
        (jid, [number]) for number, jid in enumerate(jids, 1)
    ]


def test_a_lock_returns_the_jid_that_holds_it(store: Store) -> None:
    @job(deduplicate="until_executed")
    def rebuild(shop: int) -> None: ...

    async def push() -> list[str]:
        handles = await asyncio.gather(*(rebuild.aenqueue(7) for _ in range(3)))
        return [handle.jid for handle in handles if handle is not None]

    jids = asyncio.run(push())

    assert len(set(jids)) == 1
    assert len(queued(store)) == 1


def test_what_middleware_stops_is_none(setup: Setup, store: Store, note: JobFunction[[int], None]) -> None:
    @setup.client_middleware.add
    def stop(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
        return None

    async def push() -> object:
        return await note.aenqueue(1), await note.aenqueue_bulk([[1]])

    assert asyncio.run(push()) == (None, [None])
    assert queued(store) == []


def test_an_error_comes_to_those_whose_jobs_are_not_enqueued(store: Store, note: JobFunction[[int], None]) -> None:
    @job(queue="broken")
    def other() -> None: ...

    store.call("SET", store.keys.queue("broken"), "no list")

    async def attempt(push: Awaitable[object]) -> object:
        try:
            return await push
        except RedisRefused as error:
            return error.code

    async def push_all() -> list[object]:
        pushes = [note.aenqueue(1), other.aenqueue(), note.aenqueue(2)]
        return list(await asyncio.gather(*map(attempt, pushes)))

    first, second, third = asyncio.run(push_all())

    assert second == "WRONGTYPE"
    assert isinstance(first, Handle)
    assert isinstance(third, Handle)
    assert [payload["args"] for payload in queued(store)] == [[1], [2]]


def out_of_memory_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that raises MemoryError at its first call."""
    errors = [MemoryError()]

    def call(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return function(*arguments)

    return call


def test_an_error_in_the_thread_keeps_nobody_waiting_and_the_next_push_is_written(
    store: Store, note: JobFunction[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def push_all() -> list[Any]:
        pushes = asyncio.gather(*map(note.aenqueue, range(3)), return_exceptions=True)
        return await asyncio.wait_for(pushes, TIMEOUT_SECONDS)

    with monkeypatch.context() as patch:
        patch.setattr(Request, "tell", out_of_memory_once(Request.tell))
        first, *others = asyncio.run(push_all())
        assert isinstance(first, MemoryError)
        assert all(isinstance(each, MemoryError | Handle) for each in others)  # those that came later are written

    assert all(isinstance(each, Handle) for each in asyncio.run(push_all()))


def test_a_wrong_call_and_an_outage_are_raised_in_the_coroutine(note: JobFunction[[int], None]) -> None:
    async def push(*arguments: int) -> object:
        return await note.aenqueue(*arguments)

    with pytest.raises(InvalidArguments):
        asyncio.run(push())
    with using_setup(Setup(store=Store("redis://127.0.0.1:1/0"))), pytest.raises(RedisUnavailable):
        asyncio.run(push(1))


def test_the_loop_goes_on_while_redis_stands_still(own_server: RedisServer, note: JobFunction[[int], None]) -> None:
    steps: list[str] = []

    async def push() -> None:
        await note.aenqueue(1)
        steps.append("enqueued")

    async def push_meanwhile() -> None:
        with own_server.stalled():
            pushing = asyncio.create_task(push())
            await asyncio.to_thread(steps.append, "the loop goes on")
        await pushing

    with using_setup(Setup(store=own_server.store())):
        asyncio.run(push_meanwhile())

    assert steps == ["the loop goes on", "enqueued"]


def test_jobs_of_a_test_stay_in_memory(note: JobFunction[[int], None]) -> None:
    async def push() -> None:
        await note.aenqueue(1)
        await note.aenqueue_bulk([[2]])

    with fake():
        asyncio.run(push())

        assert [each.args for each in enqueued()] == [[1], [2]]


def test_a_redis_that_does_not_answer_keeps_no_push_to_another_one_waiting(
    store: Store, redis_server: RedisServer, note: JobFunction[[int], None]
) -> None:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        slow = Setup(store=Store(proxy.url))

        async def push() -> None:
            with using_setup(slow):
                waiting = asyncio.create_task(note.aenqueue(1))
                await asyncio.wait([waiting], timeout=0)
            assert await note.aenqueue(2) is not None
            assert not waiting.done()
            proxy.flow()
            assert await waiting is not None

        proxy.stall()
        asyncio.run(push())

    assert [payload["args"] for payload in queued(store)] == [[2], [1]]
