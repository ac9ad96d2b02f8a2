"""Sessions that know databases by table (`binds`): which are refused by outbox and once, and what the error advises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.contrib.sqlalchemy import InboxKey, OutboxJob, aonce, once, outbox
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import wait_until
from tests.redis.outbox_stage import Base, Effect, count

CALLS: dict[str, Callable[[Any, Any], object]] = {
    "outbox": lambda session, ship: outbox(session, ship).enqueue(7),
    "items": lambda session, _: outbox(session).push({"class": "Ship", "args": [7]}),
    "once": lambda session, _: once(session, "order"),
}


@pytest.fixture
def ship(setup: Setup, store: Store, registry: Registry) -> Any:
    setup.store = store

    @job
    def ship(order: int) -> None: ...

    return ship


@pytest.mark.parametrize("kind", ["binds", "no bind", "savepoint", "scoped"])
@pytest.mark.parametrize("call", CALLS)
def test_a_session_that_knows_no_database_for_the_tables_is_told_what_to_add(
    call: str, kind: str, database: sql.Engine, ship: Any
) -> None:
    maker = sessionmaker(binds={} if kind == "no bind" else {Base: database})
    session: Any = scoped_session(maker) if kind == "scoped" else maker()
    with session.begin():
        if kind == "savepoint":
            session.begin_nested()

        with pytest.raises(UsageError, match="add OutboxJob and InboxKey to binds"):
            CALLS[call](session, ship)


def test_a_coroutine_is_told_so_too() -> None:
    with pytest.raises(UsageError, match="add OutboxJob and InboxKey to binds"):
        asyncio.run(aonce(AsyncSession(), "order"))


@pytest.mark.parametrize("call", CALLS)
def test_a_session_with_the_advised_binds_is_taken(call: str, database: sql.Engine, ship: Any, store: Store) -> None:
    maker = sessionmaker(binds={Base: database, OutboxJob: database, InboxKey: database})

    with maker.begin() as session, session.begin_nested():
        CALLS[call](session, ship)
        session.add(Effect(name="order"))

    assert count(database, Effect) == 1
    if call == "once":
        assert count(database, InboxKey) == 1
    else:
        wait_until(lambda: store.call("LLEN", "queue:default") == 1, "the sender to push the row")


def test_each_asks_for_its_own_table_alone(database: sql.Engine) -> None:
    with Session(binds={InboxKey: database}) as session, session.begin(), session.begin_nested():
        assert once(session, "order")
