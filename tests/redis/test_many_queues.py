"""Thousands of queues: no command and no script asks more than a hundred of them, and each has its turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine.engine import MAX_NAMES
from kiqcluster.store.engine.units import Settlement
from kiqcluster.store.engine.wait_lists import MAX_QUEUES
from kiqcluster.worker.fetch.fetch import MAX_SWEPT_QUEUES
from tests.kit import wait_until
from tests.redis.test_fetch import Bench, run
from tests.redis.test_heartbeat import Bench as HeartbeatBench

MANY_QUEUES = 3_000
MAX_ARGUMENTS = 3 + 5 + 7 + 5 * MAX_QUEUES  # of a reserve; a sweep has fewer


@pytest.fixture(autouse=True)
def longest(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of words of the longest command that was sent."""
    longest, begin = [0], Connection.begin

    def begin_and_note(connection: Connection, commands: Sequence[Any]) -> None:
        longest[0] = max(longest[0], *map(len, commands))
        begin(connection, commands)

    monkeypatch.setattr(Connection, "begin", begin_and_note)
    return longest


@pytest.fixture(params=["random", "weighted", "strict"])
def bench(store: Store, setup: Setup, request: pytest.FixtureRequest) -> Iterator[Bench]:
    weight = {"random": "", "weighted": "=2", "strict": ""}[request.param]
    bench = Bench(store, setup, f"q0{weight},*", strict=request.param == "strict")
    bench.fetch._order.learn(f"q{number}" for number in range(MANY_QUEUES))
    bench.fetch._order.drop_candidates(bench.fetch._order.weights)  # as if all had been asked
    yield bench
    bench.coordinator.end()


def drain(bench: Bench, taken: list[bytes]) -> None:
    """Take and settle units until there are none at hand and none is suspected anywhere."""

    def work() -> None:
        finished = None
        while (unit := bench.fetch.next(finished)) is not None:
            taken.append(unit.payload)
            finished = Settlement(unit, Done())

    threading.Thread(target=work, daemon=True).start()


def test_a_sweep_finds_a_job_in_any_queue(bench: Bench, longest: list[int]) -> None:
    taken = run(bench, 1)
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")
    bench.push("a", queue=f"q{MANY_QUEUES - 1}")

    bench.fetch.sweep()

    wait_until(lambda: taken == [b"a"], "the job")
    assert longest[0] <= MAX_ARGUMENTS


def test_an_idle_process_does_not_go_round_for_ever(bench: Bench, store: Store) -> None:
    run(bench, 1)
    wait_until(
        lambda: bench.supply.demand == 1 and not bench.redis_view.is_reserve_due,
        "a parked processor",
    )
    calls = bench.fetch._call

    bench.fetch.sweep()

    assert bench.fetch._call == calls <= 3
    assert bench.supply.demand == 1


def test_jobs_of_all_queues_run_and_no_script_asks_many(bench: Bench, store: Store, longest: list[int]) -> None:
    numbers = range(0, MANY_QUEUES, 7)
    for number in numbers:
        bench.push(str(number), queue=f"q{number}")
    taken: list[bytes] = []
    drain(bench, taken)
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")

    bench.fetch.sweep()

    wait_until(lambda: len(taken) == len(numbers), "all jobs")
    assert sorted(map(int, taken)) == list(numbers)
    assert longest[0] <= MAX_ARGUMENTS


def test_a_busy_process_finds_the_job_of_another_queue_without_a_sweep(bench: Bench, store: Store) -> None:
    names = list(bench.fetch._order.weights)
    hot, cold = names[MANY_QUEUES // 2], names[:MAX_QUEUES:5]  # in a strict order these are preferred
    for name in cold:
        bench.push("cold", queue=name)

    def find_while_busy() -> bool:
        if store.call("LLEN", store.keys.queue(hot)) < 50_000:  # many more than are taken until the next look
            bench.push(*["hot"] * 50_000, queue=hot)
        return b"cold" in taken

    taken: list[bytes] = []
    find_while_busy()
    bench.fetch._order.add_candidates([hot])
    drain(bench, taken)

    wait_until(find_while_busy, "one of the other queues to have its turn")


def test_a_paused_queue_among_many_is_served_again(bench: Bench, store: Store) -> None:
    bench.push("a", queue="q2000")
    store.call("SADD", "paused", "q2000")
    taken = run(bench, 1)
    wait_until(lambda: bench.supply.demand == 1, "a parked processor")
    bench.fetch.sweep()
    wait_until(
        lambda: "q2000" in bench.redis_view.excluded.resting and bench.supply.demand == 1,
        "the queue to rest",
    )

    store.call("SREM", "paused", "q2000")
    bench.fetch.sweep()

    wait_until(lambda: taken == [b"a"], "the job")
    assert "q2000" not in bench.redis_view.excluded.resting


def test_leaving_empties_all_wake_lists_a_hundred_queues_at_a_time(
    bench: Bench, store: Store, longest: list[int]
) -> None:
    for number in (0, MANY_QUEUES // 2, MANY_QUEUES - 1):
        store.call("LPUSH", f"kiq:wake:q{number}", str(number))

    bench.coordinator.end()
    bench.fetch.leave([], 5.0)

    assert not store.call("KEYS", "kiq:wake:*")
    assert [store.call("LLEN", f"queue:q{number}") for number in (0, MANY_QUEUES // 2, MANY_QUEUES - 1)] == [1, 1, 1]
    assert longest[0] <= MAX_ARGUMENTS


def test_the_next_sweep_asks_the_queues_that_one_leaves_out(bench: Bench) -> None:
    order = bench.fetch._order
    looked_at = [order.next_to_sweep(MAX_QUEUES) for _ in range(MANY_QUEUES // MAX_QUEUES)]

    assert sorted(name for names in looked_at for name in names) == sorted(order.weights)
    assert len(order.next_to_sweep(MAX_SWEPT_QUEUES)) == MANY_QUEUES


def test_a_heartbeat_learns_all_names_in_pages(store: Store, setup: Setup) -> None:
    heartbeat = HeartbeatBench(store, setup)
    names = {f"q{number}" for number in range(4 * MAX_NAMES)}
    store.call("SADD", "queues", *names)
    store.call("CONFIG", "RESETSTAT")
    learned: set[str] = set()
    heartbeat.on_names = learned.update

    heartbeat.beat()

    assert learned == names
    assert heartbeat.commands()["sscan"] >= 4
