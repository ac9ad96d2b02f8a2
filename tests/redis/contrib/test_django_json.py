"""Arguments and results of Django's tasks as JSON: what is kept, and that status, errors and signals agree about it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Done
from kiqcluster.store import Store
from tests.django_stage import django_project, set_up_django
from tests.in_process_worker import Worker

__all__ = ["django_project"]

pytestmark = [pytest.mark.usefixtures("django_project"), pytest.mark.kiq("real")]
KEPT = {
    "rendered": "<b>",
    "choices": {"state": "paid", "size": 1, "paid": [True, 0.5, None]},
    "keys": {"1": "a", "null": "b"},
}
REFUSED = ["not a number", "half a pair", "large", "one key twice", "a type"]


@pytest.fixture
def worker(store: Store, django_project: Setup, registry: Registry) -> Worker:
    return Worker(store, django_project, registry)


@pytest.fixture
def tasks() -> Any:
    set_up_django()
    from tests.apps.django_project.shop import tasks

    return tasks


@pytest.fixture
def finished(django_project: Setup) -> Iterator[list[Any]]:
    """What receivers of task_finished have got."""
    from kiqcluster.contrib.django.task_backend.framework import task_finished

    told: list[Any] = []

    def receive(task_result: Any, **_: Any) -> None:
        told.append(task_result)

    task_finished.connect(receive)
    yield told
    task_finished.disconnect(receive)


def types(value: Any) -> Any:
    """Return the types within a value, so that a subclass differs from its base."""
    if isinstance(value, dict):
        return [(type(key), types(each)) for key, each in value.items()]
    return [types(each) for each in value] if isinstance(value, list) else type(value)


class TestResults:
    @pytest.mark.parametrize("kind", ["give", "agive"])
    @pytest.mark.parametrize("name", KEPT)
    def test_a_result_is_kept_as_receivers_get_it(
        self, name: str, kind: str, worker: Worker, tasks: Any, finished: list[Any]
    ) -> None:
        result = getattr(tasks, kind).enqueue(name)

        assert isinstance(worker.run(), Done)

        result.refresh()
        (told,) = finished
        for each in (result, told):
            assert (str(each.status), each.return_value, each.errors) == ("SUCCESSFUL", KEPT[name], [])
            assert types(each.return_value) == types(KEPT[name])

    @pytest.mark.parametrize("kind", ["give", "agive"])
    @pytest.mark.parametrize("name", REFUSED)
    def test_a_task_whose_result_cannot_be_kept_has_failed_for_all_who_ask(
        self, name: str, kind: str, worker: Worker, store: Store, tasks: Any, finished: list[Any]
    ) -> None:
        result = getattr(tasks, kind).enqueue(name)

        assert isinstance(worker.run(), Dead)

        result.refresh()
        (told,) = finished
        assert [str(each.status) for each in (result, told)] == ["FAILED", "FAILED"]
        assert [error.exception_class for error in result.errors] == [error.exception_class for error in told.errors]
        assert issubclass(result.errors[0].exception_class, TypeError | ValueError)
        assert store.call("ZCARD", "dead") == 1

    @pytest.mark.parametrize("name", REFUSED)
    def test_retries_do_not_repeat_its_work(
        self, name: str, worker: Worker, store: Store, tasks: Any, finished: list[Any]
    ) -> None:
        result = tasks.give_patiently.enqueue(name)

        assert isinstance(worker.run(), Dead)

        result.refresh()
        assert (str(result.status), str(finished[0].status)) == ("FAILED", "FAILED")
        assert store.call("ZCARD", "retry") == 0

    def test_without_results_the_size_does_not_count(self, worker: Worker, tasks: Any, finished: list[Any]) -> None:
        tasks.give_and_forget.enqueue("large")

        assert isinstance(worker.run(), Done)
        assert str(finished[0].status) == "SUCCESSFUL"
