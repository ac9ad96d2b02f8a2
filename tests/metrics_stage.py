"""Workers that report to a cluster's metrics, without processes: frames of real snapshots in, a page out."""

from __future__ import annotations

import math
from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from kiqcluster.ipc.negotiation import TEXT
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import Family, Labels, Row
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.supervisor.cluster.child import Child, LastBeat
from kiqcluster.supervisor.cluster.expansion import SlotPlan
from kiqcluster.supervisor.cluster.slots import Slot
from kiqcluster.supervisor.cluster.state import ClusterState
from kiqcluster.supervisor.metrics.page import ClusterMetrics
from kiqcluster.worker.metrics.metrics_delta import MetricsDelta, rows_of
from tests.kit import ManualClock

__all__ = ["Stage", "Worker"]

UNUSED_PID = 1 << 22  # beyond every pid


class Stage:
    """A cluster's metrics, and workers that report to them."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.clock = ManualClock(100.0)
        self.refused: list[str] = []  # metrics of which was said that they are not shown
        events = Events()
        events.listen(lambda event, fields: self.refused.append(fields["metric"]))
        self.metrics = ClusterMetrics(self.state, self.clock, events)
        self._pids = iter(range(UNUSED_PID, 2 * UNUSED_PID))

    def worker(self, slot: int = 0) -> Worker:
        """Return a new worker in a slot."""
        return Worker(self, slot, next(self._pids))

    def catch_up(self) -> None:
        self.metrics.catch_up(math.inf)

    def page(self, form: str = TEXT) -> str:
        self.catch_up()
        steps = self.metrics.scrape(form)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value.decode()

    def shown(self) -> dict[str, float]:
        """Return series → value of a scrape."""
        lines = [line for line in self.page().splitlines() if not line.startswith("#")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


class Worker:
    """A child with metrics of its own; what it reports goes through the form that frames have."""

    def __init__(self, stage: Stage, slot: int, pid: int) -> None:
        self._stage = stage
        self.registry = CollectorRegistry()
        self.slot = Slot(SlotPlan(slot, parse_group("*"), {}, "random", 1))
        self.child = Child(pid, None, started_at=0.0, beat=LastBeat(0.0))  # type: ignore[arg-type]  # it has no socket
        self._metrics_delta = MetricsDelta()

    def report(self) -> None:
        rows = [
            row
            for collector in list(self.registry._collector_to_names)
            for metric in collector.collect()
            for row in rows_of(metric, getattr(collector, "_multiprocess_mode", "all"))
        ]
        self._send(self._metrics_delta.changed((), whole=rows))

    def count(self, value: float, name: str = "sidekiq_jobs_failed", labels: Labels = (("worker", "Mail"),)) -> None:
        self._send(
            self._metrics_delta.changed([Row(Family(name, "counter", "help"), labels, (("_total", ()),), [value])])
        )

    def gauge(self, value: float, name: str, mode: str = "all") -> None:
        self._send(
            self._metrics_delta.changed([Row(Family(name, "gauge", "help", mode=mode), (), (("", ()),), [value])])
        )

    def die(self) -> None:
        self._stage.metrics.on_child_exit(self.slot, self.child)

    def _send(self, frames: Iterator[dict[str, list[object]]]) -> None:
        for frame in frames:
            raw = ruby_json.encode({"type": "metrics", **frame})
            self._stage.metrics.add_frame(self.slot, self.child, {"type": "metrics", "raw": raw})
