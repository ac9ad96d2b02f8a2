"""Pushes that wait for replicas: confirmed is on a replica; not confirmed raises, and says that the job is there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster import Client, Job, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import InvalidPush, JobDefinitionError, NotReplicated, StoreError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Connection, Store
from kiqcluster.store.guarded_push import push_guarded
from tests.kit import TIMEOUT_SECONDS, RedisServer, wait_until

pytestmark = pytest.mark.usefixtures("setup")

ITEM = {"class": "Any", "args": [1]}


@pytest.fixture(scope="module")
def replica(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A replica of the test's server."""
    primary, replica = redis_server.store(), RedisServer()
    (_, delay) = primary.call("CONFIG", "GET", "repl-diskless-sync-delay")
    primary.call("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    replica.store().call("REPLICAOF", "127.0.0.1", redis_server.port)
    wait_until(lambda: replica.store().call("ROLE")[3] == b"connected", "the replica to follow")
    primary.call("CONFIG", "SET", "repl-diskless-sync-delay", delay)
    yield replica
    replica.close()
    primary.close()


@pytest.fixture
def client(store: Store, setup: Setup) -> Client:
    """A client that waits for replicas as long as any."""
    return Client(store, setup)


@pytest.fixture
def hasty(store: Store, setup: Setup, redis_server: RedisServer) -> Client:
    """One that waits for half a second."""
    return Client(Store(redis_server.url, timeout=1.0), setup)


def jids(store: Store, queue: str = "default") -> list[str]:
    return [json.loads(raw)["jid"] for raw in reversed(store.call("LRANGE", f"queue:{queue}", 0, -1))]


def test_a_confirmed_push_is_on_the_replica(client: Client, replica: RedisServer) -> None:
    for _ in range(100):
        jid = client.push(ITEM, wait_replicas=1)
        assert jids(replica.store())[-1] == jid


def test_one_that_is_not_confirmed_raises_and_is_enqueued_once(
    client: Client, hasty: Client, store: Store, replica: RedisServer
) -> None:
    client.push(ITEM, wait_replicas=1)
    with replica.stalled(), pytest.raises(NotReplicated, match="stored, but 0 of 1 replicas") as caught:
        hasty.push(ITEM, wait_replicas=1)

    error = caught.value
    assert isinstance(error, StoreError)
    assert (error.wanted, error.confirmed, error.jids) == (1, 0, error.enqueued)
    assert jids(store)[1:] == list(error.jids)
    wait_until(lambda: jids(replica.store()) == jids(store), "the replica to get it after all")


def test_more_replicas_than_there_are_confirm_nothing(client: Client, store: Store, replica: RedisServer) -> None:
    with pytest.raises(NotReplicated, match="stored, but 1 of 2 replicas") as caught:
        client.push(ITEM, wait_replicas=2)

    assert (caught.value.confirmed, jids(store)) == (1, list(caught.value.jids))


def test_a_bulk_push_ends_with_the_first_round_trip_that_is_not_confirmed(
    client: Client, hasty: Client, store: Store, replica: RedisServer
) -> None:
    many = {"class": "Any", "args": [[number] for number in range(2_500)]}
    assert len(client.push_bulk(many, wait_replicas=1)) == 2_500 == store.call("LLEN", "queue:default")
    store.call("DEL", "queue:default")

    with replica.stalled(), pytest.raises(NotReplicated) as caught:
        hasty.push_bulk(many, wait_replicas=1)

    assert jids(store) == list(caught.value.jids) == list(caught.value.enqueued)
    assert len(caught.value.jids) == 1_000


def test_a_job_that_a_lock_has_refused_is_not_among_those_that_are_stored(
    registry: Registry, setup: Setup, store: Store, replica: RedisServer, redis_server: RedisServer
) -> None:
    @job(deduplicate="until_executed", wait_replicas=1)
    def report(number: int) -> None: ...

    first = report.perform_async(1)
    setup.store = Store(redis_server.url, timeout=1.0)
    with replica.stalled():
        with pytest.raises(NotReplicated) as caught:
            report.perform_bulk([[1], [2], [3], [2]])
        assert report.perform_async(1) == first, "nothing was stored that could be lost"

    assert [first, *caught.value.jids] == jids(store)
    assert len(caught.value.jids) == 2
    assert caught.value.jids == caught.value.enqueued


def test_coroutines_get_the_error_with_their_own_jobs(store: Store, replica: RedisServer) -> None:
    @job(wait_replicas=2)
    def report(number: int) -> None: ...

    async def push_all() -> list[Any]:
        pushes = [report.aenqueue(1), report.aenqueue_bulk([[2], [3]]), report.aenqueue_bulk([[4]] * 1_500)]
        return await asyncio.wait_for(asyncio.gather(*pushes, return_exceptions=True), TIMEOUT_SECONDS)

    errors = asyncio.run(push_all())

    assert [type(error) for error in errors] == [NotReplicated] * 3
    assert [len(error.jids) for error in errors] == [1, 2, 1_000]
    assert [jid for error in errors for jid in error.enqueued] == jids(store)


def test_what_another_connection_has_written_does_not_count_as_confirmed(
    registry: Registry, setup: Setup, store: Store, replica: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is renewed between the script and WAIT has nothing to wait for."""

    @job(deduplicate="until_executed", wait_replicas=1)
    def report(number: int) -> None: ...

    def push_and_lose_the_connection(connection: Connection, *rest: Any) -> Any:
        try:
            return push_guarded(connection, *rest)
        finally:
            connection.close()

    monkeypatch.setattr("kiqcluster.client.writes.push_guarded", push_and_lose_the_connection)

    with pytest.raises(NotReplicated, match="stored, but 0 of 1 replicas"):
        report.perform_async(1)

    assert len(jids(store)) == 1


def test_a_job_may_want_it_for_all_its_pushes_or_for_one(
    registry: Registry, setup: Setup, hasty: Client, store: Store, replica: RedisServer, redis_server: RedisServer
) -> None:
    class Payment(Job, wait_replicas=1):
        def perform(self, number: int) -> None: ...

    @job()
    def mail(number: int) -> None: ...

    mail.set(wait_replicas=1).perform_async(1)
    Payment.perform_async(1)
    pushes: list[Any] = [
        lambda: Payment.perform_async(2),
        lambda: Payment.perform_in(60, 2),
        lambda: Payment.perform_bulk([[2]]),
        lambda: Payment.set(queue="low").perform_async(2),
        lambda: mail.set(wait_replicas=1).perform_async(2),
        lambda: mail.set(wait_replicas=1).set(queue="low").perform_async(2),
        lambda: hasty.push({"class": "Payment", "args": [2]}),
    ]
    setup.store = Store(redis_server.url, timeout=1.0)
    with replica.stalled():
        for push in pushes:
            with pytest.raises(NotReplicated):
                push()
        mail.perform_async(3)
        Payment.set(wait_replicas=0).perform_async(3)
        hasty.push({"class": "Payment", "args": [3]}, wait_replicas=0)

    stored = [*store.call("LRANGE", "queue:default", 0, -1), *store.call("ZRANGE", "schedule", 0, -1)]
    assert len(stored) == 10
    assert all(b"wait_replicas" not in raw for raw in stored)


@pytest.mark.parametrize("wrong", [-1, True, "1", 1.5])
def test_what_is_no_number_of_replicas_is_refused(client: Client, store: Store, registry: Registry, wrong: Any) -> None:
    with pytest.raises(InvalidPush, match="wait_replicas"):
        client.push(ITEM, wait_replicas=wrong)
    with pytest.raises(JobDefinitionError, match="wait_replicas"):
        job(name="X", wait_replicas=wrong)(lambda: None)
    with pytest.raises(InvalidPush, match=r"push\(item, wait_replicas=1\)"):
        client.push({**ITEM, "wait_replicas": 1})
    assert jids(store) == []
