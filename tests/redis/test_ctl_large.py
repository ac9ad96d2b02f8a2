"""kiqctl on sets and queues of 20 000 jobs, and of a million: round trips by the page, memory by the page."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.store import Store
from tests.redis.kiqctl import Kiqctl
from tests.stored_jobs import NOW, add_entries, job, push_payloads, queued_numbers

MAX_MEMORY_BYTES = 12_000_000  # that a command may hold at a time; 20 000 of these jobs are more as records
PAGE_JOBS = 500
LAID_JOBS = 20_000  # at a time
SIZES = [LAID_JOBS, pytest.param(1_000_000, marks=[pytest.mark.full, pytest.mark.timeout(900)])]


def lay_retries(store: Store, count: int) -> None:
    for at in range(0, count, LAID_JOBS):
        add_entries(
            store, "retry", *[(NOW + n, job(n, error_class="E" if n % 10 else "X")) for n in range(at, at + LAID_JOBS)]
        )


def lay_queue(store: Store, count: int) -> None:
    for at in range(0, count, LAID_JOBS):
        push_payloads(
            store,
            [job(n, **{"class": "Job" if n % 10 else "Tenth", "queue": "old"}) for n in range(at, at + LAID_JOBS)],
            "old",
        )


def calls(store: Store) -> int:
    """Return how many commands that read or move jobs Redis has run."""
    lines = store.call("INFO", "commandstats").decode().split()
    names = ("evalsha", "zrange", "zscan", "lrange")
    return sum(int(line.partition("calls=")[2].partition(",")[0]) for line in lines if line[8:].startswith(names))


def measured(store: Store, run: Callable[[], object]) -> tuple[int, int]:
    """Return how many round trips with jobs a command took, and how much memory at its peak."""
    before = calls(store)
    tracemalloc.start()
    try:
        run()
        return calls(store) - before, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", SIZES)
def test_a_set_is_filtered_counted_and_retried_by_the_page(kiqctl: Kiqctl, store: Store, count: int) -> None:
    lay_retries(store, count)
    pages = count // PAGE_JOBS

    def work() -> None:
        assert kiqctl("retries", "retry", "--error", "X").exit_code == 2
        assert kiqctl.ask("retries", "retry", "--error", "X", "--yes")["done"] == count // 10
        assert kiqctl.ask("retries", "list", "--count")["count"] == count - count // 10

    trips, memory = measured(store, work)

    assert trips < 2.5 * pages, "a walk to count, another one to do it, and a tenth of that for the doing"
    assert memory < MAX_MEMORY_BYTES
    assert store.call("LLEN", "queue:default") == count // 10


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", SIZES)
def test_a_set_is_looked_through_by_redis_for_a_text(kiqctl: Kiqctl, store: Store, count: int) -> None:
    lay_retries(store, count)

    def work() -> None:
        assert kiqctl.ask("retries", "kill", "--text", '"X"', "--yes")["done"] == count // 10
        assert kiqctl.ask("retries", "show", f"j{count // 2 + 1}")["args"] == [count // 2 + 1]
        last = count // 50
        assert kiqctl.ask("retries", "list", "--page", str(last), "--limit", "50")["page"] == last

    trips, memory = measured(store, work)

    assert trips < 3 * (count // PAGE_JOBS)
    assert memory < MAX_MEMORY_BYTES


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", SIZES)
def test_ids_and_times_are_found_without_reading_the_dead_set(kiqctl: Kiqctl, store: Store, count: int) -> None:
    now = SystemClock.now()
    for at in range(0, count, LAID_JOBS):
        add_entries(store, "dead", *[(now - 1_000 * n, job(n)) for n in range(at, at + LAID_JOBS)])

    def by_time() -> None:
        assert kiqctl.ask("dead", "--newer", "99500", "--count")["count"] == 100
        assert kiqctl.ask("dead", "--older", f"{1_000 * count - 99_500}", "--count")["count"] == 99
        assert kiqctl.ask("dead", "--newer", "199500", "--older", "99500", "--limit", "1")["entries"][0]["args"] == [
            100
        ]
        assert kiqctl.ask("dead", "delete", "--older", f"{1_000 * count - 99_500}", "--yes")["done"] == 99

    def by_id() -> None:
        assert "nor anywhere else" in kiqctl.ask("dead", "show", "f" * 24, code=1)["error"]

    trips, memory = measured(store, by_time)
    assert trips < 40
    assert memory < MAX_MEMORY_BYTES
    trips, memory = measured(store, by_id)
    assert trips < 2 * (count // 2_000) + 12, "a script per 2 000 entries, and the command in it"
    assert memory < MAX_MEMORY_BYTES


@pytest.mark.timeout(400)
@pytest.mark.parametrize("count", SIZES)
def test_a_queue_is_migrated_in_its_order_by_the_page(kiqctl: Kiqctl, store: Store, count: int) -> None:
    lay_queue(store, count)

    def work() -> None:
        document = kiqctl.ask("migrate", "--class", "Tenth", "--from", "old", "--to", "new", "--yes")
        assert document["done"] == count // 10
        assert kiqctl.ask("jobs", "old", "--class", "Job", "--count")["count"] == count - count // 10

    _, memory = measured(store, work)

    assert memory < MAX_MEMORY_BYTES
    assert queued_numbers(store, "new") == list(range(0, count, 10))
