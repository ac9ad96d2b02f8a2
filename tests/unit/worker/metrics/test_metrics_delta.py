"""MetricsDelta: which frames a worker sends of its metrics, and what becomes of forms that no scraper takes."""

from __future__ import annotations

import math
from decimal import Decimal
from importlib.util import find_spec
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Enum, Gauge, Histogram, Info, Summary
from prometheus_client.metrics_core import GaugeHistogramMetricFamily, Metric, SummaryMetricFamily, UntypedMetricFamily

from kiqcluster.process.metrics import Family, Row
from kiqcluster.sidekiq import ruby_json
from kiqcluster.worker.metrics import metrics_delta as module
from kiqcluster.worker.metrics.metrics_delta import MetricsDelta, rows_of

TAKES_ANY_NAME = find_spec("prometheus_client.validation") is not None  # since 0.22
FAMILY = Family("mails", "counter", "sent")


def row(value: float, kind: str = "a") -> Row:
    return Row(FAMILY, (("kind", kind),), (("_total", ()),), [value])


def merged(frames: Any) -> dict[str, list[Any]]:
    """Return all frames as one, after the way that they travel."""
    whole: dict[str, list[Any]] = {}
    for frame in ruby_json.decode(ruby_json.encode(list(frames))):
        for name, entries in frame.items():
            whole.setdefault(name, []).extend(entries)
    return whole


def only(registry: CollectorRegistry) -> list[Row]:
    return [row for metric in registry.collect() for row in rows_of(metric)]


class TestSnapshot:
    def test_a_series_is_defined_once_and_then_only_its_changes_are_sent(self) -> None:
        snapshot = MetricsDelta()

        first = merged(snapshot.changed([row(1, "a"), row(2, "b")]))
        second = merged(snapshot.changed([row(1, "a"), row(2, "b")]))
        third = merged(snapshot.changed([row(1, "a"), row(3, "b")]))

        assert first == {
            "families": [[0, "mails", "counter", "sent", "", "all"]],
            "layouts": [[0, [["_total"]]]],
            "rows": [[0, 0, 0, "kind", "a"], [1, 0, 0, "kind", "b"]],
            "values": [[0, 1], [1, 2]],
        }
        assert second == {}
        assert third == {"values": [[1, 3]]}

    def test_what_is_zero_needs_no_values(self) -> None:
        frame = merged(MetricsDelta().changed([row(0)]))

        assert frame.keys() == {"families", "layouts", "rows"}

    def test_nothing_is_said_of_nothing(self) -> None:
        assert list(MetricsDelta().changed([])) == []
        assert list(MetricsDelta().changed([], whole=[])) == []

    def test_much_is_said_in_several_frames(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "MAX_FRAME_VALUES", 100)
        frames = list(MetricsDelta().changed([row(1, str(number)) for number in range(100)]))

        assert 5 < len(frames) < 100
        assert len(merged(frames)["values"]) == 100

    def test_what_is_missing_from_the_whole_is_gone(self) -> None:
        snapshot = MetricsDelta()
        merged(snapshot.changed([row(1, "job")], whole=[row(1, "a"), row(2, "b")]))

        assert merged(snapshot.changed([], whole=[row(2, "b")])) == {"gone": [1]}
        assert merged(snapshot.changed([row(2, "job")])) == {"values": [[0, 2]]}

    def test_a_number_is_not_used_again(self) -> None:
        snapshot = MetricsDelta()
        merged(snapshot.changed([], whole=[row(1, "a")]))
        merged(snapshot.changed([], whole=[]))

        again = merged(snapshot.changed([], whole=[row(1, "a")]))
        assert again == {"rows": [[1, 0, 0, "kind", "a"]], "values": [[1, 1]]}

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, 0.1, 5e-324, 1e17, 4e-06])
    def test_every_value_survives_a_frame(self, value: float) -> None:
        frame = merged(MetricsDelta().changed([row(value)]))

        ((_, got),) = frame.get("values") or frame["odd"]
        assert repr(float(got)) == repr(value)

    def test_an_exemplar_is_sent_when_it_is_new(self) -> None:
        def marked(value: float, trace: str) -> Row:
            return Row(FAMILY, (), (("_total", ()),), [value], {0: ((("trace_id", trace),), 2.0, 5.5)})

        snapshot = MetricsDelta()
        assert merged(snapshot.changed([marked(1, "x")]))["exemplars"] == [[0, 0, 2.0, 5.5, "trace_id", "x"]]
        assert "exemplars" not in merged(snapshot.changed([marked(2, "x")]))
        assert merged(snapshot.changed([marked(2, "y")]))["exemplars"] == [[0, 0, 2.0, 5.5, "trace_id", "y"]]


class TestRows:
    """Every type of prometheus-client, as rows."""

    @pytest.fixture
    def registry(self) -> CollectorRegistry:
        return CollectorRegistry()

    def test_a_counter(self, registry: CollectorRegistry) -> None:
        Counter("mails", "sent", ["kind"], registry=registry).labels("a").inc(2)

        assert only(registry) == [Row(FAMILY, (("kind", "a"),), (("_total", ()),), [2])]

    def test_a_histogram_is_one_row(self, registry: CollectorRegistry) -> None:
        Histogram("size", "of mails", buckets=[1], registry=registry).observe(0.5)

        (found,) = only(registry)
        assert found.layout == (
            ("_bucket", (("le", "1.0"),)),
            ("_bucket", (("le", "+Inf"),)),
            ("_count", ()),
            ("_sum", ()),
        )
        assert found.values == [1, 1, 1, 0.5]

    def test_a_summary_an_info_and_an_enum(self, registry: CollectorRegistry) -> None:
        Summary("took", "x", registry=registry).observe(2)
        Info("shop", "x", registry=registry).info({"a": "b"})
        Enum("gate", "x", states=["open", "shut"], registry=registry).state("shut")

        took, shop, gate = only(registry)
        assert (took.layout, took.values) == ((("_count", ()), ("_sum", ())), [1, 2])
        assert (shop.layout, shop.labels) == ((("_info", ()),), (("a", "b"),))
        assert (gate.layout, gate.values) == ((("", (("gate", "open"),)), ("", (("gate", "shut"),))), [0, 1])

    @pytest.mark.parametrize(("mode", "expected"), [("liveall", "all"), ("livemin", "min"), ("sum", "sum")])
    def test_a_mode_means_the_same_whether_live_or_not(
        self, registry: CollectorRegistry, mode: str, expected: str
    ) -> None:
        (metric,) = Gauge("pool", "x", registry=registry).collect()

        assert rows_of(metric, mode)[0].family.mode == expected

    def test_creation_times_and_quantiles_are_left_out(self) -> None:
        family = SummaryMetricFamily("took", "x", count_value=1, sum_value=2.0)
        family.add_sample("took", {"quantile": "0.5"}, 2.0)
        family.add_sample("took_created", {}, 5.0)

        (found,) = rows_of(family)
        assert [suffix for suffix, _ in found.layout] == ["_count", "_sum"]

    def test_a_gauge_histogram_and_an_untyped_metric(self) -> None:
        gauge = GaugeHistogramMetricFamily("waiting", "x", buckets=[("1.0", 1.0), ("+Inf", 2.0)], gsum_value=3.0)
        untyped = UntypedMetricFamily("old", "x", value=1.0)

        assert [suffix for suffix, _ in rows_of(gauge)[0].layout] == ["_bucket", "_bucket", "_gcount", "_gsum"]
        assert rows_of(untyped)[0].family.kind == "unknown"

    def test_a_sample_without_a_place_in_its_metric_becomes_one_of_its_own(self) -> None:
        metric = Metric("pool", "x", "gauge")
        metric.add_sample("pool", {}, 1.0)
        metric.add_sample("pool_size", {}, 2.0)
        metric.add_sample("elsewhere", {}, 3.0)

        assert {(each.family.name, each.family.kind): each.values for each in rows_of(metric)} == {
            ("pool", "gauge"): [1.0],
            ("pool_size", "unknown"): [2.0],
            ("elsewhere", "unknown"): [3.0],
        }

    def test_a_sample_that_is_there_twice_counts_once(self) -> None:
        metric = Metric("pool", "x", "gauge")
        for value in (1.0, 2.0):
            metric.add_sample("pool", {"db": "main"}, value)

        (found,) = rows_of(metric)
        assert (found.layout, found.values) == ((("", ()),), [2.0])

    @pytest.mark.skipif(not TAKES_ANY_NAME, reason="this prometheus_client refuses such names itself")
    def test_names_that_only_new_scrapers_read_are_mended(self) -> None:
        metric = Metric("mails.sent-today", "x", "gauge")
        metric.add_sample("mails.sent-today", {"kind of": "a.b", "x:y": "c", "x.y": "d", "1st": "e"}, 1.0)

        (found,) = rows_of(metric)
        assert found.family.name == "mails_sent_today"
        assert found.labels == (("kind_of", "a.b"), ("x_y", "d"), ("_1st", "e"))  # no label is there twice

    def test_values_and_labels_of_other_types_are_made_what_they_must_be(self) -> None:
        metric = Metric("pool", "x", "gauge")
        metric.add_sample("pool", {"number": 5}, Decimal("1.5"))  # type: ignore[arg-type]  # an application's slip
        metric.add_sample("pool", {"number": 6}, True)

        assert [(row.labels, row.values) for row in rows_of(metric)] == [
            ((("number", "5"),), [1.5]),
            ((("number", "6"),), [1.0]),
        ]
