"""once(): a job takes effect once, however often it runs, and whatever becomes of its transactions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sql
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.contrib.sqlalchemy import InboxKey, aonce, manage_sessions, once, use_outbox
from kiqcluster.contrib.sqlalchemy.sessions import job_scope
from kiqcluster.errors import UsageError
from kiqcluster.iterable import IterableJob, sequence_enumerator
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done, Retry
from kiqcluster.store import Store
from tests.in_process_worker import Worker
from tests.redis.outbox_stage import Effect, count


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    setup.store = store
    return Worker(store, setup, registry)


def run_again(store: Store, worker: Worker, times: int = 2) -> list[Any]:
    """Run the job of the default queue, and copies of it; return the outcomes."""
    (raw,) = store.call("LRANGE", "queue:default", 0, -1)
    for _ in range(times - 1):
        store.call("LPUSH", "queue:default", raw)
    return [worker.run() for _ in range(times)]


def test_a_second_run_does_nothing(database: sql.Engine, worker: Worker, store: Store) -> None:
    said = []

    @job
    def pay(order: int) -> None:
        with Session(database) as session, session.begin():
            said.append(once(session))
            if said[-1]:
                session.add(Effect(name="paid"))

    pay.perform_async(7)
    run_again(store, worker, 3)
    assert (said, count(database, Effect)) == ([True, False, False], 1)

    pay.perform_async(7)
    worker.run()
    assert count(database, Effect) == 2, "another job of the same arguments"


def test_an_inline_job_has_a_record_of_its_own(database: sql.Engine, worker: Worker, store: Store) -> None:
    said = []

    def take(name: str) -> None:
        with Session(database) as session, session.begin():
            said.append((name, once(session)))

    @job
    async def notify() -> None:
        take("notify")

    @job
    def pay() -> None:
        take("pay")
        notify.perform_inline()
        take("pay again")

    pay.perform_async()
    run_again(store, worker)
    assert said == [
        ("pay", True), ("notify", True), ("pay again", False),
        ("pay", False), ("notify", True), ("pay again", False),
    ]  # fmt: skip


def test_after_a_rollback_the_retry_runs(database: sql.Engine, worker: Worker, store: Store) -> None:
    failures = [True, False, False]

    @job
    def pay(order: int) -> None:
        with Session(database) as session, session.begin():
            if not once(session):
                return
            session.add(Effect(name="paid"))
            session.flush()
            if failures.pop(0):
                raise ZeroDivisionError

    pay.perform_async(7)
    first, second, third = run_again(store, worker, 3)
    assert [type(each) for each in (first, second, third)] == [Retry, Done, Done]
    assert (count(database, Effect), count(database, InboxKey)) == (1, 1)


def test_each_item_of_an_iterable_job_takes_effect_once(database: sql.Engine, worker: Worker, store: Store) -> None:
    said: list[tuple[object, bool]] = []
    failures = [None, ZeroDivisionError, None, None, None]

    def take(step: object) -> None:
        with Session(database) as session, session.begin():
            said.append((step, once(session)))

    class Numbers(IterableJob, retry=3):
        def build_enumerator(self, start: int, *, cursor: int | None) -> Iterator[tuple[int, int]]:
            return sequence_enumerator(range(start, start + 3), cursor=cursor)

        def each_iteration(self, number: int, start: int) -> None:
            take(number)
            if failures and (error := failures.pop(0)):
                raise error  # the item is done again, and its record is there

        def on_start(self) -> None:
            take("start")

        def on_complete(self) -> None:
            take("complete")

    Numbers.perform_async(7)
    assert [type(each) for each in run_again(store, worker)] == [Retry, Done]
    assert said == [
        *(("start", True), (7, True), (8, True)),
        *((8, False), (9, True), ("complete", True)),
    ]

    said.clear()
    Numbers.perform_inline(7)
    Numbers.perform_inline(7)
    assert [is_first for _, is_first in said] == [True] * 10


def test_each_item_of_an_async_iterable_job_within_another_takes_effect(database: sql.Engine, worker: Worker) -> None:
    said: list[tuple[str, str, bool]] = []

    class Inner(IterableJob):
        def build_enumerator(self, name: str, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator("ab", cursor=cursor)

        async def each_iteration(self, letter: str, name: str) -> None:
            with Session(database) as session, session.begin():
                said.append((name, letter, once(session)))

    class Outer(IterableJob):
        def build_enumerator(self, *, cursor: int | None) -> Iterator[tuple[str, int]]:
            return sequence_enumerator("xy", cursor=cursor)

        async def each_iteration(self, name: str) -> None:
            await Inner().perform(name)

    Outer.perform_async()
    assert isinstance(worker.run(), Done)

    assert said == [(name, letter, True) for name in "xy" for letter in "ab"]


def test_a_step_with_a_long_cursor_has_a_key_that_fits(database: sql.Engine, worker: Worker) -> None:
    said = []

    class Pages(IterableJob):
        def build_enumerator(self, *, cursor: str | None) -> list[tuple[str, str]]:
            return [(word, "https://" + "x" * 5_000 + word) for word in "ab"]

        def each_iteration(self, word: str) -> None:
            with Session(database) as session, session.begin():
                said.append((once(session), once(session)))

    Pages.perform_async()
    worker.run()

    assert said == [(True, False)] * 2


def test_a_savepoint_takes_its_record_with_it(database: sql.Engine) -> None:
    with Session(database) as session, session.begin():
        with pytest.raises(ZeroDivisionError), session.begin_nested():
            assert once(session, key="order:1")
            raise ZeroDivisionError
        with session.begin_nested():
            assert once(session, key="order:1")
        assert not once(session, key="order:1")
        assert once(session, key="order:2")
    with Session(database) as session, session.begin():
        with session.begin_nested():
            assert once(session, key="order:3")
        session.rollback()
    with Session(database) as session:
        assert sorted(session.scalars(sql.select(InboxKey.key))) == ["key:order:1", "key:order:2"]


@pytest.mark.parametrize("is_committed", [True, False])
def test_of_two_runs_at_once_the_second_waits_for_the_first(database: sql.Engine, is_committed: bool) -> None:
    begun = threading.Event()

    def second() -> bool:
        with Session(database) as session, session.begin():
            begun.set()
            said = once(session, key="order")
            if said:
                session.add(Effect(name="second"))
            return said

    with ThreadPoolExecutor(1) as pool:
        with Session(database) as session, session.begin():
            assert once(session, key="order")
            session.add(Effect(name="first"))
            session.flush()
            waiting: Future[bool] = pool.submit(second)
            assert begun.wait(20)
            with pytest.raises(TimeoutError):
                waiting.result(0.2)
            if not is_committed:
                session.rollback()
        assert waiting.result(20) is not is_committed
    assert count(database, Effect) == 1


def test_many_runs_at_once_take_effect_once(database: sql.Engine) -> None:
    start = threading.Barrier(8)

    def run() -> bool:
        start.wait(20)
        with Session(database) as session, session.begin():
            said = once(session, key="order")
            if said:
                session.add(Effect(name="x"))
            return said

    with ThreadPoolExecutor(8) as pool:
        said = [each.result(30) for each in [pool.submit(run) for _ in range(8)]]
    assert (sorted(said), count(database, Effect)) == ([False] * 7 + [True], 1)


def test_in_the_strictest_level_the_second_has_no_effect_either(database: sql.Engine) -> None:
    if database.dialect.name != "postgresql":
        pytest.skip("SQLite has no levels")
    strict = database.execution_options(isolation_level="SERIALIZABLE")
    with Session(strict) as late, late.begin():
        late.scalar(sql.select(sql.func.count()).select_from(Effect))  # its snapshot
        with Session(strict) as session, session.begin():
            assert once(session, key="order")
        with pytest.raises(sql.exc.OperationalError):
            once(late, key="order")
    with Session(strict) as session, session.begin():
        assert not once(session, key="order")


def test_connections_and_coroutines(database: sql.Engine, postgres: str) -> None:
    with database.begin() as connection:
        assert once(connection, key="a")
        assert not once(connection, key="a")
    if database.dialect.name != "postgresql":
        return

    async def run() -> list[bool]:
        engine = create_async_engine(postgres)
        async with AsyncSession(engine) as session, session.begin():
            said = [await aonce(session, key=key) for key in ("a", "b", "b")]
        await engine.dispose()
        return said

    assert asyncio.run(run()) == [False, True, False]


def test_what_does_not_fit(database: sql.Engine) -> None:
    with Session(database) as session:
        with pytest.raises(UsageError, match="none runs here"):
            once(session)
        for key in ("", 7, "x" * 252, "a\0b"):
            with pytest.raises(UsageError):
                once(session, key=key)  # type: ignore[arg-type]
        assert once(session, key="x" * 251)
    with pytest.raises(UsageError, match="AUTOCOMMIT"):
        once(Session(database.execution_options(isolation_level="AUTOCOMMIT")), key="a")


def test_old_keys_are_forgotten(database: sql.Engine, setup: Setup) -> None:
    now = SystemClock.now()
    with Session(database) as session, session.begin():
        session.add_all([InboxKey(key=f"jid:{days}", recorded_at=now - days * 86_400) for days in (1, 29, 31, 99)])
    use_outbox(database, keep_inbox=None).move()
    assert count(database, InboxKey) == 4
    use_outbox(database).move()
    with Session(database) as session:
        assert sorted(session.scalars(sql.select(InboxKey.key))) == ["jid:1", "jid:29"]
    assert use_outbox(database, keep_inbox=timedelta(days=2)).table.prune_inbox(now, 1) == 1


class TestSessions:
    def test_a_run_leaves_no_session(self, database: sql.Engine, worker: Worker, store: Store) -> None:
        current = manage_sessions(sessionmaker(database))
        seen: list[Session] = []

        @job
        def note(fails: bool) -> None:
            seen.append(current())
            current.add(Effect(name="x"))
            current.flush()
            if fails:
                raise ZeroDivisionError

        note.perform_bulk([[False], [True]])
        assert [type(worker.run()) for _ in range(2)] == [Done, Retry]
        assert seen[0] is not seen[1]
        assert not any(each.in_transaction() for each in seen)
        assert count(database, Effect) == 0, "what nobody has committed is rolled back"

    def test_inline_runs_leave_the_session_of_their_caller(self, database: sql.Engine, worker: Worker) -> None:
        current = manage_sessions(scoped_session(sessionmaker(database)))

        @job
        def note() -> None:
            current.add(Effect(name="inner"))

        current.add(Effect(name="outer"))
        note.perform_inline()
        current.commit()
        current.remove()
        assert count(database, Effect) == 2

    def test_a_job_that_is_done_stays_done_though_its_session_cannot_be_ended(
        self, database: sql.Engine, worker: Worker, setup: Setup
    ) -> None:
        """The database may have ended the connection meanwhile."""
        current = manage_sessions(scoped_session(sessionmaker(database)))  # of the thread: the next job has it as well
        told: list[Any] = []
        setup.error_handler(lambda error, context: told.append((type(error), context["context"])))

        @job
        def note(fails: bool) -> None:
            current.execute(sql.text("SELECT 1"))
            if fails:
                raise ZeroDivisionError

        def break_connection(connection: sql.Connection) -> None:
            raise ConnectionError

        note.perform_bulk([[False], [True], [False]])
        sql.event.listen(database, "rollback", break_connection)
        outcomes = [worker.run() for _ in range(2)]
        sql.event.remove(database, "rollback", break_connection)

        assert [type(each) for each in [*outcomes, worker.run()]] == [Done, Retry, Done]
        assert [each for each in told if each[1] != "job"] == [(ConnectionError, "sqlalchemy")] * 2

    def test_the_scope_is_the_thread_outside_of_jobs(self) -> None:
        assert job_scope() == threading.get_ident()
        with pytest.raises(UsageError, match="takes a scoped_session"):
            manage_sessions(object())
