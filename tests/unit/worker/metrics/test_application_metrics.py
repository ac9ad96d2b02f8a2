"""ApplicationMetrics: the application's own metrics, read in a thread of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.registry import REGISTRY, Collector

from kiqcluster.process.clock import SystemClock
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics, Row
from kiqcluster.worker.metrics.application_metrics import ApplicationMetrics
from tests.kit import wait_until


class Faulty(Collector):
    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        raise ConnectionError("no database")


class Stuck(Collector):
    """Collects nothing until it is let go."""

    def __init__(self) -> None:
        self.close_after_fork = threading.Event()

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        self.close_after_fork.wait(20)
        return []


class Stage:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.ours = JobMetrics(1, list)
        self.registry.register(self.ours)
        self.events: list[dict[str, Any]] = []
        self.crashes: list[Exception] = []
        events = Events()
        events.listen(lambda name, fields: self.events.append({"event": name, **fields}))
        self.collectors = ApplicationMetrics(
            self.registry, self.ours, SystemClock(), events, lambda _, error: self.crashes.append(error)
        )

    def rows(self) -> tuple[dict[str, list[float]], bool]:
        """Return the first rows that there are, by name of their metric, and whether these are all."""
        found: list[tuple[list[Row], bool]] = []

        def look() -> bool:
            found[:] = [self.collectors.latest()]
            return found[0] != ([], False)

        wait_until(look, "the metrics to be read")
        return {row.family.name: row.values for row in found[0][0]}, found[0][1]


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A worker's registry with nothing but our own in it."""
    stage = Stage()
    yield stage
    stage.collectors.stop()
    assert stage.collectors.join(20)
    assert stage.crashes == []


def test_without_metrics_of_the_application_there_is_nothing_to_do(stage: Stage) -> None:
    assert not stage.collectors.is_needed
    Counter("mails", "sent", registry=stage.registry)
    assert stage.collectors.is_needed


def test_what_prometheus_client_registers_itself_is_not_the_applications() -> None:
    """Also a promise about the library: that its registry still tells which collectors it has."""
    known = set(REGISTRY._collector_to_names)
    collectors = ApplicationMetrics(REGISTRY, JobMetrics(1, list), SystemClock(), Events(), lambda *_: None)

    assert len(known) >= 3
    assert set(collectors._application_collectors()) == {
        each for each in known if type(each).__name__ not in ("ProcessCollector", "PlatformCollector", "GCCollector")
    }


def test_the_applications_metrics_are_read_and_ours_are_not(stage: Stage) -> None:
    Counter("mails", "sent", registry=stage.registry).inc(3)
    stage.collectors.start()

    assert stage.rows() == ({"mails": [3]}, True)
    assert stage.collectors.latest() == ([], False)  # it is told once


def test_a_gauge_keeps_its_mode(stage: Stage) -> None:
    Gauge("pool", "x", registry=stage.registry, multiprocess_mode="livemax").set(1)
    stage.collectors.start()

    wait_until(lambda: stage.collectors._latest[0], "the metrics to be read")
    assert stage.collectors.latest()[0][0].family.mode == "max"


def test_one_that_fails_is_said_once_and_the_others_are_read(stage: Stage) -> None:
    stage.registry.register(Faulty())
    Counter("mails", "sent", registry=stage.registry).inc(3)
    stage.collectors.start()

    assert stage.rows() == ({"mails": [3]}, False)
    stage.collectors.ask(20)
    assert stage.rows() == ({"mails": [3]}, False)
    assert [(each["event"], each["collector"]) for each in stage.events] == [("collector_failed", "Faulty")]


def test_who_asks_gets_what_was_counted_before(stage: Stage) -> None:
    counter = Counter("mails", "sent", registry=stage.registry)
    stage.collectors.start()
    stage.rows()

    counter.inc(5)
    stage.collectors.ask(20)

    assert stage.rows()[0] == {"mails": [5]}


def test_nobody_waits_for_one_that_is_stuck(stage: Stage) -> None:
    stuck = Stuck()
    stage.registry.register(stuck)
    stage.collectors.start()

    stage.collectors.ask(0.05)

    assert stage.collectors.latest() == ([], False)
    stuck.close_after_fork.set()


def test_asking_before_there_is_a_thread_waits_for_nothing(stage: Stage) -> None:
    Counter("mails", "sent", registry=stage.registry)

    stage.collectors.ask(20)

    assert stage.collectors.latest() == ([], False)
