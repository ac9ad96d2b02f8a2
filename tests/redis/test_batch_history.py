"""The history of batches in a database: what is copied, and that nothing is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from kiqcluster import current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, BatchJob, NormalFailure
from kiqcluster.batches.history import BATCHES, JOBS, METADATA, MIGRATIONS, BatchHistory
from kiqcluster.errors import UsageError
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.store import batches as stored
from tests.in_process_worker import Worker


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sql.Engine]:
    """An empty database."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'batches.db'}" if is_sqlite else request.getfixturevalue("postgres")
    engine = sql.create_engine(url)
    METADATA.drop_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def row(worker: Worker) -> JobFunction[..., Any]:
    @job
    def handle_row(number: int) -> None:
        running = current_job()
        assert running is not None
        running.log(f"row {number}")
        if number == 2:
            raise NormalFailure("no name")

    return handle_row


def test_a_batch_is_copied_with_its_jobs(engine: sql.Engine, row: JobFunction[..., Any], worker: Worker) -> None:
    batch = Batch.create("import", row, [[1], [2], [3]], history=True)
    history = BatchHistory(engine)
    assert history.copy() == 4
    assert {batch_job.status for batch_job in history.jobs(batch.id)} == {"enqueue"}

    worker.run()
    worker.run()
    assert history.copy() == 3, "two jobs, and their batch"

    assert history.batches(name="import") == history.batches(worker="handle_row") == [without_failures(batch)]
    assert history.batches(name="other") == []
    assert sorted(map(repr, history.jobs(batch.id))) == sorted(map(repr, batch.jobs()))
    (failed,) = history.jobs(batch.id, "failed")
    assert (failed.params, failed.messages) == ([2], ("row 2", "no name"))
    assert history.copy() == 0


def without_failures(batch: Batch) -> object:
    (status,) = Batch.all(count=1)
    assert status.id == batch.id
    return status


def test_many_jobs_are_copied_in_parts(engine: sql.Engine, row: JobFunction[..., Any], store: Store) -> None:
    batch = Batch.create("import", row, [[number] for number in range(2_500)], history=True)

    BatchHistory(engine).copy()

    with engine.connect() as connection:
        assert connection.scalar(sql.select(sql.func.count()).select_from(JOBS)) == 2_500
    assert store.call("EXISTS", store.keys.batch_changed(batch.id), store.keys.batches_changed) == 0


def test_batches_without_a_history_are_not_remembered(row: JobFunction[..., Any], worker: Worker, store: Store) -> None:
    Batch.create("import", row, [[1]])
    worker.run()

    assert store.call("EXISTS", store.keys.batches_changed) == 0


def test_while_the_database_is_away_redis_keeps_what_has_changed(
    row: JobFunction[..., Any], worker: Worker, tmp_path: Path, store: Store
) -> None:
    batch = Batch.create("import", row, [[1], [2]], history=True, ttl=1_000, kept=10)
    away = BatchHistory(sql.create_engine(f"sqlite:///{tmp_path / 'missing' / 'batches.db'}"))
    with pytest.raises(sql.exc.OperationalError):
        away.copy()
    worker.run()
    worker.run()
    assert store.call("TTL", store.keys.batch(batch.id)) > 10, "it is not forgotten before it is copied"

    (tmp_path / "missing").mkdir()
    away.copy()

    assert [status.state for status in away.batches()] == ["complete"]
    assert sorted(batch_job.status for batch_job in away.jobs(batch.id)) == ["failed", "finish"]
    assert 0 < store.call("TTL", store.keys.batch(batch.id)) <= 10


def test_what_changes_while_it_is_copied_is_copied_again(
    engine: sql.Engine, row: JobFunction[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch.create("import", row, [[1]], history=True)
    history = BatchHistory(engine)
    write = BatchHistory._write

    def write_late(self: BatchHistory, *arguments: Any) -> None:
        if batch.status().enqueue:
            worker.run()
        write(self, *arguments)

    monkeypatch.setattr(BatchHistory, "_write", write_late)
    history.copy()
    history.copy()

    assert [batch_job.status for batch_job in history.jobs(batch.id)] == ["finish"]
    assert [status.state for status in history.batches()] == ["succeeded"]


def test_a_copy_that_was_read_earlier_replaces_nothing(
    engine: sql.Engine, row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    batch = Batch.create("import", row, [[1]], history=True)
    history = BatchHistory(engine)
    history.migrate()
    early = stored.read_changes(store, batch.id, ["created_at", "is_open"], 10)
    worker.run()
    history.copy()

    history._write(batch.id, early)

    assert [batch_job.status for batch_job in history.jobs(batch.id)] == ["finish"]
    assert [status.state for status in history.batches()] == ["succeeded"]


def test_cancelled_and_closed_batches_are_copied(engine: sql.Engine, row: JobFunction[..., Any], store: Store) -> None:
    history = BatchHistory(engine)
    with Batch.open("import", history=True) as batch:
        history.copy()
        assert [status.state for status in history.batches()] == ["open"]
        batch.add(row, [[1]])
    history.copy()
    assert [status.state for status in history.batches()] == ["running"]

    batch.cancel("wrong file")
    history.copy()

    (status,) = history.batches()
    assert (status.state, status.reason) == ("cancelled", "wrong file")


def test_an_expired_batch_is_forgotten(engine: sql.Engine, row: JobFunction[..., Any], store: Store) -> None:
    batch = Batch.create("import", row, [[1]], history=True)
    store.call("DEL", store.keys.batch(batch.id), store.keys.batch_changed(batch.id))

    assert BatchHistory(engine).copy() == 0
    assert store.call("EXISTS", store.keys.batches_changed) == 0


def test_the_class_of_a_job_is_copied_where_it_is_not_that_of_the_batch(
    engine: sql.Engine, row: JobFunction[..., Any]
) -> None:
    @job(name="Other")
    def other(number: int) -> None: ...

    batch = Batch.create("import", row, [[1]], history=True)
    batch.add(other, [[2]])
    history = BatchHistory(engine)
    history.copy()

    (copied,) = history.batches()
    assert {each.params[0]: copied.class_of(each) for each in history.jobs(batch.id)} == {1: "handle_row", 2: "Other"}
    with engine.connect() as connection:
        assert sorted(connection.scalars(sql.select(JOBS.c.params))) == ["[1]", "[2]"]


class TestSchema:
    def test_migrations_make_the_tables_that_the_code_knows(self, engine: sql.Engine) -> None:
        BatchHistory(engine).migrate()

        found = sql.inspect(engine)
        for table in (BATCHES, JOBS):
            assert [each["name"] for each in found.get_columns(table.name)] == [column.name for column in table.columns]

    def test_a_later_release_adds_what_is_new_and_keeps_the_rows(
        self, engine: sql.Engine, row: JobFunction[..., Any]
    ) -> None:
        history = BatchHistory(engine)
        batch = Batch.create("import", row, [[1]], history=True)
        history.copy()

        later = (*MIGRATIONS, ("ALTER TABLE kiq_batch_jobs ADD COLUMN note TEXT",))
        assert (history.migrate(later), history.migrate(later)) == (len(later), len(later))

        assert [type(batch_job) for batch_job in history.jobs(batch.id)] == [BatchJob]
        with pytest.raises(UsageError, match=f"version {len(later)}"):
            BatchHistory(engine).copy()

    def test_a_migration_that_fails_changes_nothing(self, engine: sql.Engine) -> None:
        broken = (("CREATE TABLE kiq_batches (id TEXT)", "NONSENSE"),)
        with pytest.raises(sql.exc.SQLAlchemyError):
            BatchHistory(engine).migrate(broken)

        assert not sql.inspect(engine).has_table("kiq_batches")
