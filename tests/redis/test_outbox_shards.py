"""A relay whose Redis gives no answer, loses a reply, or refuses all jobs: rows wait, and others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.orm import Session

from kiqcluster import Client, job
from kiqcluster.client.writes import write_all
from kiqcluster.contrib.outbox import relay as relays
from kiqcluster.contrib.outbox.relay import NotRelayed
from kiqcluster.contrib.sqlalchemy import outbox, use_outbox
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import RedisServer
from tests.proxy import Proxy
from tests.redis.outbox_stage import count

pytestmark = pytest.mark.usefixtures("registry")
USER = "outbox_relay"


@pytest.fixture
def ship(setup: Setup, store: Store) -> Any:
    setup.store = store

    @job
    def ship(order: int) -> None: ...

    return ship


@pytest.fixture
def errors(setup: Setup) -> list[Exception]:
    found: list[Exception] = []
    setup.error_handler(lambda error, context: found.append(error))
    return found


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many jobs each push had."""
    sizes: list[int] = []

    def counted(store: Store, jobs: Any, wait_replicas: int) -> Any:
        sizes.append(len(jobs))
        return write_all(store, jobs, wait_replicas)

    monkeypatch.setattr(relays, "write_all", counted)
    return sizes


def write(database: sql.Engine, job: Any, numbers: range) -> None:
    with Session(database) as session, session.begin():
        outbox(session, job, push_after_commit=False).perform_bulk([[number] for number in numbers])


def length(store: Store, queue: str = "default") -> int:
    return int(store.call("LLEN", f"queue:{queue}"))


@contextmanager
def out_of_memory(store: Store, _setup: Setup, _server: RedisServer) -> Iterator[None]:
    store.call("CONFIG", "SET", "maxmemory", "1")
    try:
        yield
    finally:
        store.call("CONFIG", "SET", "maxmemory", "0")


@contextmanager
def wrong_password(store: Store, setup: Setup, server: RedisServer) -> Iterator[None]:
    setup.store = Store(server.url.replace("//", "//nobody:wrong@"))
    yield
    setup.store = store


@contextmanager
def forbidden_command(store: Store, setup: Setup, server: RedisServer) -> Iterator[None]:
    store.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", "-lpush", "~*")
    setup.store = Store(server.url.replace("//", f"//{USER}:pw@"))
    yield
    setup.store = store
    store.call("ACL", "DELUSER", USER)


@pytest.mark.parametrize("refusing", [out_of_memory, wrong_password, forbidden_command])
def test_a_redis_that_refuses_all_jobs_is_asked_once_a_look_and_reported_once(
    refusing: Callable[[Store, Setup, RedisServer], Any],
    database: sql.Engine,
    ship: Any,
    store: Store,
    setup: Setup,
    redis_server: RedisServer,
    errors: list[Exception],
    pushes: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    write(database, ship, range(5))
    relay = use_outbox(database)
    with refusing(store, setup, redis_server):
        for _ in range(3):
            assert not relay.move()

    assert (length(store), relay.table.summary().waiting, relay.table.summary().refused) == (0, 5, 0)
    assert set(pushes) == {5}, "no row by itself"
    assert [type(error) for error in errors] == [NotRelayed]
    relay.move()
    relay.move()
    assert (length(store), count(database), len(errors)) == (5, 0, 1)
    assert [record.message for record in caplog.records if "again" in record.message] == [
        "outbox default: the shard 'default' takes rows again"
    ]


def test_a_key_that_is_not_allowed_holds_up_only_its_rows(
    database: sql.Engine, ship: Any, store: Store, setup: Setup, redis_server: RedisServer
) -> None:
    write(database, ship.set(queue="secret"), range(2))
    write(database, ship, range(2))
    store.call("ACL", "SETUSER", USER, "reset", "on", ">pw", "+@all", "~queues", "~queue:default")
    setup.store = Store(redis_server.url.replace("//", f"//{USER}:pw@"))
    relay = use_outbox(database)
    relay.move()
    store.call("ACL", "DELUSER", USER)

    assert (length(store), length(store, "secret")) == (2, 0)
    assert relay.table.summary().refused == 2


def test_a_shard_that_is_away_is_told_once_and_so_is_its_return(
    database: sql.Engine, ship: Any, store: Store, setup: Setup, errors: list[Exception], caplog: Any
) -> None:
    away = setup.shards["far"] = Store("redis://127.0.0.1:1/0", name="far", timeout=0.2)
    with Client.via(away):
        write(database, ship, range(1))
    relay = use_outbox(database)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            relay.move()
        setup.shards["far"] = store
        for _ in range(3):
            relay.move()

    said = [record.message for record in caplog.records if "outbox default" in record.message]
    assert [line.partition(" until")[0] for line in said] == [
        "outbox default: rows for the shard 'far' wait",
        "outbox default: the shard 'far' takes rows again",
    ]
    assert (errors, length(store)) == ([], 1)


def test_after_a_lost_reply_the_same_rows_wait_for_the_next_look(
    database: sql.Engine, ship: Any, store: Store, setup: Setup, redis_server: RedisServer, pushes: list[int]
) -> None:
    size = relays.BATCH_SIZE
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        setup.shards["far"] = Store(proxy.url, name="far", timeout=0.3)
        with Client.via(setup.shards["far"]):
            write(database, ship.set(queue="far"), range(size))
        write(database, ship, range(2))
        proxy.lose_replies(b"LPUSH", times=1)
        relay = use_outbox(database)
        looks = [relay.move(), relay.move()]

        assert looks == [True, False]
        assert (pushes, length(store)) == ([size, 2], 2), "rows of other shards go on"
        while relay.move():
            pass
        assert (pushes[2:], count(database)) == ([size], 0)
