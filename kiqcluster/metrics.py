"""Metrics of a worker: plain numbers added on the job's path, shown as prometheus-client metrics.

Tally       what one processor counted for one job and queue; one writer, so no lock
JobMetrics  collects the tallies of all processors; registered in prometheus-client's default registry
Snapshot    the series that changed since the last frame to the supervisor, ours and the application's alike

Names and buckets are GitLab's, so that existing dashboards fit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kiqcluster.outcome import Dead, Deferred, Done, Interrupted, Outcome

__all__ = ["JobMetrics", "Snapshot", "Tally"]

COMPLETION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 600.0)  # seconds
QUEUE_BUCKETS = (0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
LABELS = ("worker", "queue")
COUNTERS = {
    "failed": "Jobs that failed",
    "retried": "Runs of jobs that had failed before",
    "interrupted": "Jobs put back because the process stopped",
    "dead": "Jobs that were buried",
    "deferred": "Jobs put off without being run",
}
COUNTED_OUTCOMES: dict[type[Outcome], str] = {Dead: "dead", Deferred: "deferred", Interrupted: "interrupted"}
# What prometheus-client registers about the process itself: the supervisor reports that for each slot.
NOT_FORWARDED = ("python_", "process_")
STATUSES = ("done", "fail")


class Histogram:
    """Counts by bucket, and a sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Tally:
    """What one processor counted for one job and queue."""

    __slots__ = ("completion", "counters", "done", "failed", "queueing")

    def __init__(self) -> None:
        self.done, self.failed = Histogram(COMPLETION_BUCKETS), Histogram(COMPLETION_BUCKETS)
        self.completion = {"done": self.done, "fail": self.failed}
        self.queueing = Histogram(QUEUE_BUCKETS)
        self.counters = dict.fromkeys(COUNTERS, 0)

    def add(self, outcome: Outcome, seconds: float, waited: float | None, *, was_retried: bool) -> None:
        """Count one run.  seconds: how long it took.  waited: in its queue, None when that is not known."""
        if type(outcome) is Done:
            self.done.observe(seconds)
        else:
            if outcome.failed:
                self.failed.observe(seconds)
                self.counters["failed"] += 1
            if name := COUNTED_OUTCOMES.get(type(outcome)):
                self.counters[name] += 1
        if was_retried:
            self.counters["retried"] += 1
        if waited is not None:
            self.queueing.observe(waited if waited > 0.0 else 0.0)


Tallies = dict[tuple[str, str], Tally]  # (job name, queue) → tally


class JobMetrics(Collector):
    """The job series of one process.

    running: returns (job name, queue) of each running job, for the gauge.
    """

    def __init__(self, concurrency: int, running: Callable[[], list[tuple[str, str]]]) -> None:
        self._concurrency = concurrency
        self._running = running
        self._by_processor: list[Tallies] = []

    def tallies(self) -> Tallies:
        """Return a new set of tallies, for one processor to write."""
        tallies: Tallies = {}
        self._by_processor.append(tallies)
        return tallies

    def start_at_zero(self, jobs: Iterator[tuple[str, str]]) -> None:
        """Make the series of known jobs appear before their first run, so that rate() sees it."""
        tallies = self.tallies()
        for key in jobs:
            tallies[key] = Tally()

    def collect(self) -> Iterator[Metric]:
        merged = self._merged()
        completion = HistogramMetricFamily(
            "sidekiq_jobs_completion_seconds", "Seconds that jobs ran", labels=(*LABELS, "job_status")
        )
        queueing = HistogramMetricFamily(
            "sidekiq_jobs_queue_duration_seconds", "Seconds that jobs waited in their queue", labels=LABELS
        )
        counters = {
            name: CounterMetricFamily(f"sidekiq_jobs_{name}", text, labels=LABELS) for name, text in COUNTERS.items()
        }
        for key, tally in merged.items():
            for status in STATUSES:
                _add_histogram(completion, (*key, status), tally.completion[status])
            _add_histogram(queueing, key, tally.queueing)
            for name, value in tally.counters.items():
                counters[name].add_metric(key, value)
        running = GaugeMetricFamily("sidekiq_running_jobs", "Jobs that run now", labels=LABELS)
        counts = dict.fromkeys(merged, 0)
        for key in self._running():
            counts[key] = counts.get(key, 0) + 1
        for key, count in counts.items():
            running.add_metric(key, count)
        concurrency = GaugeMetricFamily("sidekiq_concurrency", "Threads that run jobs")
        concurrency.add_metric((), self._concurrency)
        yield from (completion, queueing, *counters.values(), running, concurrency)

    def _merged(self) -> Tallies:
        merged: Tallies = {}
        for tallies in self._by_processor:
            for key, tally in list(tallies.items()):
                into = merged.setdefault(key, Tally())
                for status in STATUSES:
                    _merge(into.completion[status], tally.completion[status])
                _merge(into.queueing, tally.queueing)
                for name, value in tally.counters.items():
                    into.counters[name] += value
        return merged


def _merge(into: Histogram, other: Histogram) -> None:
    into.counts = [mine + theirs for mine, theirs in zip(into.counts, other.counts, strict=True)]
    into.total += other.total


def _add_histogram(family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram) -> None:
    cumulative, buckets = 0, []
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        cumulative += count
        buckets.append((str(floatToGoString(bound)), cumulative))  # type: ignore[no-untyped-call]  # untyped there
    family.add_metric(labels, buckets, histogram.total)


class Snapshot:
    """The series of a registry that changed, as frames carry them.

    A family is `{name, type, help, samples: [[sample name, labels, value], …]}`; values are cumulative, so a
    frame may be dropped as long as its series stay dirty.  NaN and infinity travel as text.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._sent: dict[tuple[str, tuple[tuple[str, str], ...]], float | str] = {}

    def changed(self) -> list[dict[str, Any]]:
        """Return the changed families, and take them as sent."""
        families = []
        for metric in self._registry.collect():
            if metric.name.startswith(NOT_FORWARDED):
                continue
            samples = [
                [sample.name, sample.labels, _as_json(sample.value)]
                for sample in metric.samples
                if not sample.name.endswith("_created")
                and self._is_new(sample.name, sample.labels, _as_json(sample.value))
            ]
            if samples:
                families.append(
                    {"name": metric.name, "type": metric.type, "help": metric.documentation, "samples": samples}
                )
        return families

    def _is_new(self, name: str, labels: dict[str, str], value: float | str) -> bool:
        key = (name, tuple(sorted(labels.items())))
        if self._sent.get(key) == value:
            return False
        self._sent[key] = value
        return True


def _as_json(value: float) -> float | str:
    """Return a value that a frame can carry: JSON has no NaN and no infinity, gauges may be both."""
    return value if isfinite(value) else str(value)
