"""The outbox of SQLAlchemy: jobs are pushed if their transaction is committed, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from kiqcluster import Client, Job, job
from kiqcluster import testing as kiq_testing
from kiqcluster.contrib.outbox.relay import NoTables, NotRelayed
from kiqcluster.contrib.sqlalchemy import InboxKey, OutboxJob, begin_on_sqlite, once, outbox, use_outbox
from kiqcluster.contrib.sqlalchemy.models import check_transactional
from kiqcluster.contrib.sqlalchemy.outbox import SENDERS
from kiqcluster.errors import InvalidArguments, NotReplicated, UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from tests.kit import require_module, wait_until
from tests.redis.outbox_stage import Effect, count, fresh

pytestmark = pytest.mark.usefixtures("registry")


@pytest.fixture
def in_redis(setup: Setup, store: Store) -> Setup:
    setup.store = store
    return setup


@pytest.fixture
def ship(in_redis: Setup) -> Any:
    @job
    def ship(order: int) -> None: ...

    return ship


def queued(store: Store, queue: str = "default") -> list[Any]:
    return [ruby_json.decode(raw) for raw in reversed(store.call("LRANGE", f"queue:{queue}", 0, -1))]


def quiet(session: Session, job: Any) -> Any:
    """Return the verbs whose rows only a relay pushes."""
    return outbox(session, job, push_after_commit=False)


class TestTransactions:
    def test_a_committed_job_is_pushed_at_once(self, database: sql.Engine, ship: Any, store: Store) -> None:
        with Session(database) as session, session.begin():
            session.add(Effect(name="order"))
            handle = outbox(session, ship).enqueue(7)
            session.flush()
            assert queued(store) == []

        wait_until(lambda: queued(store), "the sender to push the job")
        (payload,) = queued(store)
        assert (payload["jid"], payload["class"], payload["args"]) == (handle.jid, "ship", [7])
        wait_until(lambda: count(database) == 0, "the row to be deleted")

    def test_a_rolled_back_job_is_not(self, database: sql.Engine, ship: Any, store: Store) -> None:
        with Session(database) as session, session.begin():
            outbox(session, ship).enqueue(7)
            session.flush()
            session.rollback()
        relay = use_outbox(database)
        assert not relay.move()
        assert (queued(store), count(database)) == ([], 0)

    def test_a_rolled_back_savepoint_takes_its_jobs_with_it(
        self, database: sql.Engine, ship: Any, store: Store
    ) -> None:
        with Session(database) as session, session.begin():
            session.add(Effect(name="first"))
            session.flush()
            with pytest.raises(ZeroDivisionError), session.begin_nested():
                outbox(session, ship).enqueue(1)
                session.flush()
                raise ZeroDivisionError
            with session.begin_nested():
                outbox(session, ship).enqueue(2)
            assert queued(store) == [], "nothing is pushed at the end of a savepoint"
            outbox(session, ship).enqueue(3)

        wait_until(lambda: len(queued(store)) == 2, "the sender to push both jobs")
        assert sorted(payload["args"][0] for payload in queued(store)) == [2, 3]

    def test_wrong_arguments_fail_in_the_transaction(self, database: sql.Engine, ship: Any, store: Store) -> None:
        with pytest.raises(InvalidArguments), Session(database) as session, session.begin():
            session.add(Effect(name="order"))
            outbox(session, ship).enqueue(7, 8)
        assert (count(database), count(database, Effect)) == (0, 0)

    def test_client_middleware_may_stop_a_job(self, database: sql.Engine, ship: Any, in_redis: Setup) -> None:
        in_redis.client_middleware.add(lambda push, proceed: None)
        with Session(database) as session, session.begin():
            assert outbox(session, ship).enqueue(7) is None
        assert count(database) == 0

    def test_a_connection_will_do(self, database: sql.Engine, ship: Any, store: Store) -> None:
        with database.begin() as connection:
            outbox(connection, ship).enqueue(1)
        with pytest.raises(ZeroDivisionError), database.begin() as connection:
            outbox(connection, ship).enqueue(2)
            raise ZeroDivisionError
        use_outbox(database).move()
        assert [payload["args"] for payload in queued(store)] == [[1]]

    def test_a_session_is_used_again(self, database: sql.Engine, ship: Any, store: Store) -> None:
        scoped = scoped_session(sessionmaker(database))
        for number in range(3):
            outbox(scoped, ship).enqueue(number)
            scoped.commit()
            outbox(scoped, ship).enqueue(-1)
            scoped.rollback()
        scoped.remove()
        wait_until(lambda: count(database) == 0, "the sender to push all jobs")
        assert [payload["args"][0] for payload in queued(store)] == [0, 1, 2]

    def test_within_the_transaction_of_a_test_nothing_is_pushed(
        self, database: sql.Engine, ship: Any, store: Store
    ) -> None:
        before = len(SENDERS)
        with database.connect() as connection, connection.begin() as outer:
            session = Session(connection, join_transaction_mode="create_savepoint")
            outbox(session, ship).enqueue(7)
            session.commit()
            session.close()
            outer.rollback()
        assert (len(SENDERS), count(database), queued(store)) == (before, 0, [])

    def test_an_engine_for_each_request_leaves_no_thread(self, database: sql.Engine, ship: Any, store: Store) -> None:
        before = len(SENDERS)
        for number in range(3):
            with Session(database.execution_options(request=number)) as session, session.begin():
                outbox(session, ship).enqueue(number)
        assert (len(SENDERS), count(database)) == (before, 3)
        use_outbox(database).move()
        assert [payload["args"] for payload in queued(store)] == [[0], [1], [2]]

    def test_jobs_in_memory_are_delivered_by_the_commit(self, database: sql.Engine, ship: Any) -> None:
        with kiq_testing.fake(), Session(database) as session:
            outbox(session, ship).enqueue(7)
            assert kiq_testing.enqueued(ship) == []
            session.commit()
            assert [each.args for each in kiq_testing.enqueued(ship)] == [[7]]
            outbox(session, ship).enqueue(8)
            session.rollback()
            assert len(kiq_testing.enqueued(ship)) == 1

    def test_an_async_session_will_do(self, postgres: str, database: sql.Engine, ship: Any, store: Store) -> None:
        if database.dialect.name != "postgresql":
            pytest.skip("no async driver of SQLite here")

        async def order() -> None:
            engine = create_async_engine(postgres)
            async with AsyncSession(engine) as session, session.begin():
                outbox(session, ship).enqueue(7)
            await engine.dispose()

        asyncio.run(order())
        use_outbox(database).move()
        assert [payload["args"] for payload in queued(store)] == [[7]]


class TestVerbs:
    def test_scheduled_times_options_and_bulk(self, database: sql.Engine, ship: Any, store: Store) -> None:
        now = SystemClock.now()
        with Session(database) as session, session.begin():
            quiet(session, ship).perform_in(timedelta(hours=1), 1)
            quiet(session, ship).perform_at(now + 7200, 2)
            quiet(session, ship.set(queue="urgent", retry=3)).perform_async(3)
            jids = quiet(session, ship).perform_bulk([[4], [5]])

        use_outbox(database).move()

        due = store.call("ZRANGE", "schedule", 0, -1, "WITHSCORES")
        assert [round(float(score) - now) for score in due[1::2]] == [3600, 7200]
        (urgent,) = queued(store, "urgent")
        assert (urgent["retry"], urgent["args"]) == (3, [3])
        assert [payload["jid"] for payload in queued(store)] == jids

    def test_classes_chains_and_items(self, database: sql.Engine, ship: Any, store: Store) -> None:
        class Mail(Job, queue="mailers"):
            def perform(self, order: int) -> int:
                return order

        @job
        def announce(order: int) -> None: ...

        with Session(database) as session, session.begin():
            outbox(session, Mail).enqueue(1)
            chain = outbox(session, Mail.set().then(announce)).enqueue(2)
            outbox(session).push({"class": "Acme::Mail", "args": [3], "queue": "mailers"})
            outbox(session).push_bulk({"class": "Acme::Mail", "args": [[4], [5]], "queue": "mailers"})

        wait_until(lambda: len(queued(store, "mailers")) == 5, "the sender to push all jobs")
        payloads = queued(store, "mailers")
        assert [payload["args"][0] for payload in payloads] == [1, 2, 3, 4, 5]
        assert chain is not None
        assert chain.jid in str(payloads[1])

    def test_guards_of_features_decide_at_the_push(self, database: sql.Engine, in_redis: Setup, store: Store) -> None:
        @job(deduplicate="until_executed", deduplicate_ttl=60)
        def ship_once(order: int) -> None: ...

        with Session(database) as session, session.begin():
            quiet(session, ship_once).perform_bulk([[1], [1], [2]])
        use_outbox(database).move()

        assert [payload["args"] for payload in queued(store)] == [[1], [2]]
        assert count(database) == 0

    def test_what_is_no_job_and_no_session(self, database: sql.Engine, ship: Any) -> None:
        with Session(database) as session:
            with pytest.raises(UsageError, match="not 7"):
                outbox(session, 7)  # type: ignore[call-overload]
            with pytest.raises(UsageError, match="configuration"), Client.via(Store("redis://127.0.0.1:1/0")):
                outbox(session, ship).enqueue(7)
        with pytest.raises(UsageError, match="a session or a connection"):
            outbox(object(), ship)  # type: ignore[call-overload]
        with pytest.raises(UsageError, match="AUTOCOMMIT"):
            outbox(Session(database.execution_options(isolation_level="AUTOCOMMIT")), ship)
        with pytest.raises(UsageError, match="not with mysql"):
            check_transactional(SimpleNamespace(dialect=mysql.dialect()))

    def test_a_savepoint_that_would_commit_is_refused(self, tmp_path: Path, ship: Any) -> None:
        engine = sql.create_engine(f"sqlite:///{tmp_path / 'late.db'}")
        with Session(fresh(engine)) as session, session.begin(), session.begin_nested():
            with pytest.raises(UsageError, match="begin_on_sqlite"):
                outbox(session, ship)
            with pytest.raises(UsageError, match="begin_on_sqlite"):
                once(session, key="x")
        engine.dispose()


@contextmanager
def reports(setup: Setup) -> Iterator[list[Exception]]:
    errors: list[Exception] = []
    setup.error_handler(lambda error, context: errors.append(error))
    yield errors


class TestRelay:
    def test_poison_rows_hold_up_only_themselves(
        self, database: sql.Engine, ship: Any, store: Store, in_redis: Setup
    ) -> None:
        store.call("SET", "queue:broken", "no list")
        with Session(database) as session, session.begin():
            quiet(session, ship.set(queue="broken")).enqueue(1)
            quiet(session, ship).perform_bulk([[2], [3], [4], [5]])
            session.flush()
            for number, change in ((2, {"payload": b"no job"}), (3, {"guards": "[7]"}), (4, {"shard": "gone"})):
                session.execute(sql.update(OutboxJob).where(OutboxJob.id == number).values(**change))
        relay = use_outbox(database)
        with reports(in_redis) as errors:
            relay.move()
            relay.move()

        assert [payload["args"] for payload in queued(store)] == [[5]]
        assert len(errors) == 4
        assert all(isinstance(error, NotRelayed) for error in errors)
        summary = relay.table.summary()
        assert (summary.waiting, summary.refused) == (4, 4)
        problems = {row.id: row.problem for row in relay.table.refused(10)}
        assert sorted(problems) == [1, 2, 3, 4]
        assert "WRONGTYPE" in problems[1]
        assert "not JSON" in problems[2]

        store.call("DEL", "queue:broken")
        assert relay.table.retry_refused() == 4
        relay.move()
        assert [payload["args"] for payload in queued(store, "broken")] == [[1]]

    def test_an_outage_leaves_all_rows(self, database: sql.Engine, ship: Any, store: Store, in_redis: Setup) -> None:
        with Session(database) as session, session.begin():
            quiet(session, ship).perform_bulk([[1], [2]])
        relay = use_outbox(database)
        in_redis.store = Store("redis://127.0.0.1:1/0", timeout=0.2)
        for _ in range(3):
            assert not relay.move()
        assert relay.table.summary().refused == 0

        in_redis.store = store
        relay.move()
        assert [payload["args"] for payload in queued(store)] == [[1], [2]]

    def test_a_shard_that_is_away_holds_up_no_other(
        self, database: sql.Engine, ship: Any, store: Store, in_redis: Setup
    ) -> None:
        away = Store("redis://127.0.0.1:1/0", name="far", timeout=0.2)
        in_redis.shards["far"] = away
        with Session(database) as session, session.begin():
            with Client.via(away):
                quiet(session, ship).perform_bulk([[number] for number in range(500)])
            quiet(session, ship).enqueue("near")
        relay = use_outbox(database)
        assert relay.move()
        relay.move()
        assert [payload["args"] for payload in queued(store)] == [["near"]]
        assert count(database) == 500

    def test_two_relays_share_the_rows(self, postgres: str, database: sql.Engine, ship: Any, store: Store) -> None:
        if database.dialect.name != "postgresql":
            pytest.skip("SQLite has one writer")
        with Session(database) as session, session.begin():
            quiet(session, ship).perform_bulk([[1], [2], [3]])
        relay, other = use_outbox(database), use_outbox(database)
        with relay.table.locked(2, SystemClock.now(), (), None) as batch:
            assert len(batch.rows) == 2
            other.move()
            assert [payload["args"] for payload in queued(store)] == [[3]]
        other.move()
        assert sorted(payload["args"][0] for payload in queued(store)) == [1, 2, 3]

    def test_an_unconfirmed_job_is_pushed_once_and_reported_once(
        self, database: sql.Engine, ship: Any, store: Store, in_redis: Setup
    ) -> None:
        with Session(database) as session, session.begin():
            quiet(session, ship.set(wait_replicas=1)).perform_bulk([[1], [2]])
        relay = use_outbox(database)
        with reports(in_redis) as errors:
            relay.move()
            relay.table.retry_refused()
            relay.move()
        assert [payload["args"] for payload in queued(store)] == [[1], [2]]
        assert count(database) == 0
        assert [type(error) for error in errors] == [NotReplicated]

    def test_failing_upkeep_holds_up_no_row(self, database: sql.Engine, ship: Any, store: Store) -> None:
        relay = use_outbox(database)
        InboxKey.__table__.drop(database)
        for number in range(3):
            with Session(database) as session, session.begin():
                quiet(session, ship).enqueue(number)
            with pytest.raises(NoTables, match="kiq_inbox") if number == 0 else nullcontext():
                relay.move()
        assert [payload["args"] for payload in queued(store)] == [[0], [1], [2]]

    def test_without_its_table_it_says_what_to_do(self, database: sql.Engine, in_redis: Setup) -> None:
        relay = use_outbox(database)
        OutboxJob.__table__.drop(database)
        for ask in (relay.move, relay.table.summary, relay.table.retry_refused, lambda: relay.table.refused(1)):
            with pytest.raises(NoTables, match=r"'default' lacks kiq_outbox .* create them"):
                ask()

    def test_an_empty_outbox_of_sqlite_holds_up_no_writer(self, tmp_path: Path, in_redis: Setup) -> None:
        url = f"sqlite:///{tmp_path / 'one_writer.db'}"
        engine, other = (begin_on_sqlite(sql.create_engine(url, connect_args={"timeout": 0.1})) for _ in range(2))
        relay = use_outbox(fresh(engine), keep_inbox=None)
        with other.begin() as writer:
            writer.execute(sql.insert(Effect).values(name="order"))
            assert not relay.move()
        with relay.table.locked(1, SystemClock.now(), (), None), other.begin() as writer:
            writer.execute(sql.insert(Effect).values(name="order"))
        assert count(engine, Effect) == 2
        for each in (engine, other):
            each.dispose()

    def test_use_outbox_replaces_and_refuses(self, database: sql.Engine, in_redis: Setup, ship: Any) -> None:
        first, second = use_outbox(database), use_outbox(database)
        assert in_redis.due_sources == [second]
        assert first is not second
        with pytest.raises(UsageError, match="interval"):
            use_outbox(database, interval=0)

    def test_use_outbox_refuses_an_async_engine(self, in_redis: Setup) -> None:
        require_module("psycopg")
        with pytest.raises(UsageError, match="async"):
            use_outbox(create_async_engine("postgresql+psycopg://kiq@127.0.0.1/postgres"))  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", [lambda each: each.enqueue(7), lambda each: each.perform_in(5, 7)])
def test_a_row_keeps_the_bytes(verb: Callable[[Any], Any], database: sql.Engine, ship: Any, store: Store) -> None:
    with Session(database) as session, session.begin():
        verb(quiet(session, ship))
        session.flush()
        (kept,) = session.scalars(sql.select(OutboxJob.payload))
    use_outbox(database).move()
    raw = store.call("LRANGE", "queue:default", 0, -1) or store.call("ZRANGE", "schedule", 0, -1)
    assert raw == [bytes(kept)]
