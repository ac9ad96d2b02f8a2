"""Reading queues and sets of any size through kiqcluster.api, while others are at work on them."""

from __future__ import annotations

import threading
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from kiqcluster.api import JobRecord, JobSet, Queue, RetrySet, SortedEntry
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.kit import TIMEOUT_SECONDS, RedisServer
from tests.stored_jobs import (
    NOW,
    add_entries,
    fill_queue,
    fill_set,
    job,
    move_to_wake_list,
    numbers,
    pop_jobs,
    queued_numbers,
)


def full(value: int) -> Any:
    """Return a value of the long form."""
    return pytest.param(value, marks=pytest.mark.full)


@pytest.fixture
def queue(store: Store, setup: Setup) -> Queue:
    return Queue("default")


@pytest.fixture
def retries(store: Store, setup: Setup) -> RetrySet:
    return RetrySet()


def read(records: Iterable[JobRecord], change: Callable[[int, JobRecord], object]) -> Counter[int]:
    """Return how often each job came, where somebody changes something after each of them."""
    seen: Counter[int] = Counter()
    for count, record in enumerate(records):
        seen[record.args[0]] += 1
        change(count, record)
    return seen


class TestQueues:
    """Each test changes the queue after a number of jobs has been read, and says what must have come."""

    SIZE = 3_000

    @pytest.mark.parametrize("order", [iter, reversed])
    @pytest.mark.parametrize("burst", [full(1), full(90), 135, full(700)])
    def test_pushes_while_reading_make_none_come_twice(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]], burst: int
    ) -> None:
        fill_queue(store, range(self.SIZE))

        def push(count: int, _: JobRecord) -> None:
            if count % 400 == 100:
                fill_queue(store, range(10_000 + count * 1_000, 10_000 + count * 1_000 + burst))

        seen = read(order(queue), push)

        assert {number: seen[number] for number in range(self.SIZE)} == dict.fromkeys(range(self.SIZE), 1)
        assert max(seen.values()) == 1

    @pytest.mark.parametrize("order", [iter, reversed])
    @pytest.mark.parametrize("burst", [full(1), full(90), 135, full(300)])
    def test_fetching_while_reading_hides_none_that_stays(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]], burst: int
    ) -> None:
        fill_queue(store, range(self.SIZE))

        seen = read(order(queue), lambda count, _: pop_jobs(store, burst) if count % 500 == 250 else None)

        assert set(queued_numbers(store)) <= seen.keys()
        assert max(seen.values()) == 1

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_bells_that_ring_while_reading_change_nothing(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]]
    ) -> None:
        fill_queue(store, range(self.SIZE))

        seen = read(order(queue), lambda count, _: move_to_wake_list(store) if count % 100 == 50 else None)

        assert seen == Counter(range(self.SIZE))

    def test_jobs_that_are_put_back_while_reading_hide_none(self, queue: Queue, store: Store) -> None:
        fill_queue(store, range(self.SIZE))
        payloads = [job(number) for number in range(90_000, 90_800)]

        seen = read(
            iter(queue),
            lambda count, _: store.call("RPUSH", "queue:default", *payloads) if count == 1_000 else None,
        )

        assert {number: seen[number] for number in range(self.SIZE)} == dict.fromkeys(range(self.SIZE), 1)

    @pytest.mark.parametrize("order", [iter, reversed])
    @pytest.mark.parametrize("every", [full(1), 2, full(7)])
    def test_the_reader_may_delete_what_it_reads(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]], every: int
    ) -> None:
        fill_queue(store, range(self.SIZE))

        def delete(_: int, record: JobRecord) -> None:
            if record.args[0] % every == 0:
                assert queue.delete(record)

        seen = read(order(queue), delete)

        assert seen == Counter(range(self.SIZE))
        assert queued_numbers(store) == [number for number in range(self.SIZE) if number % every]

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_what_others_delete_ahead_hides_none_that_stays(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]]
    ) -> None:
        fill_queue(store, range(self.SIZE))
        doomed = set(range(1_000, 2_000, 2))

        def delete(count: int, _: JobRecord) -> None:
            if count == 700:
                for number in doomed:
                    store.call("LREM", "queue:default", 1, job(number))

        seen = read(order(queue), delete)

        assert set(range(self.SIZE)) - doomed <= seen.keys()
        assert max(seen.values()) == 1

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_a_queue_that_is_cleared_while_reading_ends(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]]
    ) -> None:
        fill_queue(store, range(self.SIZE))

        seen = read(order(queue), lambda count, _: queue.clear() if count == 100 else None)

        assert 100 < sum(seen.values()) < self.SIZE

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_all_that_was_read_and_much_more_may_be_fetched_meanwhile(
        self, queue: Queue, store: Store, order: Callable[[Queue], Iterator[JobRecord]]
    ) -> None:
        fill_queue(store, range(self.SIZE))

        seen = read(order(queue), lambda count, _: pop_jobs(store, 2_500) if count == 700 else None)

        assert set(queued_numbers(store)) <= seen.keys()

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_threads_that_push_and_fetch_hide_none_that_stays(
        self, queue: Queue, store: Store, redis_server: RedisServer, order: Callable[[Queue], Iterator[JobRecord]]
    ) -> None:
        fill_queue(store, range(20_000))
        stop, step = threading.Event(), threading.Semaphore(0)  # a step for every ten that are read: nobody runs away

        def push(other: Store) -> None:
            number = 100_000
            while step.acquire(timeout=TIMEOUT_SECONDS) and not stop.is_set():
                fill_queue(other, range(number, number + 20))
                number += 20

        def take(other: Store) -> None:
            for _ in range(500):  # ends before what is read last is fetched
                if not step.acquire(timeout=TIMEOUT_SECONDS) or stop.is_set():
                    return
                pop_jobs(other, 10)
                move_to_wake_list(other)

        threads = [threading.Thread(target=each, args=(redis_server.store(),)) for each in (push, take)]
        for thread in threads:
            thread.start()
        try:
            seen: Counter[int] = Counter()
            for count, record in enumerate(order(queue)):
                seen[record.args[0]] += 1
                if count % 10 == 0:
                    step.release(2)
        finally:
            stop.set()
            step.release(2)
            for thread in threads:
                thread.join(30)

        assert set(range(6_000, 20_000)) <= seen.keys()
        assert max(seen.values()) == 1

    @pytest.mark.parametrize("taken", [full(625), full(626), 627, full(633), 641, full(642)])
    def test_a_page_that_ends_within_what_was_read_repeats_nothing(
        self, queue: Queue, store: Store, taken: int
    ) -> None:
        fill_queue(store, range(5_000))

        seen = read(iter(queue), lambda count, _: pop_jobs(store, taken) if count == 700 else None)

        assert set(range(taken, 5_000)) == seen.keys()
        assert max(seen.values()) == 1

    def test_reading_the_oldest_first_ends_with_what_was_there_at_the_beginning(
        self, queue: Queue, store: Store
    ) -> None:
        fill_queue(store, range(300))

        seen = read(reversed(queue), lambda count, _: fill_queue(store, [1_000 + count]))

        assert sum(seen.values()) == 300


class TestSets:
    """Each test changes the set after a number of entries has been read, and says what must have come."""

    SIZE = 3_000

    @pytest.mark.parametrize("order", [iter, reversed])
    @pytest.mark.parametrize("score", [None, 7.0])
    @pytest.mark.parametrize("every", [full(1), 2, full(7)])
    def test_the_reader_may_delete_what_it_reads(
        self,
        retries: RetrySet,
        store: Store,
        order: Callable[[JobSet], Iterator[SortedEntry]],
        score: float | None,
        every: int,
    ) -> None:
        fill_set(store, "retry", range(self.SIZE), score)

        seen = read(order(retries), lambda _, entry: entry.args[0] % every or entry.delete())

        assert seen == Counter(range(self.SIZE))
        assert len(retries) == len([number for number in range(self.SIZE) if number % every])

    @pytest.mark.parametrize("order", [iter, reversed])
    @pytest.mark.parametrize("score", [None, 7.0])
    @pytest.mark.parametrize("burst", [full(1), full(90), 700])
    def test_others_may_take_and_add_at_both_ends(
        self,
        retries: RetrySet,
        store: Store,
        order: Callable[[JobSet], Iterator[SortedEntry]],
        score: float | None,
        burst: int,
    ) -> None:
        fill_set(store, "retry", range(self.SIZE), score)

        def change(count: int, _: JobRecord) -> None:
            if count % 600 == 300:
                store.call("ZPOPMIN", "retry", burst // 4)
                store.call("ZPOPMAX", "retry", burst // 4)
                fresh = range(10_000 + count * 1_000, 10_000 + count * 1_000 + burst)
                add_entries(
                    store, "retry", *[(NOW + (n - 20_000) * 10 if n % 2 else NOW + 1e6 + n, job(n)) for n in fresh]
                )

        seen = read(order(retries), change)

        stayed = {number for number in numbers(retries) if number < self.SIZE}
        assert stayed <= seen.keys()
        assert max(seen.values()) == 1

    def test_entries_that_are_retried_and_fail_again_do_not_come_twice(self, retries: RetrySet, store: Store) -> None:
        fill_set(store, "retry", range(self.SIZE))

        def fail_again(_: int, entry: JobRecord) -> None:
            entry.delete()
            add_entries(store, "retry", (NOW + 100_000, entry.raw))

        assert read(iter(retries), fail_again) == Counter(range(self.SIZE))

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_a_set_that_is_cleared_while_reading_ends(
        self, retries: RetrySet, store: Store, order: Callable[[JobSet], Iterator[SortedEntry]]
    ) -> None:
        fill_set(store, "retry", range(self.SIZE))

        seen = read(order(retries), lambda count, _: retries.clear() if count == 100 else None)

        assert 100 < sum(seen.values()) < self.SIZE

    @pytest.mark.parametrize("order", [iter, reversed])
    def test_threads_that_add_and_take_hide_none_that_stays(
        self,
        retries: RetrySet,
        store: Store,
        redis_server: RedisServer,
        order: Callable[[JobSet], Iterator[SortedEntry]],
    ) -> None:
        fill_set(store, "retry", range(20_000))
        stop = threading.Event()

        def change(other: Store) -> None:
            number = 100_000
            for _ in range(200):
                fill_set(other, "retry", range(number, number + 20))
                fill_set(other, "retry", range(-number - 20, -number))
                other.call("ZREM", "retry", *[job(number // 20 + offset) for offset in range(0, 1_000, 100)])
                number += 20
                if stop.is_set():
                    return

        thread = threading.Thread(target=change, args=(redis_server.store(),))
        thread.start()
        try:
            seen = Counter(numbers(order(retries)))
        finally:
            stop.set()
            thread.join(30)

        assert {number for number in numbers(retries) if 0 <= number < 20_000} <= seen.keys()
        assert max(seen.values()) == 1


# large ones


def read_within(records: Queue | JobSet, size: int, limit: int) -> None:
    """Check that a queue or set is read as a whole, within so much memory."""
    for order, expected in ((iter, range(size - 1, -1, -1)), (reversed, range(size))):
        tracemalloc.start()
        wrong = sum(record.args[0] != number for record, number in zip(order(records), expected, strict=True))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert wrong == 0
        assert peak < limit


def test_a_queue_is_read_in_bounded_memory(store: Store, queue: Queue) -> None:
    fill_queue(store, range(20_000))

    read_within(queue, 20_000, 3_000_000)


@pytest.mark.full
def test_a_queue_of_200_000_is_read_in_bounded_memory(store: Store, queue: Queue) -> None:
    fill_queue(store, range(200_000))

    read_within(queue, 200_000, 3_000_000)


def test_huge_jobs_are_read_a_few_at_a_time(store: Store, queue: Queue) -> None:
    fill_queue(store, range(200), padding="x" * 400_000)

    read_within(queue, 200, 60_000_000)  # 80 MB in all; the first page of 50 is read before their size is known


def test_a_set_is_read_in_bounded_memory(retries: RetrySet, store: Store) -> None:
    fill_set(store, "retry", range(20_000))

    read_within(retries, 20_000, 3_000_000)


@pytest.mark.full
def test_a_set_of_200_000_is_read_in_bounded_memory(retries: RetrySet, store: Store) -> None:
    fill_set(store, "retry", range(200_000))

    read_within(retries, 200_000, 3_000_000)


@pytest.mark.full
def test_a_set_of_200_000_is_retried_in_bounded_memory(retries: RetrySet, store: Store) -> None:
    fill_set(store, "retry", range(200_000), score=5.0)

    tracemalloc.start()
    count = retries.retry_all()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == store.call("LLEN", "queue:default") == 200_000
    assert len(retries) == 0
    assert peak < 12_000_000
