"""The backend of Django's tasks: what is pushed, how workers run it, and what get_result says, on a real Redis.

Runs on each version of Django that there is: Django 5.2 with the backport here, Django 6 in tests/django_versions.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.errors import ReplyLost
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Done, Dropped, Retry
from kiqcluster.store import Store
from kiqcluster.testing import FrozenClock
from tests.django_stage import django_project, set_up_django
from tests.in_process_worker import Worker

__all__ = ["django_project"]

pytestmark = [pytest.mark.usefixtures("django_project"), pytest.mark.kiq("real")]


@pytest.fixture
def worker(store: Store, django_project: Setup, registry: Registry) -> Worker:
    return Worker(store, django_project, registry)


@pytest.fixture
def tasks() -> Any:
    set_up_django()
    from tests.apps.django_project.shop import tasks

    return tasks


@pytest.fixture
def signals(django_project: Setup) -> Iterator[list[tuple[str, Any, str]]]:
    """What the signals of tasks say: name, sender, status."""
    from kiqcluster.contrib.django.task_backend import framework

    said: list[tuple[str, Any, str]] = []
    receivers = {}
    for name in ("task_enqueued", "task_started", "task_finished"):

        def receive(sender: Any, task_result: Any, name: str = name, **_: Any) -> None:
            said.append((name, sender, str(task_result.status)))

        receivers[name] = receive
        getattr(framework, name).connect(receive)
    yield said
    for name, receive in receivers.items():
        getattr(framework, name).disconnect(receive)


def payload(store: Store, queue: str = "default") -> Any:
    return json.loads(store.call("LINDEX", f"queue:{queue}", 0))


class TestEnqueue:
    def test_a_task_is_a_job_whose_class_is_its_path(self, store: Store, tasks: Any) -> None:
        result = tasks.add.enqueue(1, two=3)

        pushed = payload(store)
        assert pushed["class"] == "tests.apps.django_project.shop.tasks.add"
        assert pushed["args"] == [1, {"two": 3}]
        assert pushed["jid"] == result.id
        assert pushed["retry"] == 0
        assert (result.args, result.kwargs, str(result.status)) == ([1], {"two": 3}, "READY")

    def test_a_coroutine_enqueues_too(self, store: Store, tasks: Any) -> None:
        result = asyncio.run(tasks.add.aenqueue(1))

        assert payload(store)["jid"] == result.id
        assert asyncio.run(tasks.add.aget_result(result.id)) == result

    def test_a_priority_decides_the_queue(self, store: Store, tasks: Any) -> None:
        for priority in (80, 0, -1):
            tasks.add.using(priority=priority, queue_name="mails").enqueue(1)

        assert {name.decode() for name in store.call("SMEMBERS", "queues")} == {"critical", "mails", "mails_low"}

    def test_a_backend_without_queues_for_priorities_refuses_one(self, tasks: Any) -> None:
        from kiqcluster.contrib.django.task_backend.framework import InvalidTask

        with pytest.raises(InvalidTask, match="priority"):
            tasks.add.using(priority=1, backend="patient")

    def test_a_task_that_is_to_run_later_is_scheduled(self, store: Store, tasks: Any) -> None:
        due = datetime.now(UTC) + timedelta(hours=1)

        result = tasks.add.using(run_after=due).enqueue(1)

        (_, score) = store.call("ZRANGE", "schedule", 0, 0, "WITHSCORES")
        assert float(score) == pytest.approx(due.timestamp())
        assert result.task.run_after == due
        assert tasks.add.get_result(result.id).task.run_after == pytest.approx(due, abs=timedelta(milliseconds=1))

    def test_the_history_of_a_scheduled_task_lasts_until_it_has_run(self, store: Store, tasks: Any) -> None:
        result = tasks.add.using(run_after=datetime.now(UTC) + timedelta(days=100)).enqueue(1)

        assert store.call("TTL", f"kiq:history:{result.id}") > 100 * 86_400

    def test_a_model_is_refused_with_what_to_pass_instead(self, store: Store, tasks: Any) -> None:
        from django.contrib.auth.models import User

        with pytest.raises(TypeError, match=r"kwargs\['two'\]\[0\]; pass value\.pk"):
            tasks.add.enqueue(1, two=[User(pk=1)])
        assert store.call("EXISTS", "queue:default") == 0

    def test_a_task_of_the_program_that_runs_is_refused(self, tasks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from kiqcluster.contrib.django.task_backend.framework import InvalidTask

        monkeypatch.setattr(tasks.add.func, "__module__", "__main__")

        with pytest.raises(InvalidTask, match="no worker finds it"):
            tasks.add.enqueue(1)

    def test_an_enqueued_task_is_told_of(self, tasks: Any, signals: list[tuple[str, Any, str]]) -> None:
        from kiqcluster.contrib.django import TaskBackend

        tasks.add.enqueue(1)
        asyncio.run(tasks.add.aenqueue(1))

        assert signals == [("task_enqueued", TaskBackend, "READY")] * 2

    def test_a_push_that_fails_raises_and_has_no_result(self, django_project: Setup, tasks: Any) -> None:
        from kiqcluster.errors import StoreError

        django_project.store = Store("redis://127.0.0.1:1/0")
        with pytest.raises(StoreError) as raised:
            tasks.add.enqueue(1)
        assert not isinstance(raised.value, ReplyLost)


class TestResults:
    def test_a_new_result_is_the_one_that_enqueue_has_returned(self, tasks: Any) -> None:
        result = tasks.add.using(priority=60, queue_name="q").enqueue(1, two=2)

        assert tasks.add.get_result(result.id) == result

    def test_a_task_that_has_run(self, worker: Worker, store: Store, tasks: Any) -> None:
        result = tasks.add.enqueue(1, two=3)

        assert isinstance(worker.run(), Done)

        result.refresh()
        assert (str(result.status), result.return_value, result.attempts) == ("SUCCESSFUL", 4, 1)
        assert result.worker_ids == [worker.name]
        assert result.enqueued_at <= result.started_at == result.last_attempted_at <= result.finished_at
        assert 0 < store.call("TTL", f"kiq:history:{result.id}") <= 86_400

    def test_an_async_task_that_has_run(self, worker: Worker, tasks: Any) -> None:
        result = tasks.aadd.enqueue(1, two=3)

        worker.run()

        result.refresh()
        assert result.return_value == 4

    def test_a_task_that_runs(self, worker: Worker, tasks: Any) -> None:
        result = tasks.add.enqueue(1)
        unit = worker.take()
        worker.execute(unit)  # and its outcome is not settled

        result.refresh()

        assert (str(result.status), result.attempts, result.finished_at) == ("RUNNING", 1, None)

    def test_a_begin_that_was_told_twice_is_one_attempt(self, worker: Worker, tasks: Any) -> None:
        result = tasks.add.enqueue(1)
        unit = worker.take()
        worker.execute(unit)
        worker.execute(unit)

        result.refresh()

        assert result.attempts == 1

    def test_a_task_that_fails_is_kept_among_the_dead(self, worker: Worker, store: Store, tasks: Any) -> None:
        result = tasks.fail.enqueue("no such order")

        assert isinstance(worker.run(), Dead)

        result.refresh()
        (error,) = result.errors
        assert str(result.status) == "FAILED"
        assert error.exception_class is ValueError
        assert error.traceback.startswith("Traceback")
        assert error.traceback.endswith("ValueError: no such order\n")
        assert "kiqcluster/worker" not in error.traceback
        assert store.call("ZCARD", "dead") == 1
        with pytest.raises(ValueError, match="failed"):
            _ = result.return_value

    def test_a_task_with_retries_is_ready_again_until_they_are_used_up(
        self, worker: Worker, store: Store, tasks: Any
    ) -> None:
        result = tasks.fail_patiently.enqueue("x")
        for attempt in range(1, 4):
            outcome = worker.run()

            result.refresh()
            assert result.attempts == attempt
            assert [each.exception_class for each in result.errors] == [LookupError] * attempt
            assert str(result.status) == ("FAILED" if attempt == 3 else "READY")
            assert isinstance(outcome, Dead if attempt == 3 else Retry)
            if isinstance(outcome, Retry):
                store.call("ZREM", "retry", outcome.payload)
                store.call("LPUSH", "queue:default", outcome.payload)

    def test_a_dead_task_that_is_retried_by_hand_may_succeed(
        self, worker: Worker, store: Store, tasks: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        result = tasks.fail.enqueue("x")
        outcome = worker.run()
        assert isinstance(outcome, Dead)
        monkeypatch.setattr(tasks.fail.func, "__code__", (lambda message: None).__code__)

        store.call("LPUSH", "queue:default", outcome.payload)
        worker.run()

        result.refresh()
        assert (str(result.status), len(result.errors), result.attempts) == ("SUCCESSFUL", 1, 2)

    def test_what_leaves_the_process_is_an_error_of_the_task(self, worker: Worker, tasks: Any) -> None:
        result = tasks.leave.enqueue()

        worker.run()

        result.refresh()
        assert result.errors[0].exception_class is SystemExit

    def test_what_is_no_json_is_an_error_of_the_task(self, worker: Worker, tasks: Any) -> None:
        result = tasks.unstorable.enqueue()

        worker.run()

        result.refresh()
        assert result.errors[0].exception_class is TypeError
        assert "Unsupported type" in result.errors[0].traceback

    def test_a_task_that_was_put_back_is_ready(self, worker: Worker, tasks: Any) -> None:
        from tests.in_process_worker import JobRun, SystemClock

        result = tasks.add.enqueue(1)
        unit = worker.take()
        run = JobRun(unit, SystemClock.now())
        worker.execution.execute(run)
        run.ending = run.outcome = None  # it has not ended yet when the process must go
        worker.settle(unit, worker.execution.interrupt(run))

        result.refresh()
        assert (str(result.status), result.attempts) == ("READY", 1)

    def test_a_task_that_was_dropped_has_failed(self, worker: Worker, tasks: Any, kiq_clock: FrozenClock) -> None:
        from kiqcluster.errors import JobDropped

        result = dataclasses.replace(tasks.add, expires_in=5).enqueue(1)
        kiq_clock.move(10)

        assert isinstance(worker.run(), Dropped)

        result.refresh()
        assert str(result.status) == "FAILED"
        assert result.errors[0].exception_class is JobDropped

    def test_there_is_no_result_of_what_nobody_has_enqueued(self, tasks: Any) -> None:
        from kiqcluster.contrib.django.task_backend.framework import TaskResultDoesNotExist

        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result("nobody")

    def test_a_task_knows_its_context(self, worker: Worker, tasks: Any) -> None:
        result = tasks.describe.enqueue("hello")

        worker.run()

        result.refresh()
        assert result.return_value == {"id": result.id, "attempt": 1, "status": "RUNNING", "word": "hello"}

    def test_a_backend_may_keep_no_results(self, worker: Worker, store: Store, tasks: Any) -> None:
        result = tasks.add.using(backend="forgetful").enqueue(1)

        assert isinstance(worker.run(), Done)
        assert store.call("KEYS", "kiq:history:*") == []
        with pytest.raises(NotImplementedError):
            result.refresh()


class TestSignals:
    def test_of_a_task_that_runs(self, worker: Worker, tasks: Any, signals: list[tuple[str, Any, str]]) -> None:
        for task in (tasks.add, tasks.aadd):
            task.enqueue(1)
            worker.run()

        expected = [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL")]
        assert [(name, status) for name, _, status in signals] == expected * 2

    def test_of_a_task_that_fails_for_good(
        self, worker: Worker, tasks: Any, signals: list[tuple[str, Any, str]]
    ) -> None:
        tasks.fail.enqueue("x")
        tasks.fail_patiently.enqueue("x")
        worker.run()
        worker.run()

        finished = [status for name, _, status in signals if name == "task_finished"]
        assert finished == ["FAILED"]  # the other one runs again

    def test_a_receiver_that_fails_does_not_fail_the_task(
        self, worker: Worker, django_project: Setup, tasks: Any
    ) -> None:
        from kiqcluster.contrib.django.task_backend.framework import task_finished

        reported: list[Exception] = []
        django_project.error_handler(lambda error, context: reported.append(error))

        def receive(**_: Any) -> None:
            raise ZeroDivisionError

        task_finished.connect(receive)
        tasks.add.enqueue(1)
        outcome = worker.run()
        task_finished.disconnect(receive)

        assert isinstance(outcome, Done)
        assert [type(each) for each in reported] == [ZeroDivisionError]


class TestDeclarations:
    def test_a_task_of_a_module_that_nobody_has_imported_runs(
        self, worker: Worker, store: Store, registry: Registry, tasks: Any
    ) -> None:
        result = tasks.add.enqueue(1)
        registry._definitions.pop(tasks.add.module_path)

        worker.run()

        result.refresh()
        assert result.return_value == 1

    @pytest.mark.parametrize(
        "name",
        [
            "tests.apps.django_project.shop.tasks.os.getpid",
            "tests.apps.django_project.shop.tasks.datetime",
            "tests.apps.django_project.shop.nowhere.f",
            "os.getpid",
            "getpid",
            "",
        ],
    )
    def test_what_is_declared_as_no_task_is_not_called(self, name: str, registry: Registry) -> None:
        assert registry.find({"class": name, "args": []})[1] is None

    @pytest.mark.parametrize("name", ["os.getpid", "tests.apps.basic.record", "tests.apps.django_project.shopping.f"])
    def test_a_module_of_no_installed_application_is_not_imported(
        self, name: str, registry: Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kiqcluster.contrib.django.task_backend import runner

        imported: list[str] = []
        monkeypatch.setattr(runner, "import_module", imported.append)

        assert registry.find({"class": name, "args": []})[1] is None
        assert imported == []
