"""Aggregate: the metrics of all children as one.  Values are summed, or shown by slot.

Source   one child's side of it: which series its numbers mean, until it is folded
Series      the values of one set of labels, by source, and the totals of those that are gone
Family   the rows of one metric, and its text

Totals of the dead are kept, so counters never go back (invariant 7); gauges of the dead go.
A series's text is made again only when a scrape finds that it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import fsum, isfinite

from kiqcluster.ipc.negotiation import OPENMETRICS, Format
from kiqcluster.supervisor.metrics.text_format import (
    Labels,
    family_header,
    format_exemplar,
    format_value,
    sample_prefix,
)

__all__ = ["Family", "Layout", "Series", "Source"]

Layout = tuple[tuple[str, Labels], ...]  # for each value of a series: suffix of the sample's name, labels of its own
CUMULATIVE = frozenset({"counter", "histogram", "summary"})
MONOTONIC_SUFFIXES = ("_total", "_count")  # a lower value means that the application has started again at zero
SERIES_PER_STEP = 50  # rows whose text is made between two looks at the time


@dataclass(eq=False, slots=True)
class Source:
    """What one child has defined so far, by its own numbers."""

    slot: int
    families: dict[int, Family] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    series_by_id: dict[int, Series] = field(default_factory=dict)


class Series:
    """retired: totals of sources that are gone, and what rounding has cut off them: of each value two parts."""

    __slots__ = (
        "exemplars",
        "family",
        "labels",
        "layout",
        "retired",
        "sample_prefixes",
        "text",
        "text_with_exemplars",
        "values_by_source",
    )

    def __init__(self, family: Family, labels: Labels, layout: Layout) -> None:
        self.family = family
        self.labels = labels
        self.layout = layout
        # Tuples throughout: a garbage collection need not look at those that hold numbers and text only.
        self.values_by_source: dict[Source, tuple[float, ...]] = {}
        self.retired: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self.exemplars: dict[int, str] | None = None
        self.sample_prefixes: dict[int | None, tuple[str, ...]] = {}  # by slot
        self.text = self.text_with_exemplars = ""  # without and with exemplars

    def retire(self, values: Sequence[float]) -> None:
        """Add the last values of a source that is gone."""
        if not any(values):
            return
        high, low = self.retired or ((0.0,) * len(values), (0.0,) * len(values))
        total = tuple(_sum(parts) for parts in zip(high, low, values, strict=True))
        parts = zip(high, low, values, total, strict=True)
        rest = tuple(_sum((*each, -whole)) if isfinite(whole) else 0.0 for *each, whole in parts)
        self.retired = total, rest

    def has_reset(self, before: Sequence[float], values: Sequence[float]) -> bool:
        """Return whether a source has begun again at zero between two of its reports."""
        cells = zip(self.layout, before, values, strict=True)
        return any(now < then for (suffix, _), then, now in cells if suffix in MONOTONIC_SUFFIXES)

    def totals(self) -> list[float]:
        parts = [*self.values_by_source.values(), *(self.retired or ())]
        return [_sum(column) for column in zip(*parts, strict=True)] if parts else [0.0] * len(self.layout)


def _sum(values: Iterable[float]) -> float:
    """Return the sum, rounded once: totals that are summed in another order must not be less by a last digit."""
    values = tuple(values)
    try:
        return fsum(values)
    except (OverflowError, ValueError):  # beyond the range; infinities of both signs
        return sum(values)


class Family:
    """A metric of the children.  mode: how a gauge of several sources is shown (see process.metrics.Family)."""

    def __init__(self, name: str, kind: str, text: str, unit: str, mode: str) -> None:
        self.name = name
        self.kind = kind
        self.series_by_labels: dict[Labels, Series] = {}
        self._mode = "sum" if kind in CUMULATIVE else "first" if kind == "info" else mode
        if kind not in (*CUMULATIVE, "gauge", "info"):
            self._mode = "all"
        self._about = (name, kind, text, unit)
        self._changed: dict[Series, None] = {}
        self._bodies: dict[Format, str] = {}

    @property
    def is_cumulative(self) -> bool:
        return self.kind in CUMULATIVE

    def define_series(self, labels: Labels, layout: Layout) -> Series:
        """Return the series of these labels.  The newest release decides its layout: two would have samples twice."""
        series = self.series_by_labels.get(labels)
        if series is None or series.layout != layout:
            if series is not None:
                self._changed.pop(series, None)
            series = self.series_by_labels[labels] = Series(self, labels, layout)
        self._changed[series] = None
        return series

    def update(self, series: Series, source: Source, values: tuple[float, ...]) -> None:
        """Take in what a source says of a series."""
        before = series.values_by_source.get(source)
        if before is not None:
            if self.is_cumulative and series.has_reset(before, values):
                series.retire(before)
            if self._mode == "mostrecent":
                del series.values_by_source[source]  # the most recent one is the last
        series.values_by_source[source] = values
        self._changed[series] = None

    def add_exemplar(self, series: Series, place: int, labels: Labels, value: float, at: float | None) -> None:
        """Take in an exemplar."""
        series.exemplars = {**(series.exemplars or {}), place: format_exemplar(labels, value, at)}
        self._changed[series] = None

    def remove_source(self, series: Series, source: Source) -> None:
        """Take leave of a source: totals stay, gauges go."""
        values = series.values_by_source.pop(source, None)
        if self.is_cumulative and values is not None:
            series.retire(values)
        self._changed[series] = None

    def drop_if_unreported(self, series: Series) -> None:
        """Forget a series that nobody reports any more, totals included."""
        if not series.values_by_source and self.series_by_labels.get(series.labels) is series:
            del self.series_by_labels[series.labels]
            self._changed.pop(series, None)  # nobody may scrape for long, and each child that ends leaves some
            self._bodies.clear()

    def render(self) -> Iterator[None]:
        """Make the text of what has changed; yields now and then, and ends when nothing is left."""
        while self._changed:
            self._bodies.clear()
            for series in list(islice(self._changed, SERIES_PER_STEP)):
                del self._changed[series]
                if self.series_by_labels.get(series.labels) is series:
                    self._write(series)
            yield

    def body(self, form: Format) -> str:
        """Return the text of the metric as last rendered, nothing while it has no samples."""
        body = self._bodies.get(form)
        if body is None:
            is_marked = form == OPENMETRICS
            lines = "".join(
                series.text_with_exemplars if is_marked else series.text for series in self.series_by_labels.values()
            )
            body = self._bodies[form] = family_header(*self._about, form) + lines if lines else ""
        return body

    def _write(self, series: Series) -> None:
        if self._mode == "all":
            newest = {source.slot: values for source, values in series.values_by_source.items()}
            lines = [
                start + format_value(value)
                for slot in sorted(newest)
                for start, value in zip(self._sample_prefixes(series, slot), newest[slot], strict=True)
            ]
        else:
            lines = [
                start + format_value(value)
                for start, value in zip(self._sample_prefixes(series, None), self._combined(series), strict=False)
            ]
        series.text = series.text_with_exemplars = "".join(f"{line}\n" for line in lines)
        if series.exemplars and self._mode != "all":
            series.text_with_exemplars = "".join(
                f"{line}{series.exemplars.get(place, '')}\n" for place, line in enumerate(lines)
            )

    def _combined(self, series: Series) -> Sequence[float]:
        if self._mode == "sum":
            return series.totals() if self.is_cumulative or series.values_by_source else ()
        said = list(series.values_by_source.values())
        if not said:
            return ()
        if self._mode == "min":
            return [min(column) for column in zip(*said, strict=True)]
        if self._mode == "max":
            return [max(column) for column in zip(*said, strict=True)]
        return said[-1]  # the most recent; of infos, any

    def _sample_prefixes(self, series: Series, slot: int | None) -> tuple[str, ...]:
        """Return the series's lines up to their values."""
        sample_prefixes = series.sample_prefixes.get(slot)
        if sample_prefixes is None:
            labels: Mapping[str, str] = dict(series.labels)
            if slot is not None:
                if "slot" in labels:  # the application's own label of that name
                    labels = {**labels, "exported_slot": labels["slot"]}
                labels = {**labels, "slot": str(slot)}
            sample_prefixes = series.sample_prefixes[slot] = tuple(
                sample_prefix(self.name + suffix, (*labels.items(), *own)) for suffix, own in series.layout
            )
        return sample_prefixes
