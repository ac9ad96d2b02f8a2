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
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.locked_coordinator import LockedCoordinator
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
def shared() -> LockedCoordinator:
    return LockedCoordinator(QueueOrder(parse_group("default"), [], Random(1)), InFlight(), ManualClock(), lambda: None)


def test_an_exception_from_outside_leaves_no_demand_behind(shared: LockedCoordinator) -> None:
    shared.coordinator.is_reserve_due = False
    raised: list[BaseException] = []

    thread = begin(shared.take, raised)
    wait_until(lambda: shared.coordinator.demand == 1, "the thread to park")
    raise_in(thread)
    with shared.lock:
        shared.parked.notify()
    thread.join(TIMEOUT_SECONDS)

    assert len(raised) == 1
    assert shared.coordinator.demand == 0


def test_an_exception_from_outside_leaves_the_lock_free(shared: LockedCoordinator) -> None:
    raised: list[BaseException] = []

    with shared.lock:
        thread = begin(shared.quiet, raised)
        wait_until(lambda: is_in(thread, "run_locked"), "the thread to wait for the lock")
        raise_in(thread)
    thread.join(TIMEOUT_SECONDS)

    assert len(raised) == 1
    assert shared.lock.acquire(timeout=TIMEOUT_SECONDS)


def test_a_thread_that_waits_takes_what_a_blocked_job_leaves() -> None:
    """Nobody wakes it: neither the manager nor the thread that is blocked."""
    shared = LockedCoordinator(
        QueueOrder(parse_group("default"), [], Random(1)), InFlight(), SystemClock(), lambda: None, takers=3
    )
    coordinator = shared.coordinator
    coordinator.limit.current, coordinator.low_watermark, coordinator.is_reserve_due = 1, 1, False
    coordinator.units.extend(Unit("default", b"{}", f"1.1.{number}", "me") for number in range(4))
    assert coordinator.take_at_hand() is not None  # for a job that blocks
    taken: list[object] = []

    threads = [begin(lambda: taken.append(shared.take()), []) for _ in range(2)]

    wait_until(lambda: len(taken) == 2, "the others to take over")
    for thread in threads:
        thread.join(TIMEOUT_SECONDS)


def test_the_end_wakes_every_parked_thread(shared: LockedCoordinator) -> None:
    shared.coordinator.is_reserve_due = False
    threads = [begin(shared.take, []) for _ in range(3)]
    wait_until(lambda: shared.coordinator.demand == 3, "all to park")

    shared.end()

    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
    assert not any(thread.is_alive() for thread in threads)
    assert shared.ended.is_set()
