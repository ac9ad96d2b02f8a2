"""Metrics of a worker's jobs: the series that the tallies of its processors add up to.

Family      name, type and help of a metric, and how the supervisor combines the values of several processes
Row         the values of one set of labels: all samples of a histogram, for example
JobMetrics  the rows of all processors; registered in prometheus-client's default registry, so that the application
            sees them there too

Names and buckets are GitLab's, so that existing dashboards fit.  Jobs that declare its base labels have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from kiqcluster.process.tallies import (
    COMPLETION_BUCKETS,
    COMPLETION_INDEXES,
    CPU_BUCKETS,
    CRON_BUCKETS,
    FINE_BUCKETS,
    QUEUE_BUCKETS,
    SKIP_REASONS,
    SKIPS,
    Executions,
    Histogram,
    Tallies,
    Tally,
    sums,
    with_unmeasured,
)

__all__ = [
    "COUNTERS",
    "PLAIN",
    "TARGETS",
    "Exemplars",
    "Family",
    "JobMetrics",
    "Labels",
    "Layout",
    "Row",
    "RunningJob",
    "attribute_labels",
]

STATUSES = ("done", "fail")

Labels = tuple[tuple[str, str], ...]
Layout = tuple[tuple[str, Labels], ...]  # for each value of a row: suffix of the sample's name, labels of its own
Exemplars = Mapping[int, tuple[Labels, float, float | None]]  # place in the row → labels, value, epoch seconds
PLAIN: Layout = (("", ()),)


@dataclass(frozen=True, slots=True)
class Family:
    """A metric.  mode: how to combine gauges of several processes: sum, min, max, mostrecent; all keeps them apart."""

    name: str
    kind: str
    text: str
    unit: str = ""
    mode: str = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """Values in the order of the layout.  Cumulative, except for gauges."""

    family: Family
    labels: Labels
    layout: Layout
    values: list[float]
    exemplars: Exemplars = field(default_factory=dict)


def _histogram(*parts: tuple[Labels, tuple[float, ...]]) -> Layout:
    """Return the layout of histograms side by side, each with labels of its own."""
    cells: list[tuple[str, Labels]] = []
    for labels, bounds in parts:
        cells += (("_bucket", (*labels, ("le", _bound(bound)))) for bound in (*bounds, float("inf")))
        cells += (("_count", labels), ("_sum", labels))
    return tuple(cells)


def _bound(bound: float) -> str:
    return str(floatToGoString(bound))  # type: ignore[no-untyped-call]  # untyped there


def _by_status(bounds: tuple[float, ...]) -> Layout:
    return _histogram(*(((("job_status", status),), bounds) for status in STATUSES))


COMPLETION = Family("sidekiq_jobs_completion_seconds", "histogram", "Seconds that jobs ran")
QUEUEING = Family("sidekiq_jobs_queue_duration_seconds", "histogram", "Seconds that jobs waited in their queue")
CPU = Family("sidekiq_jobs_cpu_seconds", "histogram", "Seconds of CPU that jobs used in their thread")
COUNTERS = {
    "failed": Family("sidekiq_jobs_failed", "counter", "Jobs that failed"),
    "retried": Family("sidekiq_jobs_retried", "counter", "Runs of jobs that had failed before"),
    "interrupted": Family("sidekiq_jobs_interrupted", "counter", "Jobs put back because the process stopped"),
    "dead": Family("sidekiq_jobs_dead", "counter", "Jobs that were buried"),
    "deferred": Family("sidekiq_jobs_deferred", "counter", "Jobs put off without being run"),
}
PARKED = Family("sidekiq_concurrency_limit_deferred_jobs", "counter", "Times that a concurrency limit parked a job")
TIMED_OUT = Family("sidekiq_jobs_timed_out", "counter", "Runs that took longer than timeout or timeout_hard")
RATE_LIMITED = Family("sidekiq_jobs_rate_limited", "counter", "Jobs put off by a rate limit, before or within a run")
NORMAL_FAILURES = Family("sidekiq_jobs_normal_failures", "counter", "Jobs that raised NormalFailure, and count as done")
SKIPPED = Family("sidekiq_jobs_skipped", "counter", "Jobs that middleware did not let run")
SKIPPED_FOR = Family("sidekiq_jobs_skipped_by_reason", "counter", "The same, by the reason why they did not run")
RUNNING = Family("sidekiq_running_jobs", "gauge", "Jobs that run now", mode="sum")
LONGEST = Family(
    "sidekiq_longest_running_job_seconds",
    "gauge",
    "Seconds for which the longest running job has run, 0 below ten",
    mode="max",
)
DEAD_DROPPED = Family("sidekiq_dead_jobs_dropped", "counter", "Dead jobs dropped to keep the limits of the dead set")
CRON_LATENESS = Family("sidekiq_cron_lateness_seconds", "histogram", "Seconds from a tick to the push of its job")
CRON_REFUSED = Family("sidekiq_cron_refused", "counter", "Ticks whose job a lock refused (deduplicate)")
# GitLab's service level indicators: all runs, and those within the target of their urgency.
RUNS_JUDGED = Family("gitlab_sli_sidekiq_execution_apdex", "counter", "Runs of jobs with an urgency that succeeded")
RUNS_IN_TIME = Family("gitlab_sli_sidekiq_execution_apdex_success", "counter", "Those that were within their target")
WAITS_JUDGED = Family("gitlab_sli_sidekiq_queueing_apdex", "counter", "Waits in a queue of jobs with an urgency")
WAITS_IN_TIME = Family("gitlab_sli_sidekiq_queueing_apdex_success", "counter", "Those that were within their target")
RARE = ("parked", "timed_out", "rate_limited", "normal_failures")  # counters of families that only some jobs have
APDEX = (RUNS_JUDGED, RUNS_IN_TIME, WAITS_JUDGED, WAITS_IN_TIME)
# Urgency → seconds within which a job has to begin and then to end, None for no target.  Both are bounds of buckets.
TARGETS: dict[str, tuple[float | None, float | None]] = {
    "high": (10.0, 10.0),
    "low": (60.0, 300.0),
    "throttled": (None, 300.0),
}
CONCURRENCY = Family("sidekiq_concurrency", "gauge", "Threads that run jobs", mode="sum")

COMPLETION_LAYOUT, CPU_LAYOUT = _by_status(COMPLETION_BUCKETS), _by_status(CPU_BUCKETS)
QUEUEING_LAYOUT = _histogram(((), QUEUE_BUCKETS))
COUNTER_LAYOUT: Layout = (("_total", ()),)
SKIPPED_LAYOUT: Layout = tuple(("_total", (("action", action),)) for action in SKIPS)
SKIPPED_FOR_LAYOUT: Layout = tuple(("_total", (("action", each), ("reason", why))) for each, why in SKIP_REASONS)
CRON_LAYOUT = _histogram(((), CRON_BUCKETS))
DEAD_DROPPED_LAYOUT: Layout = tuple(("_total", (("reason", reason),)) for reason in ("too_old", "too_many"))
OF_PROCESS = (RUNNING, LONGEST, CONCURRENCY, DEAD_DROPPED, CRON_LATENESS, CRON_REFUSED)
ROWS = (  # of each job and queue
    (COMPLETION, COMPLETION_LAYOUT),
    (QUEUEING, QUEUEING_LAYOUT),
    (CPU, CPU_LAYOUT),
    *((family, COUNTER_LAYOUT) for family in COUNTERS.values()),
    (SKIPPED, SKIPPED_LAYOUT),
    (PARKED, COUNTER_LAYOUT),  # only of jobs that were parked
    (TIMED_OUT, COUNTER_LAYOUT),  # only of jobs with such runs
    (RATE_LIMITED, COUNTER_LAYOUT),  # only of jobs that were
    (NORMAL_FAILURES, COUNTER_LAYOUT),  # only of jobs that did
    (SKIPPED_FOR, SKIPPED_FOR_LAYOUT),  # only of jobs that were
    *((family, COUNTER_LAYOUT) for family in APDEX),
)

ATTRIBUTES = {"urgency": "urgency", "feature_category": "feature_category", "resource_boundary": "boundary"}


def attribute_labels(options: Mapping[str, Any]) -> Labels:
    """Return GitLab's base labels for the attributes that a job declares; an empty label counts as absent."""
    labels = [(label, options[name]) for name, label in ATTRIBUTES.items() if options.get(name, "unknown") != "unknown"]
    if "external_dependencies" in options:
        labels.append(("external_dependencies", "yes" if options["external_dependencies"] else "no"))
    return tuple(labels)


LONG_RUN_SECONDS = 10.0  # longer runs are reported each time; shorter ones cost nothing
RunningJob = tuple[str, str, float]  # job name, queue, seconds for which it has run


class JobMetrics(Collector):
    """The job series of one process.

    running: returns each running job, for the gauges.  attributes: returns the labels that a job of that name
    declares.  Only one thread may call `changed`; any thread may call `collect`.
    """

    def __init__(
        self,
        concurrency: int,
        running: Callable[[], list[RunningJob]],
        attributes: Callable[[str], Labels] = lambda _: (),
    ) -> None:
        self._concurrency = concurrency
        self._running = running
        self._attributes = attributes
        self._by_processor: list[Tallies] = []
        self._known = self.tallies()  # zeros, so that series are there before the first run
        self._cpu: dict[tuple[str, str], list[float]] = {}  # as last reported: see _values
        self._ran: Counter[tuple[str, str]] = Counter()
        self._longest: dict[tuple[str, str], float] = {}  # as last reported, without zeros
        self._told: dict[tuple[str, str], list[list[float]]] = {}  # the values of a key's rows, as last reported
        self._has_told = False
        self._dead_dropped, self._told_dead_dropped = [0.0, 0.0], [-1.0, -1.0]  # too old, too many
        self._dropping = Lock()  # guards _dead_dropped: several threads bury
        self._cron_lateness, self._cron_refused = Histogram(CRON_BUCKETS), 0  # the poller's thread writes them
        self._told_cron: tuple[float, ...] = ()

    def tallies(self) -> Tallies:
        """Return new tallies, which one processor writes."""
        tallies: Tallies = {}
        self._by_processor.append(tallies)
        return tallies

    def processed(self) -> int:
        """Return how many runs have ended, done or failed, since the process started."""
        return sum(
            sum(tally.done.counts) + (sum(tally.failed.counts) if tally.failed else 0)
            for tallies in self._by_processor
            for tally in list(tallies.values())
        )

    def count_dead_dropped(self, too_old: int, too_many: int) -> None:
        """Count entries that the dead set has dropped.  From any thread."""
        with self._dropping:
            old, many = self._dead_dropped
            self._dead_dropped = [old + too_old, many + too_many]

    def count_cron(self, seconds: float, *, is_refused: bool) -> None:
        """Count a tick that this process has taken, so many seconds after its time.  From one thread."""
        self._cron_lateness.observe(seconds)
        self._cron_refused += is_refused

    def _cron(self) -> list[Row]:
        """Return the rows about cron entries; none until this process has taken a tick."""
        if not any(self._cron_lateness.counts):
            return []
        values = self._cron_lateness.values()
        return [
            Row(CRON_LATENESS, (), CRON_LAYOUT, values),
            Row(CRON_REFUSED, (), COUNTER_LAYOUT, [self._cron_refused]),
        ]

    def executions(self) -> dict[str, Executions]:
        """Return job name → its runs since the process started."""
        by_name: dict[str, list[Tally]] = {}
        for tallies in self._by_processor:
            for (name, _), tally in list(tallies.items()):
                by_name.setdefault(name, []).append(tally)
        return {name: Executions.of(tallies) for name, tallies in by_name.items()}

    def start_at_zero(self, jobs: Iterable[tuple[str, str]]) -> None:
        """Make the series of known jobs appear before their first run, so that rate() sees it."""
        for key in jobs:
            if key not in self._known:
                self._known[key] = Tally()

    def changed(self) -> list[Row]:
        """Return the rows that have changed since the last call."""
        keys: dict[tuple[str, str], None] = {}
        for tallies in self._by_processor:
            for key, tally in list(tallies.items()):
                if tally.changed:
                    tally.changed = False  # first, so that a count made from here on is read again
                    keys[key] = None
        running = self._running()
        ran, self._ran = self._ran, Counter((name, queue) for name, queue, _ in running)
        before, self._longest = self._longest, _longest(running)
        new = keys.keys() - self._told.keys()
        touched = {key for key in ran | self._ran if ran[key] != self._ran[key]} | new
        rows = [row for key in keys for row in self._news(key)]
        rows += [self._gauge(RUNNING, key, self._ran[key]) for key in touched]
        rows += [self._gauge(LONGEST, key, self._longest.get(key, 0.0)) for key in {*before, *self._longest, *new}]
        if not self._has_told:
            self._has_told = True
            rows.append(Row(CONCURRENCY, (), PLAIN, [self._concurrency]))
        if (dropped := self._dead_dropped) != self._told_dead_dropped:
            self._told_dead_dropped = dropped
            rows.append(Row(DEAD_DROPPED, (), DEAD_DROPPED_LAYOUT, dropped))
        cron = self._cron()
        if (news := tuple(value for row in cron for value in row.values)) != self._told_cron:
            self._told_cron = news
            rows += cron
        return rows

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics as objects of prometheus-client."""
        keys = dict.fromkeys(key for tallies in self._by_processor for key in list(tallies))
        jobs = self._running()
        running, longest = Counter((name, queue) for name, queue, _ in jobs), _longest(jobs)
        rows = [row for key in keys for row in self._rows(key)]
        rows += [self._gauge(RUNNING, key, running[key]) for key in {**keys, **running}]
        rows += [self._gauge(LONGEST, key, longest.get(key, 0.0)) for key in {**keys, **running}]
        rows.append(Row(CONCURRENCY, (), PLAIN, [self._concurrency]))
        rows += [Row(DEAD_DROPPED, (), DEAD_DROPPED_LAYOUT, self._dead_dropped), *self._cron()]
        metrics: dict[str, Metric] = {}
        for family in (*(family for family, _ in ROWS), *OF_PROCESS):
            metrics[family.name] = Metric(family.name, family.text, family.kind)
        for row in rows:
            for (suffix, labels), value in zip(row.layout, row.values, strict=True):
                metrics[row.family.name].add_sample(row.family.name + suffix, dict((*row.labels, *labels)), value)
        yield from metrics.values()

    def _news(self, key: tuple[str, str]) -> Iterator[Row]:
        """Yield the rows of a key that differ from the last call: a third of them for a job without failures."""
        before, now, labels = self._told.get(key), self._values(key), self._labels(key)
        self._told[key] = now
        for at, (family, layout) in enumerate(ROWS):
            if now[at] and (before is None or before[at] != now[at]):
                yield Row(family, labels, layout, now[at])

    def _rows(self, key: tuple[str, str]) -> Iterator[Row]:
        labels = self._labels(key)
        for (family, layout), values in zip(ROWS, self._values(key), strict=True):
            if values:
                yield Row(family, labels, layout, values)

    def _values(self, key: tuple[str, str]) -> list[list[float]]:
        """Return the values of a key's ROWS, of all processors together; none for a row that the key does not have."""
        tallies = [tally for each in self._by_processor if (tally := each.get(key)) is not None]
        counters = [each.counters for each in tallies]
        done = Histogram.whole(FINE_BUCKETS, [each.done for each in tallies])
        failed = Histogram.whole(COMPLETION_BUCKETS, [each.failed for each in tallies])
        waited = Histogram.whole(QUEUE_BUCKETS, [each.queueing for each in tallies])
        of_done = with_unmeasured([each.cpu_done for each in tallies], done)
        of_failed = with_unmeasured([each.cpu_failed for each in tallies], failed)
        # A run that is measured but not yet counted replaces an unmeasured one for a moment.
        before, used = self._cpu.get(key), [*of_done.values(), *of_failed.values()]
        used = self._cpu[key] = used if before is None else list(map(max, before, used))
        rare = [[count] if count else [] for count in sums(RARE, counters)]
        skipped, skipped_for = _skips([each.skipped for each in tallies if each.skipped])
        return [
            [*done.values(COMPLETION_INDEXES), *failed.values()],
            waited.values(),
            used,
            *([count] for count in sums(COUNTERS, counters)),
            skipped,
            *rare,
            skipped_for,
            *self._apdex(key, done, waited),
        ]

    def _apdex(self, key: tuple[str, str], runs: Histogram, waits: Histogram) -> Iterator[list[float]]:
        """Yield the values of APDEX: none for a job that declares no urgency, or without a target."""
        urgency = dict(self._attributes(key[0])).get("urgency", "")
        wait_target, run_target = TARGETS.get(urgency, (None, None))
        for histogram, target in ((runs, run_target), (waits, wait_target)):
            yield [] if target is None else [sum(histogram.counts)]
            yield [] if target is None else [histogram.within(target)]

    def _gauge(self, family: Family, key: tuple[str, str], value: float) -> Row:
        return Row(family, self._labels(key), PLAIN, [value])

    def _labels(self, key: tuple[str, str]) -> Labels:
        name, queue = key
        return ("queue", queue), ("worker", name), *self._attributes(name)


def _skips(counts: list[dict[tuple[str, str], int]]) -> tuple[list[float], list[float]]:
    """Return the values of SKIPPED and of SKIPPED_FOR; none of the latter while nothing was skipped."""
    if not counts:
        return [0.0] * len(SKIPS), []
    skipped_for = sums(SKIP_REASONS, counts)
    by_kind = dict(zip(SKIP_REASONS, skipped_for, strict=True))
    return [sum([by_kind[kind] for kind in SKIP_REASONS if kind[0] == action]) for action in SKIPS], skipped_for


def _longest(running: Iterable[RunningJob]) -> dict[tuple[str, str], float]:
    """Return name and queue → seconds of the longest run, for runs of at least LONG_RUN_SECONDS."""
    longest: dict[tuple[str, str], float] = {}
    for name, queue, seconds in running:
        if seconds >= LONG_RUN_SECONDS:
            longest[name, queue] = max(seconds, longest.get((name, queue), 0.0))
    return longest
