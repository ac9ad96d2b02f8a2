"""Turns: what the threads of a capsule agree on."""

from __future__ import annotations

import ctypes
import threading
from random import Random

from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.worker.fetch.coordinator import Turns
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.queue_order import QueueOrder
from tests.kit import PATIENCE, ManualClock, is_in, wait_until


class Late(BaseException):
    """A time limit that a library raises in the thread of a job that has just ended."""


def test_an_exception_from_outside_leaves_nobody_counted_as_idle() -> None:
    turns = Turns(QueueOrder(parse_group("default"), [], Random(1)), InFlight(), ManualClock(), lambda: None)
    turns.due = False
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            turns.wait()
        except Late as late:
            raised.append(late)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    wait_until(lambda: turns.idle == 1, "the thread to be idle")
    assert thread.ident is not None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Late))
    with turns.lock:
        turns.parked.notify()
    thread.join(PATIENCE)

    assert len(raised) == 1
    assert turns.idle == 0


def test_an_exception_from_outside_leaves_the_lock_free() -> None:
    turns = Turns(QueueOrder(parse_group("default"), [], Random(1)), InFlight(), ManualClock(), lambda: None)
    raised: list[BaseException] = []
    began = threading.Event()

    def take() -> None:
        began.set()
        try:
            turns.quiet()
        except Late as late:
            raised.append(late)

    thread = threading.Thread(target=take, daemon=True)
    with turns.lock:
        thread.start()
        began.wait(PATIENCE)
        wait_until(lambda: is_in(thread, "quiet"), "the thread to wait for the lock")
        assert thread.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Late))
    thread.join(PATIENCE)

    assert len(raised) == 1
    assert turns.lock.acquire(timeout=1)
