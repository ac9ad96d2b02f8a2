"""Families: the metrics of all children as one; what they say is summed, or told apart by slot.

Source   one child's side of it: which row its numbers mean, until it is folded
Row      the values of one set of labels, by source, and the totals of those that are gone
Family   the rows of one metric, and its text

Totals of the dead are kept, so counters never go back (invariant 7); gauges of the dead go.
A row's text is made again only when a scrape finds that it has changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import fsum, isfinite

from kiqcluster.process.negotiation import OPENMETRICS, Format
from kiqcluster.supervisor.metrics.text_format import Labels, exemplar, head, line_start, number

__all__ = ["Family", "Layout", "Row", "Source"]

Layout = tuple[tuple[str, Labels], ...]  # for each value of a row: suffix of the sample's name, labels of its own
CUMULATIVE = frozenset({"counter", "histogram", "summary"})
NEVER_FALLS = ("_total", "_count")  # suffixes; if such a value falls, the application has begun again at zero
BATCH = 50  # rows whose text is made between two looks at the time


@dataclass(eq=False, slots=True)
class Source:
    """What one child has defined so far, by its own numbers."""

    slot: int
    families: dict[int, Family] = field(default_factory=dict)
    layouts: dict[int, Layout] = field(default_factory=dict)
    rows: dict[int, Row] = field(default_factory=dict)


class Row:
    """retired: totals of sources that are gone, and what rounding has cut off them: of each value two parts."""

    __slots__ = ("by_source", "exemplars", "family", "labels", "layout", "marked", "retired", "starts", "text")

    def __init__(self, family: Family, labels: Labels, layout: Layout) -> None:
        self.family = family
        self.labels = labels
        self.layout = layout
        # Tuples throughout: a garbage collection need not look at those that hold numbers and text only.
        self.by_source: dict[Source, tuple[float, ...]] = {}
        self.retired: tuple[tuple[float, ...], tuple[float, ...]] | None = None
        self.exemplars: dict[int, str] | None = None
        self.starts: dict[int | None, tuple[str, ...]] = {}  # by slot
        self.text = self.marked = ""  # without and with exemplars

    def retire(self, values: Sequence[float]) -> None:
        """Add the last values of a source that is gone."""
        if not any(values):
            return
        high, low = self.retired or ((0.0,) * len(values), (0.0,) * len(values))
        total = tuple(_sum(parts) for parts in zip(high, low, values, strict=True))
        parts = zip(high, low, values, total, strict=True)
        rest = tuple(_sum((*each, -whole)) if isfinite(whole) else 0.0 for *each, whole in parts)
        self.retired = total, rest

    def restarts(self, before: Sequence[float], values: Sequence[float]) -> bool:
        """Return whether a source has begun again at zero between two of its reports."""
        cells = zip(self.layout, before, values, strict=True)
        return any(now < then for (suffix, _), then, now in cells if suffix in NEVER_FALLS)

    def totals(self) -> list[float]:
        parts = [*self.by_source.values(), *(self.retired or ())]
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
        self.rows: dict[Labels, Row] = {}
        self._mode = "sum" if kind in CUMULATIVE else "first" if kind == "info" else mode
        if kind not in (*CUMULATIVE, "gauge", "info"):
            self._mode = "all"
        self._about = (name, kind, text, unit)
        self._changed: dict[Row, None] = {}
        self._bodies: dict[Format, str] = {}

    @property
    def is_cumulative(self) -> bool:
        return self.kind in CUMULATIVE

    def row(self, labels: Labels, layout: Layout) -> Row:
        """Return the row of these labels.  The newest release decides its layout: two would have samples twice."""
        row = self.rows.get(labels)
        if row is None or row.layout != layout:
            if row is not None:
                self._changed.pop(row, None)
            row = self.rows[labels] = Row(self, labels, layout)
        self._changed[row] = None
        return row

    def report(self, row: Row, source: Source, values: tuple[float, ...]) -> None:
        """Take in what a source says of a row."""
        before = row.by_source.get(source)
        if before is not None:
            if self.is_cumulative and row.restarts(before, values):
                row.retire(before)
            if self._mode == "mostrecent":
                del row.by_source[source]  # the most recent one is the last
        row.by_source[source] = values
        self._changed[row] = None

    def mark(self, row: Row, place: int, labels: Labels, value: float, at: float | None) -> None:
        """Take in an exemplar."""
        row.exemplars = {**(row.exemplars or {}), place: exemplar(labels, value, at)}
        self._changed[row] = None

    def leave(self, row: Row, source: Source) -> None:
        """Take leave of a source: totals stay, gauges go."""
        values = row.by_source.pop(source, None)
        if self.is_cumulative and values is not None:
            row.retire(values)
        self._changed[row] = None

    def drop_empty(self, row: Row) -> None:
        """Forget a row that nobody reports any more, totals included."""
        if not row.by_source and self.rows.get(row.labels) is row:
            del self.rows[row.labels]
            self._changed.pop(row, None)  # nobody may scrape for long, and each child that ends leaves some
            self._bodies.clear()

    def render(self) -> Iterator[None]:
        """Make the text of what has changed; yields now and then, and ends when nothing is left."""
        while self._changed:
            self._bodies.clear()
            for row in list(islice(self._changed, BATCH)):
                del self._changed[row]
                if self.rows.get(row.labels) is row:
                    self._write(row)
            yield

    def body(self, form: Format) -> str:
        """Return the text of the metric as last rendered, nothing while it has no samples."""
        body = self._bodies.get(form)
        if body is None:
            is_marked = form == OPENMETRICS
            lines = "".join(row.marked if is_marked else row.text for row in self.rows.values())
            body = self._bodies[form] = head(*self._about, form) + lines if lines else ""
        return body

    def _write(self, row: Row) -> None:
        if self._mode == "all":
            newest = {source.slot: values for source, values in row.by_source.items()}
            lines = [
                start + number(value)
                for slot in sorted(newest)
                for start, value in zip(self._starts(row, slot), newest[slot], strict=True)
            ]
        else:
            lines = [
                start + number(value)
                for start, value in zip(self._starts(row, None), self._combined(row), strict=False)
            ]
        row.text = row.marked = "".join(f"{line}\n" for line in lines)
        if row.exemplars and self._mode != "all":
            row.marked = "".join(f"{line}{row.exemplars.get(place, '')}\n" for place, line in enumerate(lines))

    def _combined(self, row: Row) -> Sequence[float]:
        if self._mode == "sum":
            return row.totals() if self.is_cumulative or row.by_source else ()
        said = list(row.by_source.values())
        if not said:
            return ()
        if self._mode == "min":
            return [min(column) for column in zip(*said, strict=True)]
        if self._mode == "max":
            return [max(column) for column in zip(*said, strict=True)]
        return said[-1]  # the most recent; of infos, any

    def _starts(self, row: Row, slot: int | None) -> tuple[str, ...]:
        """Return the row's lines up to their values."""
        starts = row.starts.get(slot)
        if starts is None:
            labels: Mapping[str, str] = dict(row.labels)
            if slot is not None:
                if "slot" in labels:  # the application's own label of that name
                    labels = {**labels, "exported_slot": labels["slot"]}
                labels = {**labels, "slot": str(slot)}
            starts = row.starts[slot] = tuple(
                line_start(self.name + suffix, (*labels.items(), *own)) for suffix, own in row.layout
            )
        return starts
