"""Metrics of a worker: what is counted, and how it is shown."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from kiqcluster.features.hooks.run_hooks import BeginFeature
from kiqcluster.features.stacks import current_stacks
from kiqcluster.process.metrics import COUNTERS, TARGETS, JobMetrics, Labels, Row, RunningJob, attribute_labels
from kiqcluster.process.tallies import (
    COMPLETION_BUCKETS,
    DEFERRED,
    DROPPED,
    EXECUTION_BUCKETS,
    QUEUE_BUCKETS,
    SKIP_REASONS,
    Measured,
    Tally,
)
from kiqcluster.sidekiq.outcome import Dead, Deferred, Discard, Done, Interrupted, Outcome, Retry
from kiqcluster.sidekiq.selectors import ATTRIBUTES

DONE = Done()
KEY = ("Mail", "mails")


def text(metrics: JobMetrics) -> list[str]:
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode().splitlines()


def value(metrics: JobMetrics, sample: str) -> float:
    (line,) = [line for line in text(metrics) if line.startswith(f"{sample} ")]
    return float(line.rpartition(" ")[2])


@pytest.fixture
def metrics() -> JobMetrics:
    """The metrics of a worker without jobs."""
    return JobMetrics(2, list)


@pytest.fixture
def tally(metrics: JobMetrics) -> Tally:
    """What its only processor counts."""
    tally = metrics.tallies()[KEY] = Tally()
    return tally


class TestCounting:
    def test_a_parked_job_counts_in_a_series_that_no_other_job_has(self, metrics: JobMetrics, tally: Tally) -> None:
        sample = 'sidekiq_concurrency_limit_deferred_jobs_total{queue="mails",worker="Mail"}'
        assert not [line for line in text(metrics) if line.startswith(sample)]

        tally.count("parked")

        assert value(metrics, sample) == 1

    def test_the_tallies_of_all_processors_are_one_series(self, metrics: JobMetrics) -> None:
        for seconds in (0.2, 700.0):
            tally = metrics.tallies()[KEY] = Tally()
            tally.add(DONE, seconds, None, was_retried=True)

        labels = 'job_status="done",queue="mails",worker="Mail"'
        buckets = [
            value(metrics, f'sidekiq_jobs_completion_seconds_bucket{{job_status="done",le="{bound}",{labels[18:]}}}')
            for bound in ("0.1", "0.25", "600.0", "+Inf")
        ]
        assert buckets == [0, 1, 1, 2]
        assert value(metrics, f"sidekiq_jobs_completion_seconds_sum{{{labels}}}") == 700.2
        assert value(metrics, 'sidekiq_jobs_retried_total{queue="mails",worker="Mail"}') == 2

    @pytest.mark.parametrize(
        ("outcome", "counted"),
        [
            (DONE, set()),
            (Retry(b"", 0.0), {"failed"}),
            (Dead(b"", 0.0), {"failed", "dead"}),
            (Dead(b"", 0.0, counted=False), {"dead"}),
            (Discard(), {"failed"}),
            (Interrupted(b""), {"interrupted"}),
            (Deferred(b"", 0.0), {"deferred"}),
        ],
        ids=["done", "retry", "dead", "unreadable", "discard", "interrupted", "deferred"],
    )
    def test_each_outcome_counts_as_what_it_is(
        self, metrics: JobMetrics, tally: Tally, outcome: Outcome, counted: set[str]
    ) -> None:
        tally.add(outcome, 1.0, None, was_retried=False)

        assert tally.counters == dict.fromkeys(counted, 1)
        for name in COUNTERS:
            sample = f'sidekiq_jobs_{name}_total{{queue="mails",worker="Mail"}}'
            assert value(metrics, sample) == (name in counted)

    @pytest.mark.parametrize("action", [DEFERRED, DROPPED])
    def test_what_middleware_skips_is_told_by_what_it_did(self, metrics: JobMetrics, tally: Tally, action: str) -> None:
        tally.skip(action)

        skipped = {each: value(metrics, f'sidekiq_jobs_skipped_total{{action="{each}",queue="mails",worker="Mail"}}')
                   for each in (DEFERRED, DROPPED)}  # fmt: skip
        assert skipped == {DEFERRED: action == DEFERRED, DROPPED: action == DROPPED}

    @pytest.mark.parametrize(
        ("action", "reason", "told"),
        [
            (DEFERRED, "strike:3fa9c1", "strike"),
            (DROPPED, "expiry", "expiry"),
            (DEFERRED, "version", "version"),
            (DEFERRED, "the shop of ann is closed", "policy"),  # an application may have any number of such reasons
            (DEFERRED, "", "redis"),
        ],
    )
    def test_what_did_not_run_is_told_by_its_reason(
        self, metrics: JobMetrics, tally: Tally, action: str, reason: str, told: str
    ) -> None:
        name = "sidekiq_jobs_skipped_by_reason_total"
        assert not [line for line in text(metrics) if line.startswith(name)]

        tally.skip(action, reason)

        counted = [line for line in text(metrics) if line.startswith(name) and line.endswith(" 1.0")]
        labels = f'action="{action}",queue="mails",reason="{told}",worker="Mail"'
        assert counted == [f"{name}{{{labels}}} 1.0"]

    def test_each_feature_that_may_refuse_a_run_has_a_reason_of_its_own(self) -> None:
        others = {"deduplication", "concurrency_limit", "history"}
        refusing = {each.name for each in current_stacks().server if isinstance(each, BeginFeature)} - others

        assert refusing <= {reason for _, reason in SKIP_REASONS}

    @pytest.mark.parametrize(("seconds", "bucket"), [(0.0, "0.1"), (0.1, "0.1"), (0.1001, "0.25"), (600.0, "600.0")])
    def test_a_bucket_takes_in_its_bound(self, metrics: JobMetrics, tally: Tally, seconds: float, bucket: str) -> None:
        tally.add(DONE, seconds, None, was_retried=False)

        ones = [line for line in text(metrics) if 'completion_seconds_bucket{job_status="done",le=' in line]
        assert next(line for line in ones if line.endswith(" 1.0")).count(f'le="{bucket}"') == 1

    def test_a_wait_that_clocks_make_negative_counts_as_none(self, metrics: JobMetrics, tally: Tally) -> None:
        tally.add(DONE, 0.0, -5.0, was_retried=False)

        assert value(metrics, 'sidekiq_jobs_queue_duration_seconds_sum{queue="mails",worker="Mail"}') == 0
        assert value(metrics, 'sidekiq_jobs_queue_duration_seconds_count{queue="mails",worker="Mail"}') == 1

    def test_what_ran_is_counted_whatever_came_of_it(self, metrics: JobMetrics, tally: Tally) -> None:
        tally.add(DONE, 1.0, None, was_retried=False)
        tally.add(Retry(b"", 0.0), 1.0, None, was_retried=False)
        tally.add(Deferred(b"", 0.0), 1.0, None, was_retried=False)

        assert metrics.processed() == 2


class TestCpu:
    def cpu(self, metrics: JobMetrics, status: str = "done") -> tuple[float, float, float]:
        """Return count, sum and how many are in the first bucket."""
        labels = f'job_status="{status}",queue="mails",worker="Mail"'
        first = f'job_status="{status}",le="0.1",queue="mails",worker="Mail"'
        name = "sidekiq_jobs_cpu_seconds"
        return (
            value(metrics, f"{name}_count{{{labels}}}"),
            value(metrics, f"{name}_sum{{{labels}}}"),
            value(metrics, f"{name}_bucket{{{first}}}"),
        )

    def test_a_run_counts_with_what_was_measured(self, metrics: JobMetrics, tally: Tally) -> None:
        tally.add(DONE, 3.0, None, was_retried=False, used=0.75)

        assert self.cpu(metrics) == (1, 0.75, 0)

    def test_a_brief_run_counts_with_its_duration(self, metrics: JobMetrics, tally: Tally) -> None:
        tally.add(DONE, 3.0, None, was_retried=False, used=0.75)
        tally.add(DONE, 0.00005, None, was_retried=False)

        assert self.cpu(metrics) == (2, pytest.approx(0.75005), 1)

    def test_failures_count_apart(self, metrics: JobMetrics, tally: Tally) -> None:
        tally.add(Retry(b"", 0.0), 3.0, None, was_retried=False, used=0.05)

        assert self.cpu(metrics, "fail") == (1, 0.05, 1)
        assert self.cpu(metrics, "done") == (0, 0, 0)

    def test_what_is_told_while_a_run_is_being_counted_is_never_taken_back(
        self, metrics: JobMetrics, tally: Tally
    ) -> None:
        """The parts of a run are counted one after the other, and whoever looks in between sees one of them."""
        tally.add(DONE, 0.00005, None, was_retried=False)
        before = self.cpu(metrics)
        tally.cpu_done = Measured()
        tally.cpu_done.measure(0.75, 3.0)
        between = self.cpu(metrics)
        tally.done.observe(3.0)
        after = self.cpu(metrics)

        for then, now in ((before, between), (between, after)):
            assert all(later >= earlier for earlier, later in zip(then, now, strict=True))
        assert after == (2, pytest.approx(0.75005), 1)


class TestExecutions:
    @pytest.mark.parametrize("slot", range(len(EXECUTION_BUCKETS) + 1))
    def test_each_run_that_succeeds_falls_into_its_bucket(self, metrics: JobMetrics, tally: Tally, slot: int) -> None:
        ms = [*EXECUTION_BUCKETS, 400_000][slot]

        tally.add(DONE, (ms - 0.5) / 1_000, None, was_retried=False)

        buckets = metrics.executions()["Mail"].buckets
        assert [at for at, count in enumerate(buckets) if count] == [slot]
        assert len(buckets) == 26

    @pytest.mark.parametrize(
        ("outcome", "counted"),
        [
            (DONE, (1, 0, 1_500)),
            (Retry(b"", 0.0), (1, 1, 0)),
            (Dead(b"", 0.0), (1, 1, 0)),
            (Discard(), (1, 1, 0)),
            (Interrupted(b""), (1, 0, 0)),
            (Dead(b"", 0.0, counted=False), (0, 0, 0)),
            (Deferred(b"", 0.0), (0, 0, 0)),
        ],
        ids=["done", "retry", "dead", "discard", "interrupted", "unreadable", "deferred"],
    )
    def test_only_failures_fail_and_only_successes_have_a_duration(
        self, metrics: JobMetrics, tally: Tally, outcome: Outcome, counted: tuple[int, int, int]
    ) -> None:
        tally.add(outcome, 1.5, None, was_retried=False)

        found = metrics.executions()["Mail"]
        assert (found.processed, found.failed, found.ms) == counted
        assert sum(found.buckets) == (counted[2] > 0)

    def test_they_are_of_all_queues_and_processors_together(self, metrics: JobMetrics) -> None:
        for queue in ("mails", "bulk", "mails"):
            tally = metrics.tallies()["Mail", queue] = Tally()
            tally.add(DONE, 0.001, None, was_retried=False)

        found = metrics.executions()
        assert {name: (each.processed, each.ms) for name, each in found.items()} == {"Mail": (3, 3)}


class TestSeries:
    def test_a_known_job_has_all_its_series_before_it_ran(self, metrics: JobMetrics) -> None:
        metrics.start_at_zero([KEY])

        zeros = [line for line in text(metrics) if 'queue="mails"' in line and line.endswith(" 0.0")]
        assert len(zeros) == 59
        assert not [line for line in text(metrics) if 'queue="mails"' in line and not line.endswith(" 0.0")]

    def test_running_jobs_and_threads_are_shown(self) -> None:
        metrics = JobMetrics(5, lambda: [(*KEY, 1.0), (*KEY, 2.0)])

        assert value(metrics, 'sidekiq_running_jobs{queue="mails",worker="Mail"}') == 2
        assert value(metrics, "sidekiq_concurrency") == 5

    def test_what_a_job_declares_is_a_label_of_its_series(self) -> None:
        declared: dict[str, Labels] = {"Mail": (("urgency", "high"),)}
        metrics = JobMetrics(1, list, lambda name: declared[name])
        metrics.start_at_zero([KEY])

        assert 'sidekiq_jobs_failed_total{queue="mails",urgency="high",worker="Mail"} 0.0' in text(metrics)

    @pytest.mark.parametrize(
        ("options", "labels"),
        [
            ({}, {}),
            ({"urgency": "high"}, {"urgency": "high"}),
            ({"feature_category": "mail", "retry": 3}, {"feature_category": "mail"}),
            ({"resource_boundary": "cpu"}, {"boundary": "cpu"}),
            ({"resource_boundary": "unknown"}, {}),
            ({"external_dependencies": True}, {"external_dependencies": "yes"}),
            ({"external_dependencies": False}, {"external_dependencies": "no"}),
        ],
    )
    def test_attributes_have_gitlabs_labels(self, options: dict[str, object], labels: dict[str, str]) -> None:
        assert dict(attribute_labels(options)) == labels


class TestTargets:
    def judged(self, urgency: str, runs: list[float], waits: list[float]) -> dict[str, float]:
        metrics = JobMetrics(1, list, lambda name: (("urgency", urgency),) if urgency else ())
        tally = metrics.tallies()[KEY] = Tally()
        for seconds, waited in zip(runs, waits, strict=True):
            tally.add(DONE, seconds, waited, was_retried=False)
        lines = [
            line.split() for line in text(metrics) if line.startswith("gitlab_sli_sidekiq_") and "_created" not in line
        ]
        return {
            name.partition("{")[0].removeprefix("gitlab_sli_sidekiq_").removesuffix("_total"): float(number)
            for name, number in lines
        }

    @pytest.mark.parametrize(
        ("urgency", "run_target", "wait_target"), [("high", 10, 10), ("low", 300, 60), ("throttled", 300, None)]
    )
    def test_runs_and_waits_count_as_in_time_up_to_the_target_of_the_urgency(
        self, urgency: str, run_target: float, wait_target: float | None
    ) -> None:
        wait = wait_target or 1e6
        judged = self.judged(urgency, [0.001, run_target, run_target + 0.1], [wait, wait + 0.1, wait + 9])

        waits = {} if wait_target is None else {"queueing_apdex": 3, "queueing_apdex_success": 1}
        assert judged == {"execution_apdex": 3, "execution_apdex_success": 2, **waits}

    def test_a_job_without_an_urgency_has_no_target_and_no_series(self) -> None:
        assert self.judged("", [0.001], [1e6]) == {}

    def test_every_urgency_has_a_target_that_is_a_bound_of_the_buckets(self) -> None:
        assert TARGETS.keys() == set(ATTRIBUTES["urgency"])
        for wait_target, run_target in TARGETS.values():
            assert wait_target in (None, *QUEUE_BUCKETS)
            assert run_target in COMPLETION_BUCKETS

    def test_a_failed_run_is_no_success_and_no_failure_of_its_target(self) -> None:
        metrics = JobMetrics(1, list, lambda _: (("urgency", "high"),))
        tally = metrics.tallies()[KEY] = Tally()

        tally.add(Retry(b"", 0.0), 99.0, 1.0, was_retried=False)

        labels = '{queue="mails",urgency="high",worker="Mail"}'
        assert value(metrics, f"gitlab_sli_sidekiq_execution_apdex_total{labels}") == 0
        assert value(metrics, f"gitlab_sli_sidekiq_queueing_apdex_total{labels}") == 1


class TestChanges:
    def changed(self, metrics: JobMetrics) -> dict[str, Row]:
        return {row.family.name: row for row in metrics.changed()}

    def test_at_first_all_is_told_and_then_only_what_was_counted_since(self, metrics: JobMetrics) -> None:
        metrics.start_at_zero([KEY])
        assert {"sidekiq_jobs_failed", "sidekiq_running_jobs", "sidekiq_concurrency"} <= self.changed(metrics).keys()
        assert self.changed(metrics) == {}

        tally = metrics.tallies()[KEY] = Tally()
        assert self.changed(metrics) == {}

        tally.count("interrupted")
        tally.skip(DROPPED)
        changes = self.changed(metrics)
        assert {family: row.values for family, row in changes.items()} == {
            "sidekiq_jobs_interrupted": [1],
            "sidekiq_jobs_skipped": [0, 1],
            "sidekiq_jobs_skipped_by_reason": [each == (DROPPED, "middleware") for each in SKIP_REASONS],
        }

        tally.add(DONE, 1.0, None, was_retried=False)
        assert self.changed(metrics).keys() == {"sidekiq_jobs_completion_seconds", "sidekiq_jobs_cpu_seconds"}
        assert self.changed(metrics) == {}

    def test_a_job_that_nobody_knew_is_told_with_all_its_series(self, metrics: JobMetrics) -> None:
        metrics.changed()

        metrics.tallies()[KEY] = Tally()

        changes = self.changed(metrics)
        assert {"sidekiq_jobs_dead", "sidekiq_jobs_queue_duration_seconds", "sidekiq_running_jobs"} <= changes.keys()
        assert "sidekiq_concurrency" not in changes

    def test_the_gauge_of_running_jobs_follows_them(self) -> None:
        running: list[RunningJob] = []
        metrics = JobMetrics(1, lambda: running)
        metrics.start_at_zero([KEY])
        metrics.changed()
        changes = []

        for now in (1.0, 2.0, None, None):
            running[:] = [] if now is None else [(*KEY, now)]
            changes.append([row.values for row in metrics.changed()])

        assert changes == [[[1]], [], [[0]], []]

    def test_the_longest_run_is_told_once_it_is_long(self) -> None:
        running: list[RunningJob] = []
        metrics = JobMetrics(1, lambda: running)
        metrics.start_at_zero([KEY])
        changes = []

        for now in ([], [9.0], [12.0, 30.0], [31.0], [], []):
            running[:] = [(*KEY, seconds) for seconds in now]
            row = self.changed(metrics).get("sidekiq_longest_running_job_seconds")
            changes.append(None if row is None else row.values[0])

        assert changes == [0, None, 30, 31, 0, None]
        running[:] = [(*KEY, 40.0)]
        assert value(metrics, 'sidekiq_longest_running_job_seconds{queue="mails",worker="Mail"}') == 40
