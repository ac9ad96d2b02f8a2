"""Pushes that wait for the commit of a transaction, database connections around jobs, and jobs in Django's TestCase."""

from __future__ import annotations

import asyncio
import unittest
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kiqcluster import job, testing
from kiqcluster.application.registry import Registry
from kiqcluster.errors import InvalidArguments, RedisUnavailable, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from tests.django_stage import django_project, set_up_django
from tests.in_process_worker import Worker
from tests.threaded_worker import ThreadedWorker

__all__ = ["django_project"]

pytestmark = [pytest.mark.usefixtures("django_project"), pytest.mark.kiq("real")]


@pytest.fixture
def project(django_project: Setup) -> Any:
    from tests.apps.django_project import shop

    return shop


class RollBack(Exception):
    pass


def lengths(store: Store, *queues: str) -> list[int]:
    return [store.call("LLEN", f"queue:{name}") for name in queues or ("default",)]


def pushes(project: Any) -> dict[str, Callable[[], object]]:
    from kiqcluster.contrib.django import enqueue_on_commit

    jobs, tasks = project.jobs, project.tasks
    return {
        "option": lambda: jobs.Committed.perform_async(1),
        "bulk": lambda: jobs.Committed.perform_bulk([[1]]),
        "call": lambda: enqueue_on_commit(jobs.Invoice.set(queue="default"), 1),
        "task": lambda: enqueue_on_commit(tasks.add, 1),
        "backend": lambda: tasks.fail_patiently.enqueue("x"),
        "async": lambda: asyncio.run(tasks.fail_patiently.aenqueue("x")),
    }


KINDS = ["option", "bulk", "call", "task", "backend"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_is_written_at_the_commit_and_not_before(kind: str, store: Store, project: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        with transaction.atomic():
            pushes(project)[kind]()
        assert lengths(store) == [0]

    assert lengths(store) == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_push_is_not_written_after_a_rollback(kind: str, store: Store, project: Any) -> None:
    from django.db import transaction

    with pytest.raises(RollBack), transaction.atomic():
        pushes(project)[kind]()
        raise RollBack

    assert lengths(store) == [0]


@pytest.mark.parametrize("kind", [*KINDS, "async"])
def test_without_a_transaction_it_is_written_at_once(kind: str, store: Store, project: Any) -> None:
    pushes(project)[kind]()

    assert lengths(store) == [1]


def test_other_pushes_do_not_wait(store: Store, project: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        project.jobs.Invoice.set(queue="default").perform_async(1)
        project.tasks.add.enqueue(1)
        assert lengths(store) == [2]


def test_each_database_has_its_own_commits(store: Store, project: Any) -> None:
    from django.db import transaction

    from kiqcluster.contrib.django import enqueue_on_commit

    with transaction.atomic(using="orders"):
        project.jobs.OfOrders.perform_async(1)
        enqueue_on_commit(project.jobs.Invoice.set(queue="default"), 2, using="orders")
        project.jobs.Committed.perform_async(3)  # which waits for the other database
        assert lengths(store) == [1]

    assert lengths(store) == [3]


def test_the_setting_holds_for_all_jobs(store: Store, project: Any) -> None:
    from django.db import transaction
    from django.test import override_settings

    with override_settings(KIQCLUSTER={"enqueue_on_commit": True}):
        with transaction.atomic():
            project.jobs.Invoice.set(queue="default").perform_async(1)
            assert lengths(store) == [0]
        assert lengths(store) == [1]


def test_a_failing_push_is_raised_by_the_commit_and_ends_its_hooks(
    django_project: Setup, project: Any, store: Store
) -> None:
    from django.db import transaction

    django_project.store = Store("redis://127.0.0.1:1/0", timeout=0.2)
    called: list[str] = []
    with pytest.raises(RedisUnavailable), transaction.atomic():
        transaction.on_commit(lambda: called.append("before"))
        project.jobs.Committed.perform_async(1)
        transaction.on_commit(lambda: called.append("after"))
        transaction.on_commit(lambda: setattr(django_project, "store", store))
        project.jobs.Committed.perform_async(2)

    assert called == ["before"]
    assert (django_project.store is store, lengths(store)) == (False, [0]), (
        "nor are later pushes of the transaction made"
    )


def test_arguments_are_checked_at_the_call(project: Any) -> None:
    from django.db import transaction

    from kiqcluster.contrib.django import enqueue_on_commit

    with transaction.atomic(), pytest.raises(InvalidArguments):
        enqueue_on_commit(project.jobs.Invoice, 1, 2, 3)


def test_in_a_coroutine_the_call_is_refused_because_it_sees_no_transaction(store: Store, project: Any) -> None:
    from asgiref.sync import sync_to_async
    from django.db import transaction

    from kiqcluster.contrib.django import enqueue_on_commit

    @transaction.atomic
    def place_order() -> list[int]:
        enqueue_on_commit(project.jobs.Committed, 1)
        project.tasks.fail_patiently.enqueue("x")
        return lengths(store)

    async def view() -> list[int]:
        with pytest.raises(UsageError, match="sync_to_async"):
            enqueue_on_commit(project.jobs.Committed, 2)
        return await sync_to_async(place_order)()

    assert asyncio.run(view()) == [0]
    assert lengths(store) == [2]


def test_a_task_that_waits_has_an_id_and_no_time_before_the_commit(project: Any) -> None:
    from django.db import transaction

    with transaction.atomic():
        result = project.tasks.fail_patiently.enqueue("x")
        assert result.enqueued_at is None

    assert result.enqueued_at is not None
    assert project.tasks.fail_patiently.get_result(result.id) == result


@pytest.fixture
def on_disk(django_project: Setup, tmp_path: Path) -> Iterator[str]:
    """A database that all threads see."""
    from django.db import connections

    connections.databases["own"] = {**connections["default"].settings_dict, "NAME": str(tmp_path / "own.db")}
    connections["own"].cursor().execute("CREATE TABLE orders (id INTEGER)")
    yield "own"
    connections["own"].close()
    del connections["own"], connections.databases["own"]


class TestConnections:
    def test_none_is_left_open_after_a_job(
        self, store: Store, django_project: Setup, registry: Registry, project: Any
    ) -> None:
        from django.db import connections

        worker = Worker(store, django_project, registry)
        for _ in range(2):
            project.jobs.Count.perform_async()
            assert isinstance(worker.run(), Done)

        assert connections["default"].settings_dict["CONN_MAX_AGE"] == 0
        assert store.call("ZCARD", "retry") == 0

    def test_those_of_a_worker_are_renewed_and_those_of_a_test_are_not(
        self, django_project: Setup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kiqcluster.contrib.django import connections
        from kiqcluster.process.runtime import Run

        said: list[str] = []
        monkeypatch.setattr(connections, "reset_queries", lambda: said.append("reset"))
        monkeypatch.setattr(connections, "close_old_connections", lambda: said.append("close"))
        middleware = connections.Connections()

        middleware(Run({}, "q", None, None), lambda: said.append("test"))
        middleware(Run({}, "q", None, None, identity="host:1:a"), lambda: said.append("worker"))

        async def proceed() -> None:
            said.append("async")

        asyncio.run(middleware.acall(Run({}, "q", None, None, identity="host:1:a"), proceed))
        around = ["reset", "close"]
        assert said == ["test", *around, "worker", "close", *around, "async", "close"]

    @pytest.mark.parametrize("is_failing", [False, True])
    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_transaction_that_a_job_leaves_open_ends_with_the_job_and_is_reported(
        self,
        store: Store,
        django_project: Setup,
        registry: Registry,
        on_disk: str,
        is_async: bool,
        is_failing: bool,
    ) -> None:
        """Else no later job of this thread could use the database."""
        from asgiref.sync import sync_to_async
        from django.db import connections, transaction

        kept: list[Iterator[int]] = []

        def rows() -> Iterator[int]:
            with transaction.atomic(using=on_disk):
                connections[on_disk].cursor().execute("INSERT INTO orders VALUES (1)")
                yield 1

        def count() -> None:
            found.append(connections[on_disk].cursor().execute("SELECT COUNT(*) FROM orders").fetchone()[0])

        def leave_open() -> None:
            kept.append(rows())
            next(kept[0])
            if is_failing:
                raise RollBack

        @job(name="Leaving", retry=0)
        def leaving() -> None:
            leave_open()

        @job(name="LeavingLater", retry=0)
        async def leaving_later() -> None:
            await sync_to_async(leave_open)()

        @job(name="Counting", retry=0)
        def counting() -> None:
            count()

        @job(name="CountingLater", retry=0)
        async def counting_later() -> None:
            await sync_to_async(count)()

        found: list[int] = []
        named: list[str] = []
        django_project.error_handler(
            lambda error, context: named.append(context["job"]["class"]) if context["context"] == "django" else None
        )
        first, second = (leaving_later, counting_later) if is_async else (leaving, counting)
        with ThreadedWorker(store, django_project, registry) as worker:
            worker.push_job(first.definition.name)
            worker.run_all()
            worker.push_job(second.definition.name)
            worker.run_all()

        assert found == [0]
        assert named == [first.definition.name]
        with suppress(Exception):  # of Django, which finds no transaction here
            kept[0].close()

    def test_they_are_closed_after_an_error_too(self, django_project: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
        from kiqcluster.contrib.django import connections
        from kiqcluster.process.runtime import Run

        said: list[str] = []
        monkeypatch.setattr(connections, "close_old_connections", lambda: said.append("close"))

        def fail() -> None:
            raise RollBack

        with pytest.raises(RollBack):
            connections.Connections()(Run({}, "q", None, None, identity="host:1:a"), fail)
        assert said == ["close", "close"]


def test_in_a_testcase_callbacks_of_the_commit_push(django_project: Setup, project: Any) -> None:
    set_up_django()
    from django.test import TestCase

    class Orders(TestCase):
        def setUp(self) -> None:
            self.jobs = self.enterContext(testing.fake())

        def test_it(self) -> None:
            with self.captureOnCommitCallbacks() as callbacks:
                project.jobs.Committed.perform_async(1)
            self.jobs.refute_enqueued(project.jobs.Committed)
            assert len(callbacks) == 1

            with self.captureOnCommitCallbacks(execute=True):
                result = project.tasks.fail_patiently.enqueue("x")
                project.jobs.Committed.perform_async(2)

            self.jobs.assert_enqueued(project.jobs.Committed, 2)
            self.jobs.assert_enqueued("tests.apps.django_project.shop.tasks.fail_patiently", "x")
            self.jobs.drain(raise_errors=False)
            result.refresh()
            assert (str(result.status), result.attempts) == ("READY", 1)

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(Orders).run(result)
    assert [text for _, text in result.failures + result.errors] == []
    assert result.testsRun == 1
