"""The lock of the coordinator, and exceptions that a library raises in a thread from outside."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from random import Random

import pytest

from kiqcluster.process.clock import SystemClock
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.queue_order import QueueOrder
from tests.kit import TIMEOUT_SECONDS, ManualClock, is_in, wait_until


class Late(BaseException):
    """A time limit that a library raises in the thread of a job that has just ended."""


def raise_in(thread: threading.Thread) -> None:
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Late))


def begin(action: Callable[[], object], raised: list[BaseException]) -> threading.Thread:
    def run() -> None:
        try:
            action()
        except Late as late:
            raised.append(late)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def coordinator() -> FetchCoordinator:
    return FetchCoordinator(QueueOrder(parse_group("default"), [], Random(1)), InFlight(), ManualClock(), lambda: None)


def test_an_exception_from_outside_leaves_no_demand_behind(coordinator: FetchCoordinator) -> None:
    coordinator.redis_view.is_reserve_due = False
    raised: list[BaseException] = []

    thread = begin(coordinator.take_or_wait, raised)
    wait_until(lambda: coordinator.supply.demand == 1, "the thread to park")
    raise_in(thread)
    with coordinator.lock:
        coordinator.parked.notify()
    thread.join(TIMEOUT_SECONDS)

    assert len(raised) == 1
    assert coordinator.supply.demand == 0


def test_an_exception_from_outside_leaves_the_lock_free(coordinator: FetchCoordinator) -> None:
    raised: list[BaseException] = []

    with coordinator.lock:
        thread = begin(coordinator.quiet, raised)
        wait_until(lambda: is_in(thread, "run_locked"), "the thread to wait for the lock")
        raise_in(thread)
    thread.join(TIMEOUT_SECONDS)

    assert len(raised) == 1
    assert coordinator.lock.acquire(timeout=TIMEOUT_SECONDS)


def test_a_thread_that_waits_takes_what_a_blocked_job_leaves() -> None:
    """Nobody wakes it: neither the manager nor the thread that is blocked."""
    coordinator = FetchCoordinator(
        QueueOrder(parse_group("default"), [], Random(1)), InFlight(), SystemClock(), lambda: None, takers=3
    )
    coordinator.supply.limit.current, coordinator.supply.low_watermark, coordinator.redis_view.is_reserve_due = (
        1,
        1,
        False,
    )
    coordinator.supply.units.extend(Unit("default", b"{}", f"1.1.{number}", "me") for number in range(4))
    assert coordinator.take_at_hand() is not None  # for a job that blocks
    taken: list[object] = []

    threads = [begin(lambda: taken.append(coordinator.take_or_wait()), []) for _ in range(2)]

    wait_until(lambda: len(taken) == 2, "the others to take over")
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)


def test_the_end_wakes_every_parked_thread(coordinator: FetchCoordinator) -> None:
    coordinator.redis_view.is_reserve_due = False
    threads = [begin(coordinator.take_or_wait, []) for _ in range(3)]
    wait_until(lambda: coordinator.supply.demand == 3, "all to park")

    coordinator.end()

    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert coordinator.ended.is_set()
