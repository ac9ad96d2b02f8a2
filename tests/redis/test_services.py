"""The services of a worker: which start, end and start again, and when (SERVICES in worker/launcher)."""

from __future__ import annotations

import gc
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry, Counter

from kiqcluster.application.registry import Registry
from kiqcluster.ipc.running_jobs import RunningJobs
from kiqcluster.job import job
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.process.service import Service
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store import Store
from kiqcluster.worker.child_spec import ChildSpec
from kiqcluster.worker.launcher import SERVICES, Launcher, Stop, services_of
from kiqcluster.worker.metrics import worker_metrics
from kiqcluster.worker.parts import Callbacks, assemble
from tests.kit import wait_until

OF_OTHERS = {"async", "processor", "timeouts"}  # the manager and the recovery start them
STARTED = {row.name for row in SERVICES if row.starts} - {"joblog"}  # which starts where somebody hears job_done


class Rows:
    """A source of jobs that has none."""

    name = "shop"
    interval = 1.0

    def move(self) -> bool:
        return False


class Life:
    """A worker with an async job, a source outside of Redis and a metric of its own."""

    def __init__(self, store: Store, setup: Setup, registry: Registry) -> None:
        @job
        def note() -> None:
            pass

        @job
        async def call() -> None:
            pass

        self.note, self.keys = note, store.keys
        self.crashes: list[str] = []
        setup.due_sources.append(Rows())
        events = Events()
        events.listen(lambda name, fields: self.crashes.append(str(fields["service"])) if "crash" in name else None)
        runtime = Runtime(Config(), store, setup, events)
        ours, self._supervisor = socket.socketpair()
        with closing(ours):
            spec = ChildSpec(0, Config(), parse_group("default"), (), 2, False, RunningJobs(2, 2), ours)
            callbacks = Callbacks(*[lambda *_: None] * 4)
            before = {id(each): each for each in gc.get_objects() if isinstance(each, Service)}
            self.parts = assemble(runtime, registry, spec, callbacks)
            self.made = [each for each in gc.get_objects() if isinstance(each, Service) and id(each) not in before]
        self.launcher = Launcher(runtime, self.parts)

    def alive(self) -> set[str]:
        """Return the names of the rows whose services are alive."""
        return {name for name, services in services_of(self.parts).items() if any(each.is_alive for each in services)}

    def close(self) -> None:
        self._supervisor.close()
        for each in self.made:
            each.stop()
        self.parts.fetch.coordinator.end()
        for each in self.made:
            assert each.join(20.0)
        if self.parts.processors.loop is not None:
            self.parts.processors.loop.loop.close()
        self.launcher.close_after_fork()


@pytest.fixture
def life(store: Store, setup: Setup, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> Iterator[Life]:
    metrics = CollectorRegistry()  # the one of the process is other tests', too
    Counter("mails", "sent", registry=metrics)
    monkeypatch.setattr(worker_metrics, "REGISTRY", metrics)
    with closing(Life(store, setup, registry)) as life:
        yield life


def test_every_service_of_the_parts_has_a_row_and_every_row_a_service(life: Life) -> None:
    names = {row.name for row in SERVICES}

    assert {each.name.partition("/")[0] for each in life.made} == names | OF_OTHERS
    assert len(SERVICES) == len(names)
    found = {name for name, services in services_of(life.parts).items() if services}
    assert found >= {row.name for row in SERVICES if row.starts or row.restarts}


def test_they_start_and_end_in_the_steps_of_their_rows(life: Life) -> None:
    life.launcher.join({})
    life.launcher.announce()
    assert not life.alive()

    life.launcher.start()
    assert life.alive() == STARTED
    life.note.perform_async()
    wait_until(lambda: life.launcher.tally()["processed"] == 1, "the job to run")

    life.launcher.begin_stop()
    first = {row.name for row in SERVICES if row.stops is Stop.FIRST}
    wait_until(lambda: life.alive() == STARTED - first, "those of the first step to end")

    assert life.launcher.finish_stop()
    wait_until(lambda: life.alive() <= {row.name for row in SERVICES if row.stops is Stop.NEVER}, "the others to end")


def test_one_that_has_crashed_starts_again_and_one_that_was_stopped_does_not(life: Life) -> None:
    life.launcher.join({})
    life.launcher.start()
    poller, heartbeat = life.parts.poller, life.parts.heartbeat
    heartbeat.stop()
    assert heartbeat.join(20.0)
    del poller.__dict__["_duties"]  # what it needs next
    poller.inbox.wake()
    poller.inbox.expect(life.keys.retry, 0.0)
    wait_until(lambda: not poller.is_alive, "the poller to crash")

    life.launcher.restart_crashed_services()

    assert life.crashes[0] == "poller"
    assert not heartbeat.is_alive
    wait_until(lambda: len(life.crashes) == 2, "its new thread to crash, too")
