"""Plots: drawings of the results that are kept, for pages of docs/ and the README.

`python -m benchmarks.plots` writes docs/images/plots/*.svg from benchmarks/results/*.json, the same bytes from the same
results.  A drawing has a panel of its own, light or dark as the reader's system is, and says its figures as text.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from benchmarks.report import Results

__all__ = ["PLOTS", "Bar", "Plot", "draw", "main"]

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TARGET = ROOT / "docs" / "images" / "plots"
WIDTH, MARGIN, LABELS, FIGURES = 900, 30, 200, 130  # pixels; a bar is between its label and its figure
TOP, ROW, BAR, GAP, FOOT = 70, 24, 18, 10, 46
OURS = "kiqcluster"
STYLE = """
    text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2933; }
    .head { font-size: 17px; font-weight: 600; }
    .small { font-size: 13px; fill: #52606d; }
    .end { text-anchor: end; }
    .panel { fill: #f5f7fa; }
    .ours { fill: #2c6cb0; }
    .theirs { fill: #9aa5b1; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e4e7eb; }
      .small { fill: #a9b4c0; }
      .panel { fill: #1f2933; }
      .ours { fill: #63a4e8; }
      .theirs { fill: #616e7c; }
    }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar: whose it is, what it says, and how long it is.  group: heads the first bar of each group."""

    peer: str
    value: float
    figure: str
    group: str = ""


@dataclass(frozen=True, slots=True)
class Plot:
    """A drawing: its title, the line below it, and how its bars come from results."""

    title: str
    note: str
    results: str
    bars: Callable[[Results], list[Bar]]


def by_workload(figure: str, workloads: dict[str, str], unit: str, digits: int) -> Callable[[Results], list[Bar]]:
    """Return bars of a figure for each peer of each workload, the longest first.  workloads: name → heading."""

    def bars(results: Results) -> list[Bar]:
        found = []
        for workload, group in workloads.items():
            peers = {run.peer for run in results.runs if run.workload == workload} - {"bare-loop"}
            medians = {peer: results.median(workload, peer, figure) or 0.0 for peer in peers}
            ordered = sorted(medians.items(), key=lambda each: (-each[1], each[0]))
            found += [Bar(peer, value, f"{value:,.{digits}f}{unit}", group) for peer, value in ordered]
        return found

    return bars


def by_figure(workload: str, figures: dict[str, str], unit: str, digits: int) -> Callable[[Results], list[Bar]]:
    """Return bars of each peer for each figure of a workload, ours first.  figures: name → heading."""

    def bars(results: Results) -> list[Bar]:
        peers = sorted({run.peer for run in results.runs if run.workload == workload}, key=lambda peer: peer != OURS)
        found = []
        for figure, group in figures.items():
            medians = [(peer, results.median(workload, peer, figure)) for peer in peers]
            found += [
                Bar(peer, value, f"{value:,.{digits}f}{unit}", group) for peer, value in medians if value is not None
            ]
        return found

    return bars


PAGES = ("dashboard", "queues", "queue", "busy", "dead", "retries", "scheduled")
PLOTS = {
    "throughput": Plot(
        "Jobs a second that do nothing",
        "medians; Redis, workers and harness share two cores",
        "rates",
        by_workload("rate", {"noop": "one process", "noop-2": "two processes"}, "", 0),
    ),
    "cpu": Plot(
        "CPU of Redis for 1 000 jobs, in ms",
        "medians of the runs with one process; less is better",
        "rates",
        by_workload("redis_cpu", {"noop": "one process"}, " ms", 1),
    ),
    "latency": Plot(
        "From the push to the start of a job, idle, in ms",
        "medians; less is better",
        "others",
        by_figure("latency", {"p50": "half within", "p95": "95 % within", "p99": "99 % within"}, " ms", 2),
    ),
    "fleet": Plot(
        "Cores of Redis that idle processes cost",
        "one connected Redis; the target is half a core at 10 000",
        "fleet",
        by_figure("fleet", {"cpu_100": "100", "cpu_1000": "1 000", "cpu_10000": "10 000 processes"}, "", 3),
    ),
    "web": Plot(
        "Time of the server for a web page, in ms",
        "medians with a million dead jobs, 1 000 queues, 500 processes; less is better",
        "web",
        by_figure("web", {f"{page}_ms": page for page in PAGES}, " ms", 1),
    ),
}


def draw(plot: Plot, results: Results) -> str:
    """Return the SVG of a plot."""
    bars = plot.bars(results)
    groups = len({bar.group for bar in bars})
    height = TOP + ROW * len(bars) + (ROW + GAP) * groups + FOOT
    said = "; ".join(f"{bar.group}, {bar.peer}: {bar.figure}" for bar in bars)
    when = f"{results.conditions['when'].split()[0]}, {results.conditions['machine'].partition(', Linux')[0]}"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
        ' role="img" aria-labelledby="title desc">',
        f'  <title id="title">{escape(plot.title)}</title>',
        f'  <desc id="desc">{escape(said)}</desc>',
        f"  <style>{STYLE}  </style>",
        f'  <rect class="panel" width="{WIDTH}" height="{height}" rx="10"/>',
        f'  <text class="head" x="{MARGIN}" y="38">{escape(plot.title)}</text>',
        f'  <text class="small" x="{MARGIN}" y="60">{escape(plot.note)}</text>',
        *_rows(bars),
        f'  <text class="small" x="{MARGIN}" y="{height - 16}">{escape(when)}</text>',
        "</svg>",
        "",
    ])  # fmt: skip


def _rows(bars: Sequence[Bar]) -> Iterator[str]:
    """Yield headings of groups, and each bar with its label and figure."""
    longest = max(bar.value for bar in bars)
    room = WIDTH - 2 * MARGIN - LABELS - FIGURES
    y, group = TOP, None
    for bar in bars:
        if bar.group != group:
            group, y = bar.group, y + ROW + GAP
            yield f'  <text class="small" x="{MARGIN}" y="{y - 6}">{escape(group)}</text>'
        length = max(1.0, room * bar.value / longest)
        kind = "ours" if bar.peer == OURS else "theirs"
        left, middle = MARGIN + LABELS, y + BAR - 4
        yield f'  <text class="end" x="{left - 12}" y="{middle}">{escape(bar.peer)}</text>'
        yield f'  <rect class="{kind}" x="{left}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"/>'
        yield f'  <text x="{left + length + 10:.1f}" y="{middle}">{escape(bar.figure)}</text>'
        y += ROW


def main(target: Path = TARGET) -> int:
    """Write all drawings."""
    target.mkdir(parents=True, exist_ok=True)
    for name, plot in PLOTS.items():
        results = Results.from_json(json.loads((RESULTS / f"{plot.results}.json").read_text()))
        (target / f"{name}.svg").write_text(draw(plot, results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
