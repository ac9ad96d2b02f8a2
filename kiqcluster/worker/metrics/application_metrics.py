"""ApplicationMetrics: reads the application's own metrics, in a thread of its own.

A collector may be any code of the application, with a query to a database in it; the worker's main thread, which beats,
must not wait for it.  Without such metrics there is no thread.  Looks take at most a fiftieth of the time.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from functools import partial

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from kiqcluster.errors import class_name, message_of
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.clock import Clock
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import Row
from kiqcluster.process.service import OnCrash, Service
from kiqcluster.worker.metrics.metrics_delta import rows_of

__all__ = ["ApplicationMetrics"]

MIN_INTERVAL_SECONDS = 1.0  # between two looks
PAUSE_PER_LOOK = 50  # a look is followed by that many times its duration without one
# Collectors of prometheus-client about the process itself: the supervisor reports these values for each slot.
NOT_FORWARDED: Collection[object] = (
    prometheus_client.PROCESS_COLLECTOR,
    prometheus_client.PLATFORM_COLLECTOR,
    prometheus_client.GC_COLLECTOR,
)


class ApplicationMetrics(Service):
    """own: the collector that is not the application's.

    `_latest` is handed over by assignment; `_asked` and `_answered` are numbers that only grow.
    """

    def __init__(
        self, registry: CollectorRegistry, own: Collector, clock: Clock, events: Events, on_crash: OnCrash
    ) -> None:
        super().__init__("collectors", on_crash)
        self._registry = registry
        self._own = own
        self._clock = clock
        self._events = events
        self._latest: tuple[list[Row], bool] = ([], False)
        self._wanted, self._done = threading.Event(), threading.Event()
        self._asked = self._answered = 0
        self._faulty: set[str] = set()  # whose failure has been logged

    @property
    def is_needed(self) -> bool:
        """Whether the application has metrics."""
        return bool(self._application_collectors())

    def start(self) -> None:
        """Start the thread, if the application has metrics."""
        if self.is_needed:
            super().start()

    def latest(self) -> tuple[list[Row], bool]:
        """Return the rows of the latest look, once; and whether these are all."""
        latest, self._latest = self._latest, ([], False)
        return latest

    def ask(self, seconds: float) -> None:
        """Have them looked at from now on, and wait for that; at the end of a process, when nothing counts any more."""
        if not self.is_alive:
            return
        self._asked += 1
        goal, deadline = self._asked, self._clock.monotonic() + seconds
        self._wanted.set()
        while self._answered < goal and (left := deadline - self._clock.monotonic()) > 0:
            self._done.wait(left)
            self._done.clear()

    def run(self) -> None:
        while not self.stopping.is_set():
            self._wanted.clear()
            answers, began = self._asked, self._clock.monotonic()
            self._latest = self._look()
            self._answered = answers
            self._done.set()
            took = self._clock.monotonic() - began
            self._wanted.wait(max(MIN_INTERVAL_SECONDS, took * PAUSE_PER_LOOK))

    def wake(self) -> None:
        self._wanted.set()

    def _look(self) -> tuple[list[Row], bool]:
        rows: list[Row] = []
        is_whole = True
        for collector in self._application_collectors():
            found = guarded(partial(self._log_failure, collector), _rows_of, collector)
            is_whole = is_whole and found is not None
            rows += found or ()
        return rows, is_whole

    def _application_collectors(self) -> list[Collector]:
        # The registry tells no other way which metric is whose, and with which mode.
        known = list(getattr(self._registry, "_collector_to_names", ()))
        return [each for each in known if each is not self._own and each not in NOT_FORWARDED]

    def _log_failure(self, collector: Collector, error: BaseException) -> None:
        name = type(collector).__qualname__
        if name not in self._faulty:
            self._faulty.add(name)
            self._events.emit("collector_failed", collector=name, error=f"{class_name(error)}: {message_of(error)}")


def _rows_of(collector: Collector) -> list[Row]:
    mode = getattr(collector, "_multiprocess_mode", "all")  # gauges have it, whether or not there is a directory
    return [row for metric in collector.collect() for row in rows_of(metric, mode)]
