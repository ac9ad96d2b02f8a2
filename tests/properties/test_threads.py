"""What threads share without a lock, under as many switches as there can be: nothing is lost, doubled or torn.

These hold with the interpreter lock and without it (PYTHON_GIL=0 on a free-threaded build, docs/adr/0050): there
threads run at once, and what was one step before may be several.  KIQ_CHAOS=full goes on for longer.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import count
from time import monotonic

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.service import snapshot
from kiqcluster.process.tallies import Tally
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store import Store
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine.units import Settlement, Unit
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.maintenance.recovery import Orphans
from kiqcluster.worker.run.async_processor import Places
from tests.chaos.scale import sized
from tests.kit import TIMEOUT_SECONDS

SECONDS = sized(0.3, 30.0)  # of each test
THREADS = 4
SWITCH = 1e-6  # seconds until the interpreter lets another thread run


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    yield
    sys.setswitchinterval(before)


def race(*bodies: Callable[[], object], seconds: float = SECONDS) -> list[int]:
    """Call each body again and again in a thread of its own; return how often.  Raises what a body has raised."""
    until, meeting = monotonic() + seconds, threading.Barrier(len(bodies))
    calls, errors = [0] * len(bodies), list[BaseException]()

    def repeat(number: int, body: Callable[[], object]) -> None:
        meeting.wait(TIMEOUT_SECONDS)
        try:
            while monotonic() < until and not errors:
                body()
                calls[number] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat, args=each, daemon=True) for each in enumerate(bodies)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert not any(thread.is_alive() for thread in threads), "a thread is stuck"
    if errors:
        raise errors[0]
    return calls


def settlement(name: str) -> Settlement:
    return Settlement(Unit("default", b"{}", name, "me", 0), Done())


def test_a_snapshot_of_a_deque_has_what_was_in_it_and_not_a_part() -> None:
    items: deque[int] = deque(range(100))
    numbers = count(100)

    def move_on() -> None:
        items.append(next(numbers))
        items.popleft()

    def look() -> None:
        seen = snapshot(items)
        assert seen == list(range(seen[0], seen[0] + len(seen)))
        assert 100 <= len(seen) <= 101

    race(move_on, look, look)


def test_every_outcome_is_in_one_batch_whoever_hands_in_meanwhile() -> None:
    in_flight, settled, numbers = InFlight(), Counter[str](), [count() for _ in range(THREADS)]

    def hand_in(thread: int) -> None:
        name = f"{thread}.{next(numbers[thread])}"
        in_flight.finished.append(settlement(name))
        if len(in_flight.finished) > 500:
            threading.Event().wait(1e-5)

    def settle() -> None:
        batch = in_flight.take_waiting(monotonic())
        settled.update(each.unit.token for each in batch)
        in_flight.acknowledge()

    calls = race(settle, *(lambda thread=thread: hand_in(thread) for thread in range(THREADS)))  # type: ignore[misc]
    settle()

    assert sum(settled.values()) == len(settled) == sum(calls[1:])


def test_a_hard_stop_misses_no_outcome_that_was_there_before_it() -> None:
    in_flight, names, handed_in = InFlight(), count(), [-1]

    def hand_in() -> None:
        number = next(names)
        in_flight.finished.append(settlement(f"{number}"))
        handed_in[0] = number
        if len(in_flight.finished) > 100:
            in_flight.take_waiting(0.0)
            in_flight.remove(in_flight._taken)

    def stop() -> None:
        last = handed_in[0]
        seen = in_flight.unacknowledged()
        assert last < 0 or int(seen[-1].unit.token) >= last or any(int(each.unit.token) >= last for each in seen)

    race(hand_in, stop, stop)


def test_a_connection_is_lent_to_one_thread_at_a_time() -> None:
    store, lent = Store(), Counter[int]()

    def borrow() -> None:
        with store.borrowed() as connection:
            assert isinstance(connection, Connection)
            lent[id(connection)] += 1
            assert lent[id(connection)] == 1
            lent[id(connection)] -= 1

    closers = [partial(store.close_idle, seconds) for seconds in (3_600.0, 1e9)]
    race(*[borrow] * THREADS, *closers)

    # While a closer looks at a connection, a thread that finds no other one makes its own.
    assert len(store._free) <= THREADS + len(closers)


def test_counts_of_processors_add_up_though_they_are_read_meanwhile() -> None:
    metrics = JobMetrics(THREADS, list)
    processors = [metrics.tallies() for _ in range(THREADS)]
    queues = count()

    def run(thread: int) -> None:
        key = ("Job", f"{next(queues) % 50}")
        tally = processors[thread].get(key)
        if tally is None:
            tally = processors[thread][key] = Tally()
        tally.add_short(0.00001, 0.0)
        tally.count("retried")

    def read() -> None:
        metrics.changed()
        metrics.executions()

    calls = race(read, *(lambda thread=thread: run(thread) for thread in range(THREADS)))  # type: ignore[misc]

    assert metrics.processed() == sum(calls[1:])
    assert metrics.executions()["Job"].processed == sum(calls[1:])


def test_the_last_count_is_told_though_it_came_during_a_look() -> None:
    metrics = JobMetrics(1, list)
    tallies, told = metrics.tallies(), dict[str, float]()

    tally = tallies["Job", "default"] = Tally()

    def look() -> None:
        for row in metrics.changed():
            if "retried" in row.family.name:
                told["retried"] = row.values[0]

    calls = race(lambda: tally.count("retried"), look)
    look()

    assert told["retried"] == calls[0] == tally.counters["retried"]


def test_a_place_of_the_event_loop_has_one_job() -> None:
    places, used = Places(range(THREADS - 1), lambda: False), Counter[int]()

    def take() -> None:
        record = places.take()
        if record is None:
            return
        used[record] += 1
        assert used[record] == 1
        used[record] -= 1
        places.leave(record)

    race(*[take] * THREADS)

    assert sorted(places._free) == list(range(THREADS - 1))


def test_dead_processes_are_added_while_others_are_taken() -> None:
    orphans, numbers, taken = Orphans(), [count() for _ in range(2)], Counter[str]()

    def add(thread: int) -> None:
        found: Mapping[str, tuple[str, ...]] = {f"{thread}.{next(numbers[thread])}": ()}
        if len(orphans.waiting) < 100:
            orphans.add(found)

    def take() -> None:
        while orphans.waiting:
            identity, _ = orphans.waiting.popleft()
            taken[identity] += 1

    race(lambda: add(0), lambda: add(1), take)
    take()

    assert taken
    assert set(taken.values()) == {1}


def test_the_clock_of_the_process_is_read_by_many_threads_and_never_goes_back() -> None:
    clock = SystemClock()

    def read() -> None:
        assert clock.monotonic() <= clock.monotonic()

    race(*[read] * THREADS)
