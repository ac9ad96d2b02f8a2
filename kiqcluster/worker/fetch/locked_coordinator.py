"""Locked coordinator: the fetch coordinator for threads.

It adds one lock, and the condition on which processors wait for units.  It never talks to Redis, so nobody holds the
lock over a round trip.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from kiqcluster.process.clock import Clock
from kiqcluster.store.engine.units import Unit
from kiqcluster.worker.fetch.batch import Batch, FetchMode
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.queue_order import QueueOrder

__all__ = ["LockedCoordinator"]

P = ParamSpec("P")
R = TypeVar("R")


def _locked(step: Callable[Concatenate[FetchCoordinator, P], R]) -> Callable[Concatenate[LockedCoordinator, P], R]:
    """Return a method that runs a step of the coordinator with the lock held."""

    def run_locked(self: LockedCoordinator, /, *arguments: P.args, **options: P.kwargs) -> R:
        for _ in iter(self.lock.acquire, None):  # as `with`, see LockedCoordinator
            try:
                return step(self.coordinator, *arguments, **options)
            finally:
                self.lock.release()
        raise AssertionError("a lock is always acquired")

    return run_locked


def _caller_name() -> str:
    return threading.current_thread().name


class LockedCoordinator:
    """The coordinator of one process, for many threads.

    `lock` guards all fields of `coordinator`, with the exceptions that are listed there.
    wake_manager: wakes the manager, from any thread.
    """

    def __init__(
        self, order: QueueOrder, in_flight: InFlight, clock: Clock, wake_manager: Callable[[], None], takers: int = 1
    ) -> None:
        # A library may raise an exception in this thread from outside: a time limit.  If `for` takes the lock, it is
        # raised before or after that.  From Python 3.14 on, `with` and a call may let it in when the lock is taken and
        # nothing releases it yet.  The lock of a condition would stay locked, too.
        self.lock = threading.Lock()
        self.parked = threading.Condition(self.lock)
        self.ended = threading.Event()  # to wait for
        self.coordinator = FetchCoordinator(
            order, in_flight, clock, self._wake_taker, wake_manager, takers, _caller_name
        )
        self._parked_count = 0

    def take(self) -> Unit | Batch | None:
        """Return a unit, or the batch that the caller has to flush; None when it is time to end.  Waits for either."""
        for _ in iter(self.lock.acquire, None):
            try:
                while True:
                    taken = self.coordinator.take(1)
                    if taken is not None or self.coordinator.mode is FetchMode.ENDED:
                        return taken
                    self._park()
            finally:
                self.lock.release()
        raise AssertionError("a lock is always acquired")

    def end(self) -> None:
        """Let every processor end when it asks for its next unit."""
        with self.lock:
            self.coordinator.end()
            self.ended.set()
            self.parked.notify_all()

    abandon = _locked(FetchCoordinator.abandon)
    check_overdue = _locked(FetchCoordinator.check_overdue)
    return_forgotten = _locked(FetchCoordinator.return_forgotten)
    on_wakeup = _locked(FetchCoordinator.on_wakeup)
    on_push = _locked(FetchCoordinator.on_push)
    is_sweep_wanted = _locked(FetchCoordinator.is_sweep_wanted)
    queues_to_arm = _locked(FetchCoordinator.queues_to_arm)
    queues_to_sweep = _locked(FetchCoordinator.queues_to_sweep)
    quiet = _locked(FetchCoordinator.quiet)
    resume = _locked(FetchCoordinator.resume)
    mark_uncertain = _locked(FetchCoordinator.mark_uncertain)
    build_request = _locked(FetchCoordinator.build_request)
    leave_in_transit = _locked(FetchCoordinator.leave_in_transit)
    on_reply = _locked(FetchCoordinator.on_reply)
    close = _locked(FetchCoordinator.close)
    on_refused = _locked(FetchCoordinator.on_refused)
    on_forbidden = _locked(FetchCoordinator.on_forbidden)
    on_failure = _locked(FetchCoordinator.on_failure)
    discard_reply = _locked(FetchCoordinator.discard_reply)
    on_resynced = _locked(FetchCoordinator.on_resynced)
    reset = _locked(FetchCoordinator.reset)

    def _park(self) -> None:
        seconds = None
        self._parked_count += 1
        try:
            self.coordinator.set_demand(self._parked_count)
            seconds = self.coordinator.begin_watch()
            self.parked.wait(seconds)
        finally:  # a library may raise an exception in this thread that was meant for the job before (a time limit)
            self._parked_count -= 1
            self.coordinator.demand = self._parked_count
            if seconds is not None:
                self.coordinator.end_watch()

    def _wake_taker(self) -> None:
        self.parked.notify()
