"""Metrics of a worker: what is counted, and which series a frame carries."""

from __future__ import annotations

import math
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from kiqcluster import rubyjson
from kiqcluster.metrics import JobMetrics, Snapshot, Tally


def samples(families: list[dict[str, Any]]) -> dict[tuple[str, tuple[tuple[str, str], ...]], Any]:
    return {
        (name, tuple(sorted(labels.items()))): value for family in families for name, labels, value in family["samples"]
    }


class TestSnapshot:
    @pytest.fixture
    def registry(self) -> CollectorRegistry:
        return CollectorRegistry()

    def test_the_first_one_has_every_series_and_the_next_only_what_changed(self, registry: CollectorRegistry) -> None:
        counter = Counter("mails", "sent", ["kind"], registry=registry)
        counter.labels("a").inc()
        counter.labels("b").inc(2)
        snapshot = Snapshot(registry)

        first, second = snapshot.changed(), snapshot.changed()
        counter.labels("b").inc()
        third = snapshot.changed()

        assert samples(first) == {("mails_total", (("kind", "a"),)): 1, ("mails_total", (("kind", "b"),)): 2}
        assert second == []
        assert samples(third) == {("mails_total", (("kind", "b"),)): 3}

    def test_a_family_says_name_type_and_help(self, registry: CollectorRegistry) -> None:
        Histogram("size", "of mails", registry=registry).observe(1)

        (family,) = Snapshot(registry).changed()

        assert (family["name"], family["type"], family["help"]) == ("size", "histogram", "of mails")

    def test_creation_times_and_the_interpreters_own_series_stay_here(self, registry: CollectorRegistry) -> None:
        Counter("mails", "sent", registry=registry)
        Gauge("python_info", "x", registry=registry)
        Gauge("process_open_fds", "x", registry=registry)

        assert list(samples(Snapshot(registry).changed())) == [("mails_total", ())]

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 0.1, -0.0])
    def test_every_value_of_a_gauge_survives_a_frame(self, registry: CollectorRegistry, value: float) -> None:
        Gauge("odd", "x", registry=registry).set(value)
        Gauge("large", "x", registry=registry).set(1e17)

        frame = rubyjson.decode(rubyjson.encode(Snapshot(registry).changed()))

        assert repr(float(samples(frame)["odd", ()])) == repr(value)

    def test_a_value_that_is_no_number_is_sent_once(self, registry: CollectorRegistry) -> None:
        Gauge("odd", "x", registry=registry).set(math.nan)
        snapshot = Snapshot(registry)

        assert snapshot.changed() != []
        assert snapshot.changed() == []


class TestJobMetrics:
    def text(self, metrics: JobMetrics) -> list[str]:
        registry = CollectorRegistry()
        registry.register(metrics)
        return generate_latest(registry).decode().splitlines()

    def test_the_tallies_of_all_processors_are_one_series(self) -> None:
        metrics = JobMetrics(2, list)
        for seconds in (0.2, 700.0):
            tally = metrics.tallies()["Mail", "mails"] = Tally()
            tally.completion["done"].observe(seconds)
            tally.counters["failed"] += 1

        lines = self.text(metrics)

        labels = 'job_status="done",queue="mails",worker="Mail"'
        assert 'sidekiq_jobs_completion_seconds_bucket{job_status="done",le="0.1",queue="mails",worker="Mail"} 0.0' in (
            lines
        )
        assert (
            'sidekiq_jobs_completion_seconds_bucket{job_status="done",le="0.25",queue="mails",worker="Mail"} 1.0'
            in (lines)
        )
        assert (
            'sidekiq_jobs_completion_seconds_bucket{job_status="done",le="+Inf",queue="mails",worker="Mail"} 2.0'
            in (lines)
        )
        assert f"sidekiq_jobs_completion_seconds_sum{{{labels}}} 700.2" in lines
        assert 'sidekiq_jobs_failed_total{queue="mails",worker="Mail"} 2.0' in lines

    def test_a_known_job_has_its_series_before_it_ran(self) -> None:
        metrics = JobMetrics(2, list)
        metrics.start_at_zero(iter([("Mail", "mails")]))

        lines = self.text(metrics)

        assert 'sidekiq_jobs_failed_total{queue="mails",worker="Mail"} 0.0' in lines
        assert 'sidekiq_running_jobs{queue="mails",worker="Mail"} 0.0' in lines

    def test_running_jobs_and_threads_are_shown(self) -> None:
        lines = self.text(JobMetrics(5, lambda: [("Mail", "mails"), ("Mail", "mails")]))

        assert 'sidekiq_running_jobs{queue="mails",worker="Mail"} 2.0' in lines
        assert "sidekiq_concurrency 5.0" in lines

    @pytest.mark.parametrize(("seconds", "bucket"), [(0.0, "0.1"), (0.1, "0.1"), (0.1001, "0.25"), (600.0, "600.0")])
    def test_a_bucket_takes_in_its_bound(self, seconds: float, bucket: str) -> None:
        metrics = JobMetrics(1, list)
        tally = metrics.tallies()["Mail", "mails"] = Tally()
        tally.completion["done"].observe(seconds)

        ones = [line for line in self.text(metrics) if 'job_status="done",le=' in line and line.endswith(" 1.0")]

        assert f'le="{bucket}"' in ones[0]
