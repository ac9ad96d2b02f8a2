"""WorkerMetrics: the series of a worker: of its jobs, and of collectors of the application.

Runs in: the main thread.  Processors count into `jobs`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from prometheus_client import REGISTRY

from kiqcluster.application.registry import Registry
from kiqcluster.client.router import queue_of
from kiqcluster.process.metrics import JobMetrics, Labels, RunningJob, attribute_labels
from kiqcluster.process.runtime import Runtime
from kiqcluster.worker.metrics.application_metrics import ApplicationMetrics
from kiqcluster.worker.metrics.metrics_delta import Frame, MetricsDelta
from kiqcluster.worker.run.job_run import JobRun

__all__ = ["WorkerMetrics"]

LAST_METRICS_SECONDS = 0.5  # that the application's metrics get at the end


class WorkerMetrics:
    """running: returns the runs of this moment."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        concurrency: int,
        running: Callable[[], list[JobRun]],
        on_crash: Callable[[str, Exception], None],
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._running = running
        self.jobs = JobMetrics(concurrency, self._running_jobs, self._attributes)
        self.collectors = ApplicationMetrics(REGISTRY, self.jobs, runtime.clock, runtime.events, on_crash)
        self._delta = MetricsDelta()

    def start(self, queues: Collection[str]) -> None:
        """Register the series of all jobs of these queues, with zeros before their first run."""
        jobs = ((definition.name, queue_of(definition, self._runtime.setup)) for definition in self._registry)
        self.jobs.start_at_zero((name, queue) for name, queue in jobs if queue in queues)
        REGISTRY.register(self.jobs)

    def changed(self, *, is_last: bool = False) -> Iterator[Frame]:
        """Yield the frames that tell the supervisor which series have changed; each is to be sent."""
        if is_last:
            self.collectors.ask(LAST_METRICS_SECONDS)
        rows, is_whole = self.collectors.latest()
        ours, whole = self.jobs.changed(), rows if is_whole else None
        yield from self._delta.changed(ours if is_whole else [*ours, *rows], whole=whole)

    def _attributes(self, name: str) -> Labels:
        definition = self._registry.get(name)
        return () if definition is None else attribute_labels(definition.local)

    def _running_jobs(self) -> list[RunningJob]:
        """Return each running job of a registered class, for the gauges."""
        named, now = [], self._runtime.clock.now()
        for run in self._running():
            context = run.context
            if context is not None and self._registry.get(context.name) is not None:
                named.append((context.name, run.unit.queue, max(0.0, now - run.since)))
        return named
