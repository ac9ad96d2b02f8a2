"""Where the jobs of a push go: threads and coroutines write to the same place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster import Client, job
from kiqcluster.contrib.outbox.verbs import become_rows
from kiqcluster.job import JobFunction
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import fake

Rows = list[dict[str, Any]]
PUSHES: list[Callable[[JobFunction[[int], None]], object]] = [
    lambda note: note.perform_async(1),
    lambda note: note.perform_bulk([[1]]),
    lambda note: asyncio.run(_enqueue(note)),
    lambda note: asyncio.run(_enqueue_bulk(note)),
    lambda note: Client().push({"class": note, "args": [1]}),
    lambda note: Client().push_bulk({"class": note, "args": [[1]]}),
    lambda note: asyncio.run(Client().apush({"class": note, "args": [1]})),
    lambda note: asyncio.run(Client().apush_bulk({"class": note, "args": [[1]]})),
]


async def _enqueue(note: JobFunction[[int], None]) -> object:
    return await note.aenqueue(1)


async def _enqueue_bulk(note: JobFunction[[int], None]) -> object:
    return await note.aenqueue_bulk([[1]])


@pytest.fixture
def note(setup: Setup) -> JobFunction[[int], None]:
    @job
    def note(number: int) -> None: ...

    return note


@pytest.mark.parametrize("push", PUSHES)
def test_a_push_within_an_outbox_becomes_a_row_also_that_of_a_coroutine(
    note: JobFunction[[int], None], push: Callable[[Any], object]
) -> None:
    rows: Rows = []

    with fake() as pushed, become_rows(rows.extend):
        push(note)

    assert ([each["queue"] for each in rows], pushed.enqueued()) == (["default"], [])


@pytest.mark.parametrize("push", PUSHES)
def test_a_push_that_waits_for_a_commit_goes_where_it_went_at_its_call(
    setup: Setup, note: JobFunction[[int], None], push: Callable[[Any], object]
) -> None:
    waiting: list[Callable[[], object]] = []
    setup.deferral = lambda _definition, write: not waiting.append(write)

    with fake() as first:
        push(note)
        assert first.enqueued() == []
    with fake() as second:
        waiting.pop()()

    assert (len(first.enqueued()), second.enqueued()) == (1, [])
