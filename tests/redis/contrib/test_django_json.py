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


class TestArguments:
    @pytest.mark.parametrize("name", ["rendered", "choices"])
    def test_subclasses_of_json_types_become_plain(self, name: str, worker: Worker, tasks: Any) -> None:
        result = tasks.echo.enqueue(tasks.RETURNED[name], [tasks.RETURNED[name]], other=tasks.RETURNED[name])

        worker.run()

        expected = [KEPT[name], [KEPT[name]], {"other": KEPT[name]}]
        assert [result.args, result.kwargs] == [expected[:2], expected[2]]
        assert types([*result.args, result.kwargs]) == types(expected)
        assert tasks.echo.get_result(result.id).return_value == expected
        assert tasks.echo.get_result(result.id).args == result.args

    def test_a_value_that_the_subclass_shows_otherwise_is_the_one_that_it_holds(self, tasks: Any) -> None:
        from enum import Enum, IntEnum

        class Named(str, Enum):  # noqa: UP042  # as written before Python 3.11: str() shows the name
            PAID = "paid"

        class Loud(str):
            def __str__(self) -> str:
                return self.upper()

        class Third(float):
            def __float__(self) -> float:
                return 0.0

        result = tasks.echo.enqueue(Named.PAID, IntEnum("Size", "SMALL")(1), Loud("quiet"), Third(0.5), True)

        assert result.args == ["paid", 1, "quiet", 0.5, True]
        assert types(result.args) == [str, int, str, float, bool]

    def test_a_key_that_is_no_text_is_refused_as_by_any_push(self, store: Store, tasks: Any) -> None:
        with pytest.raises(TypeError, match="JSON keys are strings"):
            tasks.echo.enqueue({1: 2})
        assert store.call("EXISTS", "queue:default") == 0
