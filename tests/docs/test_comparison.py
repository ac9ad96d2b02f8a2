"""The comparison with others: its versions and figures are those that the benchmarks have measured."""

from __future__ import annotations

import json
import re

from benchmarks.report import Results
from tests.kit import ROOT

PAGE = ROOT / "docs/reference/comparison.md"
RATES = ROOT / "benchmarks/results/rates.json"
NOT_COMPARED = {"bare-loop"}  # a loop of our own, not a system


def measured() -> Results:
    return Results.from_json(json.loads(RATES.read_text()))


def rows(text: str) -> list[list[str]]:
    """Return the rows of all tables, as cells."""
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]


def test_the_versions_are_those_that_were_measured() -> None:
    versions = {cells[0].lower(): cells[1].partition(" (")[0] for cells in rows(PAGE.read_text()) if len(cells) == 4}
    peers = {name: how for name, how in measured().peers.items() if name not in NOT_COMPARED}

    missing = {name: how for name, how in peers.items() if re.split("[,;]", how)[0] not in versions.get(name, "")}

    assert peers
    assert missing == {}


def test_the_speeds_are_the_medians_of_the_results() -> None:
    results, tables = measured(), PAGE.read_text().split("\n## ")
    shown: dict[str, str] = {}
    for table in tables:
        names, figures = (
            next((cells for cells in rows(table) if cells[0] == first), [])
            for first in ("", "no-op jobs a second, one process")
        )
        shown |= {name.lower(): figure for name, figure in zip(names[1:], figures[1:], strict=False)}
    peers = results.peers.keys() - NOT_COMPARED

    assert {name: shown[name] for name in peers} == {
        name: f"{results.median('noop', name, 'rate'):,.0f}" for name in peers
    }


def test_each_system_has_a_date_and_a_column() -> None:
    text = PAGE.read_text()
    listed = {cells[0]: cells[2] for cells in rows(text) if len(cells) == 4 and cells[0] not in ("name", "---")}
    columns = {name for cells in rows(text) if cells[0] == "" for name in cells[1:]}

    assert listed.keys() == columns
    assert {name for name, date in listed.items() if not re.fullmatch(r"20\d\d-\d\d-\d\d", date)} == set()
