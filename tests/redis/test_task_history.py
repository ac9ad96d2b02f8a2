"""The history of tasks in a database: what is copied, and that nothing is missed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from kiqcluster import current_job, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import UsageError
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.store import tasks as stored
from kiqcluster.tasks import NormalFailure, Task, TaskEvent
from kiqcluster.tasks.history import EVENTS, METADATA, MIGRATIONS, TASKS, TaskHistory
from tests.in_process_worker import Worker


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sql.Engine]:
    """An empty database."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'tasks.db'}" if is_sqlite else request.getfixturevalue("postgres")
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


def test_a_task_is_copied_with_its_jobs(engine: sql.Engine, row: JobFunction[..., Any], worker: Worker) -> None:
    task = Task.create("import", row, [[1], [2], [3]], history=True)
    history = TaskHistory(engine)
    assert history.copy() == 4
    assert {event.status for event in history.events(task.id)} == {"enqueue"}

    worker.run()
    worker.run()
    assert history.copy() == 3, "two jobs, and their task"

    assert history.tasks(name="import") == history.tasks(worker="handle_row") == [without_failures(task)]
    assert history.tasks(name="other") == []
    assert sorted(map(repr, history.events(task.id))) == sorted(map(repr, task.events()))
    (failed,) = history.events(task.id, "failed")
    assert (failed.params, failed.messages) == ([2], ("row 2", "no name"))
    assert history.copy() == 0


def without_failures(task: Task) -> object:
    (status,) = Task.all(count=1)
    assert status.id == task.id
    return status


def test_many_jobs_are_copied_in_parts(engine: sql.Engine, row: JobFunction[..., Any], store: Store) -> None:
    task = Task.create("import", row, [[number] for number in range(2_500)], history=True)

    TaskHistory(engine).copy()

    with engine.connect() as connection:
        assert connection.scalar(sql.select(sql.func.count()).select_from(EVENTS)) == 2_500
    assert store.call("EXISTS", store.keys.task_changed(task.id), store.keys.tasks_changed) == 0


def test_tasks_without_a_history_are_not_remembered(row: JobFunction[..., Any], worker: Worker, store: Store) -> None:
    Task.create("import", row, [[1]])
    worker.run()

    assert store.call("EXISTS", store.keys.tasks_changed) == 0


def test_while_the_database_is_away_redis_keeps_what_has_changed(
    row: JobFunction[..., Any], worker: Worker, tmp_path: Path, store: Store
) -> None:
    task = Task.create("import", row, [[1], [2]], history=True, ttl=1_000, kept=10)
    away = TaskHistory(sql.create_engine(f"sqlite:///{tmp_path / 'missing' / 'tasks.db'}"))
    with pytest.raises(sql.exc.OperationalError):
        away.copy()
    worker.run()
    worker.run()
    assert store.call("TTL", store.keys.task(task.id)) > 10, "it is not forgotten before it is copied"

    (tmp_path / "missing").mkdir()
    away.copy()

    assert [status.state for status in away.tasks()] == ["complete"]
    assert sorted(event.status for event in away.events(task.id)) == ["failed", "finish"]
    assert 0 < store.call("TTL", store.keys.task(task.id)) <= 10


def test_what_changes_while_it_is_copied_is_copied_again(
    engine: sql.Engine, row: JobFunction[..., Any], worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task.create("import", row, [[1]], history=True)
    history = TaskHistory(engine)
    write = TaskHistory._write

    def write_late(self: TaskHistory, *arguments: Any) -> None:
        if task.status().enqueue:
            worker.run()
        write(self, *arguments)

    monkeypatch.setattr(TaskHistory, "_write", write_late)
    history.copy()
    history.copy()

    assert [event.status for event in history.events(task.id)] == ["finish"]
    assert [status.state for status in history.tasks()] == ["succeeded"]


def test_a_copy_that_was_read_earlier_replaces_nothing(
    engine: sql.Engine, row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    task = Task.create("import", row, [[1]], history=True)
    history = TaskHistory(engine)
    history.migrate()
    early = stored.read_changes(store, task.id, ["created_at", "is_open"], 10)
    worker.run()
    history.copy()

    history._write(task.id, early)

    assert [event.status for event in history.events(task.id)] == ["finish"]
    assert [status.state for status in history.tasks()] == ["succeeded"]


def test_cancelled_and_closed_tasks_are_copied(engine: sql.Engine, row: JobFunction[..., Any], store: Store) -> None:
    history = TaskHistory(engine)
    with Task.open("import", history=True) as task:
        history.copy()
        assert [status.state for status in history.tasks()] == ["open"]
        task.add(row, [[1]])
    history.copy()
    assert [status.state for status in history.tasks()] == ["running"]

    task.cancel("wrong file")
    history.copy()

    (status,) = history.tasks()
    assert (status.state, status.reason) == ("cancelled", "wrong file")


def test_an_expired_task_is_forgotten(engine: sql.Engine, row: JobFunction[..., Any], store: Store) -> None:
    task = Task.create("import", row, [[1]], history=True)
    store.call("DEL", store.keys.task(task.id), store.keys.task_changed(task.id))

    assert TaskHistory(engine).copy() == 0
    assert store.call("EXISTS", store.keys.tasks_changed) == 0


def test_the_class_of_a_job_is_copied_where_it_is_not_that_of_the_task(
    engine: sql.Engine, row: JobFunction[..., Any]
) -> None:
    @job(name="Other")
    def other(number: int) -> None: ...

    task = Task.create("import", row, [[1]], history=True)
    task.add(other, [[2]])
    history = TaskHistory(engine)
    history.copy()

    (copied,) = history.tasks()
    assert {each.params[0]: copied.class_of(each) for each in history.events(task.id)} == {1: "handle_row", 2: "Other"}
    with engine.connect() as connection:
        assert sorted(connection.scalars(sql.select(EVENTS.c.params))) == ["[1]", "[2]"]


class TestSchema:
    def test_migrations_make_the_tables_that_the_code_knows(self, engine: sql.Engine) -> None:
        TaskHistory(engine).migrate()

        found = sql.inspect(engine)
        for table in (TASKS, EVENTS):
            assert [each["name"] for each in found.get_columns(table.name)] == [column.name for column in table.columns]

    def test_a_later_release_adds_what_is_new_and_keeps_the_rows(
        self, engine: sql.Engine, row: JobFunction[..., Any]
    ) -> None:
        history = TaskHistory(engine)
        task = Task.create("import", row, [[1]], history=True)
        history.copy()

        later = (*MIGRATIONS, ("ALTER TABLE kiq_events ADD COLUMN note TEXT",))
        assert (history.migrate(later), history.migrate(later)) == (len(later), len(later))

        assert [type(event) for event in history.events(task.id)] == [TaskEvent]
        with pytest.raises(UsageError, match=f"version {len(later)}"):
            TaskHistory(engine).copy()

    def test_a_migration_that_fails_changes_nothing(self, engine: sql.Engine) -> None:
        broken = (("CREATE TABLE kiq_tasks (id TEXT)", "NONSENSE"),)
        with pytest.raises(sql.exc.SQLAlchemyError):
            TaskHistory(engine).migrate(broken)

        assert not sql.inspect(engine).has_table("kiq_tasks")
