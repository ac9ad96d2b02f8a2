"""Metrics: the series of all slots, summed, and the cluster's own, as one prometheus-client collector.

Children send cumulative values; the last ones are kept per slot, and the totals of the dead are folded into
`retired`, so counters never go back and nothing grows, whatever children do (invariant 7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as encode_text
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as encode_openmetrics
from prometheus_client.registry import Collector

from kiqcluster.supervisor.children import Slot
from kiqcluster.version import VERSION

__all__ = ["ClusterMetrics"]

STATES = ("ready", "booting", "quiet", "stopping", "backoff")
OPENMETRICS = "application/openmetrics-text"
CUMULATIVE = frozenset({"counter", "histogram", "summary"})
OURS = "sidekiq_"  # gauges of that prefix are sums over the slots; an application's gauges get the label `slot`

SampleKey = tuple[str, tuple[tuple[str, str], ...]]  # sample name, sorted labels


class Family:
    """One metric of the children."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self.kind = kind
        self.text = text
        self.retired: Counter[SampleKey] = Counter()
        self.by_slot: dict[int, dict[SampleKey, float]] = {}

    def fold(self, slot: int) -> None:
        """Take leave of a slot's child: totals stay, gauges go."""
        values = self.by_slot.pop(slot, {})
        if self.kind in CUMULATIVE:
            for key, value in values.items():
                self.retired[key] += value  # type: ignore[assignment]  # a Counter may count in floats

    def metric(self) -> Metric:
        """Return the family with one sample per series."""
        metric = Metric(self.name, self.text, self.kind)
        if self.kind in CUMULATIVE or self.name.startswith(OURS):
            total: dict[SampleKey, float] = dict(self.retired)
            for values in self.by_slot.values():
                for key, value in values.items():
                    total[key] = total.get(key, 0.0) + value
            for (name, labels), value in total.items():
                metric.add_sample(name, dict(labels), value)
        else:
            for slot, values in sorted(self.by_slot.items()):
                for (name, labels), value in values.items():
                    metric.add_sample(name, {**dict(labels), "slot": str(slot)}, value)
        return metric


class ClusterMetrics(Collector):
    """slots: returns the slots at the time of a scrape.  is_quiet: whether the cluster is."""

    def __init__(self, slots: Callable[[], Sequence[Slot]], is_quiet: Callable[[], bool]) -> None:
        self._slots = slots
        self._is_quiet = is_quiet
        self._families: dict[str, Family] = {}
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def apply(self, slot: int, families: Sequence[dict[str, Any]]) -> None:
        """Take in the series that a child says have changed."""
        for each in families:
            family = self._families.get(each["name"])
            if family is None:
                family = self._families[each["name"]] = Family(each["name"], each["type"], each["help"])
            values = family.by_slot.setdefault(slot, {})
            for name, labels, value in each["samples"]:
                values[name, tuple(sorted(labels.items()))] = float(value)  # NaN and infinity come as text

    def fold(self, slot: int) -> None:
        """Take leave of a slot's child."""
        for family in self._families.values():
            family.fold(slot)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Return content type and text: OpenMetrics when an Accept header names it, of whatever version, else text.

        Decided here: prometheus-client raises at versions that are none, and would escape names as clients wish.
        """
        wanted = {each.partition(";")[0].strip().lower() for each in accept.split(",")}
        if OPENMETRICS in wanted:
            return f"{OPENMETRICS}; version=1.0.0; charset=utf-8", encode_openmetrics(self._registry)  # type: ignore[no-untyped-call]
        return "text/plain; version=0.0.4; charset=utf-8", encode_text(self._registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._own()
        for family in self._families.values():
            yield family.metric()

    def describe(self) -> list[Metric]:
        """Return nothing: what there is to collect depends on the children."""
        return []

    def _own(self) -> Iterator[Metric]:
        slots = self._slots()
        states = Counter(slot.state for slot in slots)
        children = GaugeMetricFamily("kiqcluster_children", "Slots by the state of their child", labels=("state",))
        for state in STATES:
            children.add_metric((state,), states[state])
        restarts = CounterMetricFamily(
            "kiqcluster_child_restarts",
            "Children replaced after a death that nobody asked for",
            labels=("slot", "reason"),
        )
        for slot in slots:
            for reason, count in slot.restarts.items():
                restarts.add_metric((str(slot.number), reason), count)
        quiet = GaugeMetricFamily("kiqcluster_quiet", "Whether the cluster is quiet")
        quiet.add_metric((), float(self._is_quiet()))
        build = InfoMetricFamily("kiqcluster_build", "The version that runs")
        build.add_metric((), {"version": VERSION})
        yield from (children, restarts, quiet, build)
