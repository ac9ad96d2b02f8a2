"""MetricsDelta: a worker's metrics as frames for its supervisor: each series once, from then on its changes.

rows_of       prometheus-client's form of a metric → rows (metrics.py); what no scraper would take is mended or left out
MetricsDelta  rows → frames: families, layouts and rows get a number when they are new, values follow by it

A frame has, each where there is any:
  families   [number, name, type, help, unit, mode]
  layouts    [number, [[suffix, label, value, …], …]]: what a row's values are
  rows       [number, family, layout, label, value, …]: all zero so far
  values     [row, value, …]      odd  the same, as text: JSON has no NaN and no infinity
  exemplars  [row, place, value, epoch seconds or null, label, value, …]
  gone       rows that the application has removed

Values are cumulative.  Frames are sent once and in order, so no value is sent twice.
Counterpart: supervisor/metrics/page.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from math import isfinite
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample

from kiqcluster.process.metrics import Exemplars, Family, Labels, Layout, Row

__all__ = ["Frame", "MetricsDelta", "rows_of"]

MAX_FRAME_VALUES = 4_000  # after that many numbers a frame ends: the supervisor decodes each in one go
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_count", "_sum"),
    "gaugehistogram": ("_bucket", "_gcount", "_gsum"),
    "summary": ("_count", "_sum"),
    "info": ("_info",),
    "stateset": ("",),
    "unknown": ("",),
}
MODES = {"livesum": "sum", "livemin": "min", "livemax": "max", "livemostrecent": "mostrecent", "liveall": "all"}
OWN_LABELS = {  # by type and suffix: the label that tells the samples of one row apart
    ("histogram", "_bucket"): "le",
    ("gaugehistogram", "_bucket"): "le",
}
# What older scrapers do not read, in names of metrics and of labels.
ILLEGAL, ILLEGAL_IN_LABEL = re.compile(r"[^a-zA-Z0-9_:]"), re.compile(r"[^a-zA-Z0-9_]")

Key = tuple[Family, Labels, Layout]
Frame = dict[str, list[Any]]


def rows_of(metric: Metric, mode: str = "all") -> list[Row]:
    """Return the rows of a metric.  mode: prometheus-client's multiprocess_mode, of a gauge.

    A sample that has no place in a metric of its type becomes a metric of its own: one such line, and a scraper
    would refuse the whole page.  Creation times are left out.
    """
    kind = "unknown" if metric.type in ("untyped", "") or metric.type not in SUFFIXES else metric.type
    name, unit, mode = _legal(metric.name), _legal(metric.unit or ""), MODES.get(mode, mode)
    family = Family(name, kind, metric.documentation, unit, mode)
    grouped: dict[tuple[Family, Labels], dict[tuple[str, Labels], Sample]] = {}
    for sample in metric.samples:
        suffix, home = sample.name.removeprefix(metric.name), family
        if suffix == "_created" or (kind == "summary" and not suffix):  # quantiles of several processes cannot be added
            continue
        if kind == "counter" and not suffix:
            suffix = "_total"
        if suffix not in SUFFIXES[kind]:
            home, suffix = Family(_legal(sample.name), "unknown", metric.documentation), ""
        own = metric.name if kind == "stateset" else OWN_LABELS.get((home.kind, suffix))
        given = {_legal(label, ILLEGAL_IN_LABEL): str(value) for label, value in sample.labels.items()}
        told = given.pop(_legal(own, ILLEGAL_IN_LABEL), None) if own is not None else None
        cell = () if own is None or told is None else ((_legal(own, ILLEGAL_IN_LABEL), told),)
        grouped.setdefault((home, tuple(given.items())), {})[suffix, cell] = sample
    return [_row(family, labels, cells) for (family, labels), cells in grouped.items()]


def _legal(name: str, illegal: re.Pattern[str] = ILLEGAL) -> str:
    name = illegal.sub("_", name)
    return f"_{name}" if name[:1].isdigit() else name


def _row(family: Family, labels: Labels, cells: dict[tuple[str, Labels], Sample]) -> Row:
    exemplars: Exemplars = {
        place: (
            tuple(sample.exemplar.labels.items()),
            float(sample.exemplar.value),
            _seconds(sample.exemplar.timestamp),
        )
        for place, sample in enumerate(cells.values())
        if sample.exemplar is not None
    }
    return Row(family, labels, tuple(cells), [float(sample.value) for sample in cells.values()], exemplars)


def _seconds(timestamp: Any) -> float | None:
    return None if timestamp is None else float(timestamp)


class Numbers(dict[Any, int]):
    """Things → numbers, given out as things appear."""

    def __missing__(self, thing: Any) -> int:
        self[thing] = number = len(self)
        return number


class MetricsDelta:
    """The series that the supervisor has got so far."""

    def __init__(self) -> None:
        self._families, self._layouts = Numbers(), Numbers()
        self._rows: dict[Key, int] = {}
        self._values: dict[int, list[float]] = {}
        self._exemplars: dict[int, Exemplars] = {}
        self._count = 0  # of rows so far; a number is not given twice
        self._whole: set[Key] = set()  # those of the last call that had all of their kind

    def changed(self, rows: Iterable[Row], *, whole: Iterable[Row] | None = None) -> Iterator[Frame]:
        """Yield frames with what is new in the rows; each is to be sent.

        whole: rows as well, and all that there are of their kind: those of an earlier call that are missing are gone.
        """
        frame: Frame = {}
        left = MAX_FRAME_VALUES
        complete = None if whole is None else list(whole)
        for row in (*rows, *(complete or ())):
            left -= self._add(row, frame)
            if left <= 0:
                yield frame
                frame, left = {}, MAX_FRAME_VALUES
        if complete is not None:
            self._forget_others(complete, frame)
        if frame:
            yield frame

    def _add(self, row: Row, frame: Frame) -> int:
        """Put into the frame what is new in a row; return about how many numbers that is."""
        key = (row.family, row.labels, row.layout)
        number = self._rows.get(key)
        size = 0
        if number is None:
            number = self._define(row, frame)
            size = 10 + 2 * len(row.labels)
        if self._values[number] != row.values:
            self._values[number] = row.values
            size += len(row.values)
            if all(map(isfinite, row.values)):
                frame.setdefault("values", []).append([number, *row.values])
            else:
                frame.setdefault("odd", []).append([number, *map(str, row.values)])
        if row.exemplars and self._exemplars.get(number) != row.exemplars:
            self._exemplars[number] = row.exemplars
            for place, (labels, value, at) in row.exemplars.items():
                frame.setdefault("exemplars", []).append([number, place, value, at, *_flat(labels)])
        return size

    def _define(self, row: Row, frame: Frame) -> int:
        number = self._rows[row.family, row.labels, row.layout] = self._count
        self._count += 1
        self._values[number] = [0] * len(row.values)
        family, layout, labels = row.family, row.layout, row.labels
        if family not in self._families:
            told = (family.name, family.kind, family.text, family.unit, family.mode)
            frame.setdefault("families", []).append([self._families[family], *told])
        if layout not in self._layouts:
            cells = [[suffix, *_flat(own)] for suffix, own in layout]
            frame.setdefault("layouts", []).append([self._layouts[layout], cells])
        frame.setdefault("rows", []).append([number, self._families[family], self._layouts[layout], *_flat(labels)])
        return number

    def _forget_others(self, rows: list[Row], frame: Frame) -> None:
        there = {(row.family, row.labels, row.layout) for row in rows}
        before, self._whole = self._whole, there
        for key in before - there:
            number = self._rows.pop(key)
            del self._values[number]
            self._exemplars.pop(number, None)
            frame.setdefault("gone", []).append(number)


def _flat(labels: Labels) -> list[str]:
    return [word for pair in labels for word in pair]
