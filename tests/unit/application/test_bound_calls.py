"""Bound calls: equal calls of a job are equal to its options, whichever of its defaults a push has given."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.bound_calls import bound, without_defaults
from kiqcluster.application.registry import Definition
from kiqcluster.errors import JobDefinitionError
from kiqcluster.sidekiq.active_job import WRAPPER
from kiqcluster.sidekiq.payload import Payload

pytestmark = pytest.mark.usefixtures("registry")

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


def report(account: int, days: int = 30, note: Any = None) -> None: ...


def payload(*arguments: Any) -> Payload:
    return {"class": "report", "args": list(arguments)}


def definition_of(function: Any, **options: Any) -> Definition:
    found: Definition = job(**options)(function).definition
    return found


@pytest.mark.parametrize("arguments", [(7,), (7, 30), (7, 30, None)])
def test_a_default_counts_whether_it_is_given_or_not(arguments: tuple[Any, ...]) -> None:
    definition = definition_of(report)

    assert list(bound(definition, payload(*arguments))[0]) == [7, 30, None]
    assert without_defaults(definition, payload(*arguments)) == [7]


@pytest.mark.parametrize("arguments", [(7, 31), (7, 30, 0), (7, "30"), (7, 30.0), (7, True), (7, 30, None, 4)])
def test_another_value_stays(arguments: tuple[Any, ...]) -> None:
    assert without_defaults(definition_of(report), payload(*arguments)) == list(arguments)


def test_what_follows_all_parameters_stays() -> None:
    def add(first: int, second: int = 2, *others: int) -> None: ...

    assert without_defaults(definition_of(add), payload(1, 2)) == [1]
    assert without_defaults(definition_of(add), payload(1, 2, 2)) == [1, 2, 2]
    assert list(bound(definition_of(add), payload(1))[0]) == [1, 2]


def test_defaults_of_typed_arguments_are_compared_as_values() -> None:
    def book(account: int, price: Decimal = Decimal("2.50"), at: datetime = NOON) -> None: ...

    definition = definition_of(book)

    assert without_defaults(definition, payload(7, "2.50", "2026-11-27T12:00:00Z")) == [7]
    assert without_defaults(definition, payload(7, "2.50", "2026-11-27T13:00:00Z")) == [
        7,
        "2.50",
        "2026-11-27T13:00:00Z",
    ]
    assert without_defaults(definition, payload(7, "no number")) == [7, "no number"]


def test_a_default_that_lies_about_itself_stays() -> None:
    class Liar:
        def __eq__(self, other: object) -> bool:
            raise SystemExit(1)

    def odd(account: int, word: Any = Liar()) -> None: ...  # noqa: B008  # the point

    assert without_defaults(definition_of(odd), payload(7, "x")) == [7, "x"]


def test_arguments_that_do_not_fit_are_left_to_the_run_to_refuse() -> None:
    assert bound(definition_of(report), payload()) == ([], {})
    assert without_defaults(definition_of(report), payload()) == []


def test_an_envelope_has_its_defaults_too() -> None:
    def sync(account: int, *, region: str = "eu") -> None: ...

    definition = definition_of(sync, active_job=True)
    envelope = definition.envelope({"queue": "default"}, 0.0)[2](definition.positional((7,), {}))

    assert bound(definition, {"class": WRAPPER, "args": envelope}) == ((7,), {"region": "eu"})


@pytest.mark.parametrize("option", ["deduplicate_key", "concurrency_key"])
def test_a_key_function_that_does_not_take_all_arguments_is_refused_where_it_is_declared(option: str) -> None:
    whole = {"deduplicate": "until_executed"} if option == "deduplicate_key" else {"concurrency_limit": 1}

    with pytest.raises(JobDefinitionError, match=option):
        definition_of(report, **whole, **{option: lambda account: account})
    definition_of(report, **whole, **{option: lambda account, *_: account})


def test_a_key_function_of_a_job_with_any_arguments_is_called_as_pushes_are() -> None:
    def any_of(*args: Any) -> None: ...

    definition_of(any_of, deduplicate="until_executed", deduplicate_key=lambda first: first)
