"""Report: what was measured, as Markdown: the targets first, then a table for each workload, then how it was made.

`python -m benchmarks.report FILE` prints it again from what `--json FILE` has saved.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Figures
from benchmarks.targets import TARGETS, Target
from benchmarks.workloads import WORKLOADS, Column

__all__ = ["Results", "Run", "render"]

NOISY_CORE_SHARE = 0.2  # share of a core that others used, from which on a run is called noisy


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one peer.  failure: why there are no figures."""

    workload: str
    peer: str
    round: int
    figures: Figures
    failure: str = ""


@dataclass(slots=True)
class Results:
    """What a session measured.

    conditions: machine, server and the like, by name.  peers: name → version and configuration.
    absent: name → why it could not take part.
    """

    conditions: dict[str, str]
    peers: dict[str, str]
    absent: dict[str, str]
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Results:
        return cls(**{**document, "runs": [Run(**run) for run in document["runs"]]})

    def values(self, workload: str, peer: str, figure: str) -> list[float]:
        """Return a figure of all rounds."""
        runs = [run for run in self.runs if (run.workload, run.peer) == (workload, peer)]
        return [run.figures[figure] for run in runs if figure in run.figures]

    def median(self, workload: str, peer: str, figure: str) -> float | None:
        values = self.values(workload, peer, figure)
        return statistics.median(values) if values else None


def render(results: Results) -> str:
    parts = ["# Benchmarks", "", *warnings(results), *target_table(results)]
    for name in WORKLOADS:
        if any(run.workload == name for run in results.runs):
            parts += ["", *workload_table(results, name)]
    return "\n".join([*parts, "", *how(results), ""])


def warnings(results: Results) -> Iterator[str]:
    """Yield what has to be known before a figure is read."""
    for name in ("beware", "interrupted"):
        if name in results.conditions:
            yield from (f"**{name.capitalize()}**: {results.conditions[name]}.", "")


def target_table(results: Results) -> Iterator[str]:
    """Yield the issue's targets for the workloads that ran, met or missed."""
    ran = {run.workload for run in results.runs}
    yield from header("workload", "measured", "", "target", "")
    for target in TARGETS:
        if target.workload in ran:
            value = target.measured(results.median)
            shown = "–" if value is None else format(value, target.form)
            yield row(target.workload, target.what, shown, target.wanted(), verdict(target, value))


def verdict(target: Target, value: float | None) -> str:
    if value is None:
        return "not measured"
    return "met" if target.is_met(value) else "**missed**"


def workload_table(results: Results, name: str) -> Iterator[str]:
    """Yield a line for each peer: medians, with the least and the most in brackets."""
    workload = WORKLOADS[name]
    yield f"## {workload.title} (`{name}`)"
    yield ""
    yield from header("peer", *(column.heading for column in workload.columns), "notes")
    for peer in workload.peers:
        runs = [run for run in results.runs if (run.workload, run.peer) == (name, peer)]
        if runs:
            cells = [cell(results.values(name, peer, column.figure), column) for column in workload.columns]
            yield row(peer, *cells, notes(runs))


def cell(values: Sequence[float], column: Column) -> str:
    if not values:
        return "–"
    middle, least, most = (
        format(value, column.form) for value in (statistics.median(values), min(values), max(values))
    )
    return middle if least == most else f"{middle} ({least}–{most})"


def notes(runs: Sequence[Run]) -> str:
    noisy = sum(run.figures.get("foreign", 0.0) > NOISY_CORE_SHARE for run in runs)
    found = [f"{noisy} of {len(runs)} noisy"] if noisy else []
    for run in runs:
        if run.failure:
            first, *more = run.failure.splitlines()
            found.append(" ".join([f"round {run.round} failed: {first}", *more[-1:]]))
    return "; ".join(found)


def how(results: Results) -> Iterator[str]:
    yield "## Versions and configuration"
    yield ""
    for name, text in results.conditions.items():
        yield f"- {name}: {text}"
    yield f"- noisy: processes of others used more than {NOISY_CORE_SHARE:.0%} of a core during the run"
    yield ""
    yield from header("peer", "version and configuration")
    for name, text in {**results.peers, **results.absent}.items():
        yield row(name, f"not run: {text}" if name in results.absent else text)


def header(*names: str) -> Iterator[str]:
    yield row(*names)
    yield row(*("---" for _ in names))


def row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


if __name__ == "__main__":
    print(render(Results.from_json(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))), end="")
