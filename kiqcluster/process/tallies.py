"""Tallies: what the processors of a worker count, as plain numbers, without a lock.

Histogram   counts by bucket, and a sum
Tally       counters of one processor for one job and queue; one thread writes it
Executions  figures of a job's runs on Sidekiq's metrics page (execution_metrics.py of worker and api)

Tallies are written on the path of each job, so a run costs a few additions.  metrics.py reads them, at most once a
second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from kiqcluster.sidekiq.outcome import Dead, Deferred, Done, Interrupted, Outcome

__all__ = [
    "COMPLETION_BUCKETS",
    "COMPLETION_INDEXES",
    "CPU_BUCKETS",
    "CRON_BUCKETS",
    "DEFERRED",
    "DROPPED",
    "EXECUTION_BUCKETS",
    "FINE_BUCKETS",
    "MIN_CPU_MEASURED_SECONDS",
    "QUEUE_BUCKETS",
    "SKIPS",
    "SKIP_REASONS",
    "Executions",
    "Histogram",
    "Measured",
    "Tallies",
    "Tally",
    "sums",
    "with_unmeasured",
]

COMPLETION_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 600.0)  # seconds
QUEUE_BUCKETS = (0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
CPU_BUCKETS = (0.1, 0.5, 1.0, 2.5)
CRON_BUCKETS = (0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 3_600.0)
EXECUTION_BUCKETS = (  # milliseconds; one more bucket is for longer runs (sidekiq metrics/shared.rb)
    *(20, 30, 45, 65, 100, 150, 225, 335, 500, 750, 1_100, 1_700, 2_500, 3_800, 5_750, 8_500),
    *(13_000, 20_000, 30_000, 45_000, 65_000, 100_000, 150_000, 225_000, 335_000),
)
FINE_BUCKETS = tuple(sorted({*COMPLETION_BUCKETS, *(bound / 1_000 for bound in EXECUTION_BUCKETS)}))  # seconds
# For each bound, the index in FINE_BUCKETS after it.
COMPLETION_INDEXES = tuple(FINE_BUCKETS.index(bound) + 1 for bound in COMPLETION_BUCKETS)
EXECUTION_INDEXES = tuple(FINE_BUCKETS.index(bound / 1_000) + 1 for bound in EXECUTION_BUCKETS)
# A shorter run counts with its duration as its CPU time: reading that clock costs 0.5 µs.
MIN_CPU_MEASURED_SECONDS = 1e-4
DROPPED, DEFERRED = "dropped", "deferred"  # what became of a job that did not run
SKIPS = (DEFERRED, DROPPED)
MIDDLEWARE, POLICY = "middleware", "policy"  # reasons: of middleware, and all of the application's own
SKIP_REASONS = (  # a closed set, so that what a policy calls its reason makes no series
    *((DEFERRED, reason) for reason in ("version", "strike", "feature_flag", "health_signal", "data_consistency")),
    *((DEFERRED, reason) for reason in (POLICY, "rate_limit", MIDDLEWARE, "redis")),
    *((DROPPED, reason) for reason in ("expiry", "cancelled", "strike", "batch", "feature_flag", POLICY, MIDDLEWARE)),
)
COUNTED_OUTCOMES: dict[type[Outcome], str] = {Dead: "dead", Deferred: "deferred", Interrupted: "interrupted"}


K = TypeVar("K")


class Histogram:
    """Counts by bucket, and a sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @classmethod
    def whole(cls, bounds: tuple[float, ...], parts: Iterable[Histogram | None]) -> Histogram:
        """Return the sum of the histograms that are not None."""
        whole, there = Histogram(bounds), [part for part in parts if part is not None]
        if there:
            whole.counts = list(map(sum, zip(*[part.counts for part in there], strict=True)))
            whole.total = sum([part.total for part in there])
        return whole

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def values(self, indexes: tuple[int, ...] = ()) -> list[float]:
        """Return cumulative buckets, count and sum, in the layout of _histogram.  indexes: see coarse; () for all."""
        cumulative = list(accumulate(self.coarse(indexes) if indexes else self.counts))
        return [*cumulative, cumulative[-1], self.total]

    def within(self, bound: float) -> int:
        """Return how many values are at most this bound, which is one of the histogram's."""
        return sum(self.counts[: self.bounds.index(bound) + 1])

    def coarse(self, indexes: tuple[int, ...]) -> list[int]:
        """Return the counts up to each of these indexes into the bounds, and beyond the last."""
        return [sum(self.counts[low:high]) for low, high in pairwise((0, *indexes, len(self.counts)))]


class Measured(Histogram):
    """CPU seconds of the runs that were long enough to be measured.  lasted: wall seconds of these runs."""

    __slots__ = ("lasted",)

    def __init__(self) -> None:
        super().__init__(CPU_BUCKETS)
        self.lasted = 0.0

    def measure(self, used: float, seconds: float) -> None:
        self.observe(used)
        self.lasted += seconds


def with_unmeasured(parts: Sequence[Measured | None], runs: Histogram) -> Histogram:
    """Return the CPU seconds of all `runs`; a run that was not measured counts with its duration."""
    whole = Histogram.whole(CPU_BUCKETS, parts)
    whole.counts[0] += max(0, sum(runs.counts) - sum(whole.counts))
    whole.total += max(0.0, runs.total - sum([part.lasted for part in parts if part is not None]))
    return whole


class Tally:
    """Counters of one processor for one job and queue.  changed: whether they changed since JobMetrics read them.

    Ten threads with jobs of a thousand queues have ten thousand of these, and every full garbage collection visits
    them.  So the parts that only some runs need are created by the first such run.
    """

    __slots__ = ("changed", "counters", "cpu_done", "cpu_failed", "done", "failed", "queueing", "skipped")

    def __init__(self) -> None:
        self.changed = True
        # So fine that one look-up per run serves our buckets and Sidekiq's.  A subclass would slow `observe` by 20 %.
        self.done = Histogram(FINE_BUCKETS)
        self.queueing = Histogram(QUEUE_BUCKETS)
        self.failed: Histogram | None = None
        self.cpu_done: Measured | None = None
        self.cpu_failed: Measured | None = None
        self.counters: dict[str, int] = {}
        self.skipped: dict[tuple[str, str], int] = {}  # one of SKIP_REASONS → runs

    def add(
        self, outcome: Outcome, seconds: float, waited: float | None, *, was_retried: bool, used: float | None = None
    ) -> None:
        """Count one run.

        seconds: duration.  waited: seconds in its queue, None when not known.  used: CPU seconds, None for a run of
        less than MIN_CPU_MEASURED_SECONDS.
        """
        if type(outcome) is Done:
            if used is not None:
                if self.cpu_done is None:
                    self.cpu_done = Measured()
                self.cpu_done.measure(used, seconds)
            self.done.observe(seconds)
        else:
            if outcome.failed:
                self._add_failed(seconds, used)
            if name := COUNTED_OUTCOMES.get(type(outcome)):
                self.count(name)
        if was_retried:
            self.count("retried")
        if waited is not None:
            self.queueing.observe(waited if waited > 0.0 else 0.0)
        self.changed = True  # last, so that a concurrent reader reads again

    def add_short(self, seconds: float, waited: float | None) -> None:
        """Count a run of less than MIN_CPU_MEASURED_SECONDS that is done and was no retry, as `add` does.

        Most runs are such: a call with keyword arguments costs more than the count.
        """
        self.done.observe(seconds)
        if waited is not None:
            self.queueing.observe(waited if waited > 0.0 else 0.0)
        self.changed = True  # last, as above

    def count(self, name: str) -> None:
        """Add one to the counter of this name."""
        self.counters[name] = self.counters.get(name, 0) + 1
        self.changed = True

    def skip(self, action: str, reason: str = MIDDLEWARE) -> None:
        """Count a run that middleware or a feature prevented.  reason: as in `deferred_by`; "" if Redis refused it."""
        kind = (action, reason.partition(":")[0] or "redis")
        if kind not in SKIP_REASONS:
            kind = (action, POLICY)
        self.skipped[kind] = self.skipped.get(kind, 0) + 1
        self.changed = True

    def _add_failed(self, seconds: float, used: float | None) -> None:
        if used is not None:
            if self.cpu_failed is None:
                self.cpu_failed = Measured()
            self.cpu_failed.measure(used, seconds)
        if self.failed is None:
            self.failed = Histogram(COMPLETION_BUCKETS)
        self.failed.observe(seconds)
        self.count("failed")


def sums(names: Iterable[K], counts: Iterable[Mapping[K, int]]) -> list[float]:
    """Return the sum of the counts under each name."""
    there = [each for each in counts if each]
    return [sum([each.get(name, 0) for each in there]) for name in names]


Tallies = dict[tuple[str, str], Tally]  # (job name, queue) → tally


@dataclass(frozen=True, slots=True)
class Executions:
    """Runs of a job, over all its queues.

    processed: all runs that ended, including interrupted ones.  ms, buckets: of successful runs, by EXECUTION_BUCKETS.
    """

    processed: int = 0
    failed: int = 0
    ms: int = 0
    buckets: tuple[int, ...] = (0,) * (len(EXECUTION_BUCKETS) + 1)

    @classmethod
    def of(cls, tallies: Sequence[Tally]) -> Executions:
        done = Histogram.whole(FINE_BUCKETS, [tally.done for tally in tallies])
        failed, interrupted = map(int, sums(("failed", "interrupted"), [tally.counters for tally in tallies]))
        runs = sum(done.counts) + failed + interrupted
        return cls(runs, failed, round(1_000 * done.total), tuple(done.coarse(EXECUTION_INDEXES)))
