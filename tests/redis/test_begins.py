"""Units that are asked for ahead: their places come back, whatever becomes of them."""

from __future__ import annotations

from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.registry import Registry
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done, Requeue
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.run.begins import Begins
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.feature_rows import RowsAhead
from tests.conformance.test_scripts import calls_of_scripts
from tests.in_process_worker import Worker


class Ahead(Worker):
    """A process whose other threads wait: it asks for the units in `waiting` as well."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.waiting: list[Unit] = []
        rows = RowsAhead(self.registry, self.store.keys)
        self.begins = Begins(self.engine.begin_units, self.runtime.clock, lambda: self.waiting, rows)
        parts = (self.runtime, self.registry, JobMetrics(1, list), self.execution._stopping)
        self.execution = Execution(*parts, begin_run=self.begins.begin, end_run=self.begins.end)


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Ahead:
    return Ahead(store, setup, registry)


@pytest.fixture
def sync(worker: Ahead) -> Any:
    @job(name="Sync", concurrency_limit=6)
    def sync(number: int) -> None:
        worker.perform(number)

    return sync


@pytest.fixture
def units(worker: Ahead, sync: Any) -> list[Unit]:
    for number in range(3):
        sync.perform_async(number)
    first, *worker.waiting = [worker.take() for _ in range(3)]
    return [first, *worker.waiting]


def holders(store: Store) -> int:
    found: int = store.call("SCARD", store.keys.slots("Sync", ""))
    return found


def test_they_run_without_another_script_and_settle_as_jobs_without_a_limit(
    worker: Ahead, units: list[Unit], store: Store
) -> None:
    outcomes = [worker.execute(units[0])]
    store.call("CONFIG", "RESETSTAT")

    outcomes += [worker.execute(unit) for unit in units[1:]]

    assert calls_of_scripts(store) == 0
    assert worker.ran == [(0,), (1,), (2,)]
    assert holders(store) == 3
    assert [worker.settle(unit, outcome) for unit, outcome in zip(units, outcomes, strict=True)] == [1, 1, 1]
    assert holders(store) == 0
    assert store.call("EXISTS", store.keys.held(worker.name)) == 0


def test_the_places_of_those_that_have_ended_are_free_before_they_are_settled(
    worker: Ahead, units: list[Unit], sync: Any, store: Store
) -> None:
    outcomes = [worker.execute(unit) for unit in units]
    worker.waiting = []
    sync.perform_async(3)
    assert isinstance(worker.execute(worker.take()), Done)

    assert holders(store) == 1, "that of the fourth"
    assert [worker.settle(unit, outcome) for unit, outcome in zip(units, outcomes, strict=True)] == [1, 1, 1]
    assert holders(store) == 1


def test_a_quiet_process_gives_them_back_with_their_places(worker: Ahead, units: list[Unit], store: Store) -> None:
    worker.settle(units[0], worker.execute(units[0]))

    for unit in units[1:]:
        worker.settle(unit, Requeue())

    assert holders(store) == 0
    assert store.call("LLEN", store.keys.queue("default")) == 2


def test_a_recovery_gives_the_places_of_those_back_that_a_killed_process_has_not_run(
    worker: Ahead, units: list[Unit], store: Store
) -> None:
    worker.during = lambda _: worker.recover(worker.name) if holders(store) == 3 else None
    worker.execute(units[0])

    assert holders(store) == 0
    assert store.call("LLEN", store.keys.queue("default")) == 3
