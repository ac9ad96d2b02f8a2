"""Arguments of Celery tasks whose annotations name types that JSON lacks: positions, keywords, *rest and **more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from typing import Any
from uuid import UUID

import pytest

from kiqcluster import Client
from kiqcluster.application.registry import Registry
from kiqcluster.contrib.celery import shared_task
from kiqcluster.errors import InvalidArguments, MisfitArguments
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import Fake, drain, enqueued, fake

WHEN = datetime(2030, 1, 1, 12, tzinfo=UTC)
DAY = date(2030, 1, 1)
ID = UUID(int=7)
GOT: list[Any] = []


@pytest.fixture(autouse=True)
def _in_memory(registry: Registry, setup: Setup, kiq_fake: Fake) -> Iterator[None]:
    GOT.clear()
    with fake():
        yield


def positions(day: date, count: int = 0) -> None:
    GOT.append((day, count))


def keywords(number: int, *, when: datetime, day: date | None = None, plain: Any = 1) -> None:
    GOT.append((number, when, day, plain))


def more(number: int, **more: UUID) -> None:
    GOT.append((number, more))


def rest(*days: date, fmt: str = "csv", **more: UUID) -> None:
    GOT.append((days, fmt, more))


CASES = [
    (positions, (DAY, 5), {}, ["2030-01-01", 5], (DAY, 5)),
    (positions, (), {"day": DAY}, ["2030-01-01"], (DAY, 0)),
    (keywords, (1,), {"when": WHEN}, [1, {"when": "2030-01-01T12:00:00Z"}], (1, WHEN, None, 1)),
    (
        keywords,
        (1,),
        {"when": WHEN, "day": DAY, "plain": [2]},
        [1, {"when": "2030-01-01T12:00:00Z", "day": "2030-01-01", "plain": [2]}],
        (1, WHEN, DAY, [2]),
    ),
    (more, (1,), {"a": ID}, [1, {"a": str(ID)}], (1, {"a": ID})),
    (rest, (DAY, DAY), {}, ["2030-01-01", "2030-01-01", {}], ((DAY, DAY), "csv", {})),
    (rest, (DAY,), {"fmt": "pdf", "a": ID}, ["2030-01-01", {"fmt": "pdf", "a": str(ID)}], ((DAY,), "pdf", {"a": ID})),
]


@pytest.mark.parametrize(("function", "args", "kwargs", "wire", "got"), CASES)
def test_arguments_are_converted_by_their_annotations(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], wire: list[Any], got: tuple[Any, ...]
) -> None:
    task = shared_task(function)

    task.delay(*args, **kwargs)
    task.apply_async(args, kwargs)
    assert [job.args for job in enqueued()] == [wire, wire]
    drain()
    task.apply(args, kwargs).get()

    assert [got] * 3 == GOT


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "path"),
    [
        (positions, (5,), {}, "day"),
        (keywords, (1,), {"when": 5}, "when"),
        (keywords, (1,), {"when": WHEN, "day": "tomorrow"}, "day"),
        (more, (1,), {"a": 5}, "more"),
        (rest, (5,), {}, "days"),
    ],
)
def test_a_value_of_another_type_is_refused_at_the_push(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    with pytest.raises(InvalidArguments, match=f"{function.__name__} was not enqueued: {path}"):
        shared_task(function).delay(*args, **kwargs)
    assert enqueued() == []


def test_a_keyword_that_no_parameter_has_is_named_before_one_that_is_missing() -> None:
    with pytest.raises(InvalidArguments, match="was not enqueued: got an unexpected keyword argument 'wen'"):
        shared_task(name="keywords")(keywords).delay(wen=WHEN)
    assert enqueued() == []


def test_keywords_of_a_payload_that_do_not_fit_are_a_misfit() -> None:
    shared_task(name="keywords")(keywords)
    Client().push({"class": "keywords", "args": [1, {"when": "soon"}]})

    with pytest.raises(MisfitArguments, match="when"):
        drain()
    assert GOT == []
