"""Classes: how often the jobs of each class ran, failed, and how long they took; Python's and Ruby's together.

/classes           a row for each class, those first that took the most time
/classes/<name>    one class over time: runs and failures with deploys, mean time, and how long runs took

By minutes the figures are those of Ruby's Sidekiq 7 and 8 and ours.  By ten minutes those of Sidekiq 7 are missing: it
does not keep them so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kiqcluster.api import ExecutionCount, ExecutionMetrics, JobExecutions, Mark, marks
from kiqcluster.process.tallies import EXECUTION_BUCKETS
from kiqcluster.web.context import Context
from kiqcluster.web.formats import milliseconds
from kiqcluster.web.i18n import message
from kiqcluster.web.routing import Page

__all__ = ["ACTIONS", "PAGES", "heat", "spark_points"]

CLASSES_PER_PAGE = 50
MAX_FILTER_CHARACTERS = 200
MAX_DRAWN = 2**53  # beyond it a browser counts wrong
MAX_MARKS = 100
HEAT_LEVELS = 6
STEP_PER_CENT = 5  # of bars
SPARK_HEIGHT = 20


@dataclass(frozen=True, slots=True)
class Span:
    """A time that is looked at.

    step: minutes of a figure.  columns: into which the figures are summed for tables.  kept: seconds that figures are
    shown before they are read again: those of 8 hours are many.
    """

    name: str
    title: str
    minutes: int
    step: int
    columns: int
    kept: int

    @property
    def asked(self) -> tuple[int | None, int | None]:
        """Return the minutes or the hours for which the metrics are asked."""
        return (self.minutes, None) if self.step == 1 else (None, self.minutes // 60)

    def moments(self, now: float) -> list[datetime]:
        """Return when its figures begin, the oldest first; the last one goes on."""
        newest = datetime.fromtimestamp(now, UTC).replace(second=0, microsecond=0)
        newest = newest.replace(minute=newest.minute // self.step * self.step)
        count = self.minutes // self.step
        return [newest - timedelta(minutes=self.step * back) for back in range(count - 1, -1, -1)]


SPANS: Mapping[str, Span] = {
    each.name: each
    for each in (
        Span("1h", message("1 hour"), 60, 1, 30, 0),
        Span("8h", message("8 hours"), 480, 1, 32, 60),
        Span("24h", message("24 hours"), 1_440, 10, 24, 30),
        Span("72h", message("3 days"), 4_320, 10, 24, 60),
    )
}
SORTS: Mapping[str, Callable[[JobExecutions], Any]] = {
    "time": lambda each: (-each.ms, -each.processed, each.name),
    "runs": lambda each: (-each.processed, each.name),
    "failures": lambda each: (-each.failed, each.name),
    "mean": lambda each: (-each.mean_ms, each.name),
    "name": lambda each: each.name,
}


def show_classes(context: Context) -> Mapping[str, Any]:
    """Show the classes.  One round trip, three of eight hours."""
    text = context.request.args.get("q", "").strip()[:MAX_FILTER_CHARACTERS]
    span, sort = SPANS[context.word("span", tuple(SPANS))], context.word("sort", tuple(SORTS))
    metrics = ExecutionMetrics(store=context.store, clock=context.clock)
    now = context.clock.monotonic()
    jobs = context.shelf.get(("classes", span.name), now, span.kept, lambda: metrics.top_jobs(*span.asked))
    found = sorted((each for each in jobs.values() if text.lower() in each.name.lower()), key=SORTS[sort])
    pages = max(1, -(-len(found) // CLASSES_PER_PAGE))
    page = min(context.number("page"), pages)
    moments = span.moments(context.clock.now())
    most = max((each.ms for each in found), default=0)
    shown = found[(page - 1) * CLASSES_PER_PAGE : page * CLASSES_PER_PAGE]
    return {
        "rows": [_row(each, span, moments, most) for each in shown],
        "count": len(found),
        "processed": sum(each.processed for each in found),
        "failed": sum(each.failed for each in found),
        "ms": sum(each.ms for each in found),
        "spans": SPANS.values(),
        "span": span,
        "sort": sort,
        "text": text,
        "number": page,
        "pages": pages,
    }


def _row(job: JobExecutions, span: Span, moments: Sequence[datetime], most: int) -> Mapping[str, Any]:
    columns = summed(job.series, moments, span.columns)
    highest = max((each.processed for each in columns), default=0)
    return {
        "job": job,
        "share": steps(job.ms, most),
        "failing": 100 * job.failed / job.processed if 0 < job.failed <= job.processed else 0.0,
        "runs": spark_points([each.processed for each in columns], highest),
        "failures": spark_points([each.failed for each in columns], highest) if job.failed else "",
    }


def show_class(context: Context) -> Mapping[str, Any]:
    """Show one class.  Two round trips, five of eight hours."""
    name, span = context.route["job_class"], SPANS[context.word("span", tuple(SPANS))]
    metrics = ExecutionMetrics(store=context.store, clock=context.clock)
    now = context.clock.monotonic()
    job = context.shelf.get(("class", name, span.name), now, span.kept, lambda: metrics.for_job(name, *span.asked))
    moments = span.moments(context.clock.now())
    deploys = marks(moments[0], store=context.store, clock=context.clock)[-MAX_MARKS:]
    width = len(moments) // span.columns
    starts = moments[::width]
    columns = summed(job.series, moments, span.columns)
    return {
        "title": name or "–",
        "job": job,
        "span": span,
        "spans": SPANS.values(),
        "failing": 100 * job.failed / job.processed if 0 < job.failed <= job.processed else 0.0,
        "charts": _charts(job, moments[:-1]),  # but for the moment that goes on
        "unit": "minute" if span.minutes <= 1_440 else "hour",
        "marks": [[int(each.at.timestamp()), each.label[:40]] for each in deploys],
        "deploys": deploys,
        "figures": _table_rows(starts, columns, deploys),
        "heat": heat(columns) if span.step == 1 else None,
        "starts": [int(each.timestamp()) for each in starts],
        "column_minutes": width * span.step,
    }


def _charts(job: JobExecutions, moments: Sequence[datetime]) -> Mapping[str, Any]:
    counts = [job.series.get(at, ExecutionCount()) for at in moments]
    times = [int(at.timestamp()) for at in moments]
    means = [_mean(each) for each in counts]
    return {
        "runs": [times, [_drawable(each.processed) for each in counts], [_drawable(each.failed) for each in counts]],
        "means": [times, [None if mean is None else round(_drawable(mean), 1) for mean in means]],
    }


def _table_rows(starts: Sequence[datetime], columns: Sequence[ExecutionCount], deploys: Sequence[Mark]) -> list[Any]:
    """Return the rows of a table: when, count, mean, labels of deploys; without those in which nothing happened."""
    rows = []
    for at, count, end in zip(starts, columns, [*starts[1:], datetime.max.replace(tzinfo=UTC)], strict=True):
        labels = [each.label for each in deploys if at <= each.at < end]
        if count.processed or labels:
            rows.append((int(at.timestamp()), count, _mean(count), labels))
    return rows


def summed(
    series: Mapping[datetime, ExecutionCount], moments: Sequence[datetime], columns: int
) -> list[ExecutionCount]:
    """Return the counts of neighbouring moments together, in so many columns."""
    width = len(moments) // columns
    return [
        _sum(series[at] for at in moments[start : start + width] if at in series)
        for start in range(0, width * columns, width)
    ]


def _sum(counts: Iterable[ExecutionCount]) -> ExecutionCount:
    found = list(counts)
    if not found:
        return ExecutionCount()
    histograms = [each.histogram for each in found if each.histogram]
    return ExecutionCount(
        sum(each.processed for each in found),
        sum(each.failed for each in found),
        sum(each.ms for each in found),
        tuple(map(sum, zip(*histograms, strict=True))) if histograms else (),
    )


def heat(columns: Sequence[ExecutionCount]) -> Mapping[str, Any] | None:
    """Return how long runs took over time, as a table: a row for each bucket, the longest first; None without runs.

    A cell is a count and its level, 0 for nothing to HEAT_LEVELS for the most.
    """
    width = len(EXECUTION_BUCKETS) + 1
    table = [each.histogram or (0,) * width for each in columns]
    totals = [max(0, sum(column[bucket] for column in table)) for bucket in range(width)]
    used = [bucket for bucket, total in enumerate(totals) if total > 0]
    if not used:
        return None
    most, highest = max(max(column) for column in table), max(totals)
    rows = []
    for bucket in range(used[-1], used[0] - 1, -1):
        cells = [max(0, column[bucket]) for column in table]
        levels = [-(-HEAT_LEVELS * cell // most) for cell in cells]
        is_last = bucket == len(EXECUTION_BUCKETS)
        bound = EXECUTION_BUCKETS[bucket - 1 if is_last else bucket]
        rows.append(
            {
                "label": f"{'>' if is_last else '≤'} {milliseconds(bound)}",
                "total": totals[bucket],
                "share": steps(totals[bucket], highest),
                "cells": list(zip(cells, levels, strict=True)),
            }
        )
    return {"rows": rows, "total": sum(totals)}


def spark_points(values: Sequence[int], highest: int) -> str:
    """Return the points of a line, 100 wide and 20 high; "" where there is nothing to draw."""
    if highest <= 0 or len(values) < 2:
        return ""
    room = SPARK_HEIGHT - 2
    heights = [1 + room - room * min(max(0, value), highest) // highest for value in values]
    return " ".join(f"{100 * place / (len(values) - 1):.1f},{height}" for place, height in enumerate(heights))


def steps(part: int, whole: int) -> int:
    """Return a share in per cent, in steps of 5, for bars."""
    return min(100, -(-part * 100 // (whole * STEP_PER_CENT)) * STEP_PER_CENT) if part > 0 and whole > 0 else 0


def _mean(count: ExecutionCount) -> float | None:
    succeeded = count.processed - count.failed
    return count.ms / succeeded if succeeded > 0 else None


def _drawable(value: float) -> float:
    return value if 0 <= value < MAX_DRAWN else 0


PAGES = (
    Page("classes", "/classes", show_classes, "classes.html", message("Classes"), place=70, key="m"),
    Page("job_class", "/classes/<name:job_class>", show_class, "class.html", message("Classes")),
)
ACTIONS = ()
