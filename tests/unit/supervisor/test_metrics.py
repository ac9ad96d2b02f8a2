"""Metrics of the cluster: summed over slots, and no step back whatever children do."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kiqcluster.board import Board
from kiqcluster.groups import parse_group
from kiqcluster.supervisor.children import Slot
from kiqcluster.supervisor.expansion import SlotPlan
from kiqcluster.supervisor.metrics import ClusterMetrics


def family(name: str, kind: str, samples: dict[str, float | str], **labels: str) -> dict[str, Any]:
    """Return a family as a frame brings it."""
    return {
        "name": name,
        "type": kind,
        "help": "help",
        "samples": [[sample, labels, value] for sample, value in samples.items()],
    }


def jobs(value: float) -> list[dict[str, Any]]:
    return [family("sidekiq_jobs_failed", "counter", {"sidekiq_jobs_failed_total": value}, worker="Mail")]


@pytest.fixture
def slots() -> list[Slot]:
    """Two slots without children."""
    return [Slot(SlotPlan(number, parse_group("*"), {}, "random", 1), Board(1)) for number in range(2)]


@pytest.fixture
def metrics(slots: list[Slot]) -> ClusterMetrics:
    """The metrics of those slots."""
    return ClusterMetrics(lambda: slots, lambda: False)


def shown(metrics: ClusterMetrics) -> dict[str, float]:
    """Return series → value of a scrape."""
    _, text = metrics.render("text/plain")
    lines = [line for line in text.decode().splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


FAILED = 'sidekiq_jobs_failed_total{worker="Mail"}'


class TestTotals:
    def test_job_series_are_summed_over_slots_without_a_slot_label(self, metrics: ClusterMetrics) -> None:
        metrics.apply(0, jobs(3))
        metrics.apply(1, jobs(4))

        assert shown(metrics)[FAILED] == 7

    def test_a_newer_value_of_a_slot_takes_the_place_of_the_older(self, metrics: ClusterMetrics) -> None:
        metrics.apply(0, jobs(3))
        metrics.apply(0, jobs(5))

        assert shown(metrics)[FAILED] == 5

    def test_what_a_dead_child_counted_stays(self, metrics: ClusterMetrics) -> None:
        metrics.apply(0, jobs(3))
        metrics.fold(0)
        assert shown(metrics)[FAILED] == 3

        metrics.apply(0, jobs(1))
        assert shown(metrics)[FAILED] == 4

    def test_folding_twice_or_what_was_never_there_changes_nothing(self, metrics: ClusterMetrics) -> None:
        metrics.apply(0, jobs(3))
        for slot in (0, 0, 1, 7):
            metrics.fold(slot)

        assert shown(metrics)[FAILED] == 3

    def test_histograms_stay_whole(self, metrics: ClusterMetrics) -> None:
        series = {"size_bucket": 2.0, "size_count": 2.0, "size_sum": 0.5}
        metrics.apply(0, [family("size", "histogram", series)])
        metrics.fold(0)
        metrics.apply(0, [family("size", "histogram", series)])

        after = shown(metrics)
        assert (after["size_count"], after["size_sum"], after["size_bucket"]) == (4, 1, 4)

    def test_a_thousand_respawns_leave_the_same_series(self, metrics: ClusterMetrics) -> None:
        metrics.apply(0, jobs(1))
        before = shown(metrics)

        for _ in range(1_000):
            metrics.fold(0)
            metrics.apply(0, jobs(1))

        after = shown(metrics)
        assert after.keys() == before.keys()
        assert after[FAILED] == 1_001


class TestGauges:
    def test_an_applications_gauge_has_the_slot_as_label(self, metrics: ClusterMetrics) -> None:
        for slot in (0, 1):
            metrics.apply(slot, [family("pool", "gauge", {"pool": slot + 5.0}, db="main")])

        assert shown(metrics)['pool{db="main",slot="0"}'] == 5
        assert shown(metrics)['pool{db="main",slot="1"}'] == 6

    def test_our_own_are_summed(self, metrics: ClusterMetrics) -> None:
        for slot in (0, 1):
            metrics.apply(slot, [family("sidekiq_concurrency", "gauge", {"sidekiq_concurrency": 5.0})])

        assert shown(metrics)["sidekiq_concurrency"] == 10

    @pytest.mark.parametrize("name", ["pool", "sidekiq_concurrency"])
    def test_those_of_a_dead_child_go(self, metrics: ClusterMetrics, name: str) -> None:
        metrics.apply(0, [family(name, "gauge", {name: 5.0})])
        metrics.fold(0)

        assert not any(series.startswith(name) for series in shown(metrics))

    @pytest.mark.parametrize(("sent", "value"), [("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf)])
    def test_values_that_are_no_numbers_do_not_break_a_scrape(
        self, metrics: ClusterMetrics, sent: str, value: float
    ) -> None:
        metrics.apply(0, [family("odd", "gauge", {"odd": sent})])

        assert repr(shown(metrics)['odd{slot="0"}']) == repr(value)


class TestOwn:
    def test_the_state_of_every_slot_is_counted(self, metrics: ClusterMetrics) -> None:
        values = shown(metrics)

        assert values['kiqcluster_children{state="backoff"}'] == 2
        assert values['kiqcluster_children{state="ready"}'] == 0

    def test_restarts_are_counted_by_slot_and_reason(self, metrics: ClusterMetrics, slots: list[Slot]) -> None:
        slots[1].restarts["killed"] += 2

        assert shown(metrics)['kiqcluster_child_restarts_total{reason="killed",slot="1"}'] == 2

    def test_it_says_whether_the_cluster_is_quiet(self, slots: list[Slot]) -> None:
        assert shown(ClusterMetrics(lambda: slots, lambda: True))["kiqcluster_quiet"] == 1
        assert shown(ClusterMetrics(lambda: slots, lambda: False))["kiqcluster_quiet"] == 0


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain"),
        ("text/plain", "text/plain"),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        ("*/*", "text/plain"),
        ("application/openmetrics-text; version=abc", "application/openmetrics-text; version=1.0.0"),
        ("APPLICATION/OpenMetrics-Text;version=", "application/openmetrics-text; version=1.0.0"),
        ("text/html, application/openmetrics-text;q=0.5", "application/openmetrics-text; version=1.0.0"),
        (
            "application/openmetrics-text; version=2.0.0; escaping=allow-utf-8",
            "application/openmetrics-text; version=1.0.0",
        ),
        ("text/plain; version=abc", "text/plain; version=0.0.4"),
        ("text/plain; version=1.0.0; escaping=allow-utf-8", "text/plain; version=0.0.4"),
        (";,=;;", "text/plain; version=0.0.4"),
    ],
)
def test_the_format_is_the_one_that_the_scraper_accepts(
    metrics: ClusterMetrics, accept: str, content_type: str
) -> None:
    metrics.apply(0, jobs(3))

    got, text = metrics.render(accept)

    assert got.startswith(content_type)
    assert text.endswith(b"# EOF\n") is not content_type.startswith("text/plain")
