"""Rows that a job adds to its batch: once, also where the job runs more than once."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.api import RetrySet
from kiqcluster.application.registry import Registry
from kiqcluster.batches import Batch, current_batch
from kiqcluster.batches.added_jids import added_jids
from kiqcluster.iterable import IterableJob
from kiqcluster.job import JobFunction
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Push, Setup
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from tests.in_process_worker import Worker

Rows = Sequence[Sequence[Any]]


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


@pytest.fixture
def row(worker: Worker) -> JobFunction[..., Any]:
    @job(queue="rows")
    def handle_row(number: int) -> None:
        worker.ran.append((number,))

    return handle_row


@pytest.fixture
def adder(worker: Worker) -> JobFunction[..., Any]:
    """A job that does what the test says, with its own batch."""

    @job(retry=5)
    def adder() -> None:
        worker.during(current_batch())

    return adder


def adding(runs: Sequence[Callable[[Batch], object]]) -> Callable[..., object]:
    """Return what does these things, one in each run; each but the last fails then."""
    left = list(runs)

    def run(batch: Batch) -> None:
        left.pop(0)(batch)
        if left:
            raise ValueError("after it has added")

    return run


def run_all(worker: Worker, store: Store, runs: int) -> None:
    """Run the job that adds so many times, with its retries."""
    for number in range(runs):
        if number:
            RetrySet(store=store).retry_all()
        worker.run()


def run_rows(worker: Worker) -> None:
    while worker.store.call("LLEN", "queue:rows"):
        worker.run("rows")


def added(store: Store) -> list[int]:
    """Return the rows that wait, the first one first."""
    return [decode(raw)["args"][0] for raw in reversed(store.call("LRANGE", "queue:rows", 0, -1))]


def test_rows_that_a_retry_adds_again_are_known(
    row: JobFunction[..., Any], adder: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    found: list[Any] = []
    rows = [[number] for number in range(5)]
    worker.during = adding([lambda batch: found.append(batch.add(row, rows))] * 2)
    batch = Batch.create("import", adder, [[]])

    run_all(worker, store, 2)

    assert added(store) == [0, 1, 2, 3, 4]
    assert (batch.status().total, batch.status().enqueue) == (6, 5)
    assert found[0] == found[1]
    assert all(len(jid) == 24 and int(jid, 16) for jid in found[0])


def test_rows_that_have_ended_are_not_pushed_again_and_the_callback_comes_once(
    row: JobFunction[..., Any], adder: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    @job(queue="callbacks")
    def report(batch: str) -> None: ...

    worker.during = adding([lambda batch: batch.add(row, [[1], [2]])] * 3)
    batch = Batch.create("import", adder, [[]], on_complete=report)

    for _ in range(3):
        run_all(worker, store, 1)
        run_rows(worker)
        RetrySet(store=store).retry_all()

    assert worker.ran == [(1,), (2,)]
    assert (batch.status().state, batch.status().total, batch.status().finish) == ("succeeded", 3, 3)
    assert store.call("LLEN", "queue:callbacks") == 1


def test_a_run_whose_process_was_killed_adds_nothing_twice(
    row: JobFunction[..., Any], adder: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    worker.during = lambda batch: batch.add(row, [[1], [2]])
    batch = Batch.create("import", adder, [[]])

    worker.execute(worker.take())  # and dies before the end is written
    worker.recover(worker.name)
    worker.engine.join(worker.member)
    worker.run()

    assert added(store) == [1, 2]
    assert batch.status().total == 3


def test_other_rows_and_equal_ones_are_all_added_whatever_their_order(
    row: JobFunction[..., Any], adder: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    def first(batch: Batch) -> None:
        batch.add(row, [[1], [2]])
        batch.add(row, [[1]])

    def second(batch: Batch) -> None:
        batch.add(row, [[9], [2], [1], [1]])
        batch.add(row, [[1], [8]])

    worker.during = adding([first, second])
    Batch.create("import", adder, [[]])

    run_all(worker, store, 2)

    assert added(store) == [1, 2, 1, 9, 1, 8]


def test_two_jobs_and_two_batches_have_rows_of_their_own(
    row: JobFunction[..., Any], adder: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    with Batch.open("other") as other:
        worker.during = lambda batch: (batch.add(row, [[1]]), other.add(row, [[1]]))
        batch = Batch.create("import", adder, [[], []])

        worker.run()
        worker.run()

    assert added(store) == [1] * 4
    assert (batch.status().total, other.status().total) == (4, 2)


@pytest.mark.parametrize("kind", ["middleware", "deduplicate", "encrypt"])
def test_jobs_that_are_pushed_one_by_one_are_known_too(
    kind: str, adder: JobFunction[..., Any], worker: Worker, store: Store, setup: Setup
) -> None:
    def name(_push: Push, call_next: Callable[[], Push | None]) -> Push | None:
        return call_next()

    setup.configure(encryption={"keys": f"1:{b64encode(bytes(32)).decode()}"})
    options: dict[str, Any] = {"deduplicate": {"deduplicate": "until_executing"}, "encrypt": {"encrypt": True}}

    @job(queue="rows", **options.get(kind, {}))
    def handle(number: int) -> None: ...

    if kind == "middleware":
        setup.client_middleware.add(name)
    found: list[Any] = []
    worker.during = adding([lambda batch: found.append(batch.add(handle, [[1], [2]]))] * 2)
    batch = Batch.create("import", adder, [[]])

    worker.run()
    worker.run("rows")
    RetrySet(store=store).retry_all()
    worker.run()

    assert found[0] == found[1]
    assert store.call("LLEN", "queue:rows") == 1
    assert (batch.status().total, batch.status().finish, batch.status().enqueue) == (3, 2, 1)


def test_an_id_does_not_tell_a_secret(adder: JobFunction[..., Any], worker: Worker, setup: Setup) -> None:
    setup.configure(encryption={"keys": f"1:{b64encode(bytes(32)).decode()}"})

    @job(queue="rows", encrypt=True)
    def handle(word: str) -> None: ...

    found: list[Any] = []

    def add(batch: Batch) -> None:
        running = current_job()
        assert running is not None
        found.append((batch.add(handle, [["secret"]]), added_jids(running, batch.id, "handle", [b'["secret"]'])))

    worker.during = add
    Batch.create("import", adder, [[]])
    worker.run()

    assert found[0][0] != found[0][1]


def test_a_row_that_was_cancelled_stays_so(
    row: JobFunction[..., Any], adder: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    found: list[Any] = []
    worker.during = adding([lambda batch: found.append(batch.add(row, [[1]]))] * 2)
    batch = Batch.create("import", adder, [[]])
    worker.run()
    Batch.get(batch.id).mark(found[0], "error", "by hand")
    store.call("DEL", "queue:rows")

    RetrySet(store=store).retry_all()
    worker.run()

    assert (added(store), batch.status().error) == ([], 1)


def test_items_of_an_iterable_job_that_goes_on_add_their_own_rows(
    row: JobFunction[..., Any], worker: Worker, store: Store
) -> None:
    stops = [True]

    class Split(IterableJob):
        def build_enumerator(self, *, cursor: Any) -> Any:
            return ((number, number) for number in range(cursor or 0, 4))

        def each_iteration(self, item: int) -> None:
            batch = current_batch()
            assert batch is not None
            batch.add(row, [[7]])
            if item == 2 and stops:
                stops.clear()
                raise ValueError("the line broke")

    batch = Batch.create("import", Split, [[]])

    worker.run()
    assert added(store) == [7] * 3
    RetrySet(store=store).retry_all()
    worker.run()

    assert added(store) == [7] * 4, "item 2 was done twice, and items 0 to 3 have equal rows"
    assert batch.status().total == 5
