"""Seats of limited-capacity jobs over a real Redis: one job for each, whatever starts, ends and fails."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.limited_capacity import LimitedCapacityJob
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Done
from kiqcluster.store import Store
from tests.in_process_worker import Worker
from tests.redis.test_client import payloads

pytestmark = pytest.mark.usefixtures("setup")


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


class Source:
    """Work of a test's own."""

    left = 5
    most = 2


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def work(worker: Worker, source: Source) -> Any:
    class Work(LimitedCapacityJob):
        def max_running_jobs(self) -> int:
            return source.most

        def remaining_work_count(self) -> int:
            return source.left

        def perform_work(self) -> None:
            source.left -= 1
            worker.perform(source.left)

    return Work


def seats(store: Store) -> list[int]:
    return sorted(each["args"][0] for each in payloads(store))


def holders(store: Store) -> set[str]:
    return {store.call("GET", key).decode() for key in store.call("KEYS", "kiq:lock:*")}


def test_a_seat_has_one_job_however_often_they_are_started(work: Any, store: Store) -> None:
    for _ in range(3):
        work.perform_with_capacity()

    assert seats(store) == [0, 1]
    assert holders(store) == {each["jid"] for each in payloads(store)}


def test_of_starts_at_one_moment_each_seat_has_one_job(work: Any, store: Store, source: Source) -> None:
    source.most, source.left, gate = 5, 50, Barrier(8)

    def start(_: int) -> None:
        gate.wait()
        work.perform_with_capacity()

    with ThreadPoolExecutor(8) as starters:
        list(starters.map(start, range(8)))

    assert seats(store) == [0, 1, 2, 3, 4]
    assert holders(store) == {each["jid"] for each in payloads(store)}


def test_the_end_of_a_job_gives_its_seat_to_the_next_one_in_the_same_step(
    work: Any, worker: Worker, store: Store
) -> None:
    work.perform_with_capacity()
    before = {each["jid"] for each in payloads(store)}
    unit = worker.take()
    outcome = worker.execute(unit)
    assert len(payloads(store)) == 1, "nothing is written before the job is settled"

    assert worker.settle(unit, outcome) == 1

    assert seats(store) == [0, 1]
    assert len({each["jid"] for each in payloads(store)} - before) == 1
    assert holders(store) == {each["jid"] for each in payloads(store)}


def test_a_failed_job_frees_its_seat_for_the_next_start(work: Any, worker: Worker, store: Store) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("on purpose")

    worker.during = fail
    work.perform_with_capacity()

    assert isinstance(worker.run(), Dead)
    assert len(seats(store)) == len(holders(store)) == 1

    work.perform_with_capacity()
    assert seats(store) == [0, 1]


def test_a_seat_that_is_too_many_by_now_is_not_filled_again(
    work: Any, worker: Worker, store: Store, source: Source
) -> None:
    work.perform_with_capacity()
    source.most = 1

    assert [type(worker.run()) for _ in range(2)] == [Done, Done]

    assert seats(store) == [0]
    assert len(holders(store)) == 1
