"""The drawings of results: those that are kept are made of the results that are kept, and can be read."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.plots import PLOTS, TARGET, Bar, Plot, draw, main
from benchmarks.report import Results
from tests.kit import ROOT

SVG = "{http://www.w3.org/2000/svg}"
MIN_FONT_PIXELS = 12
CONDITIONS = {"when": "2026-11-21 02:53 UTC", "machine": "a <machine>, 2 cores, Linux 6.18"}


def drawing(*bars: Bar) -> ElementTree.Element:
    plot = Plot("A & B", "a note", "rates", lambda _: list(bars))
    return ElementTree.fromstring(draw(plot, Results(CONDITIONS, {}, {}, [])))


def test_the_drawings_are_those_of_the_results(tmp_path: Path) -> None:
    """If this fails: python -m benchmarks.plots."""
    main(tmp_path)

    made = {path.name: path.read_text() for path in tmp_path.iterdir()}

    assert made == {path.name: path.read_text() for path in TARGET.iterdir()}


def test_a_bar_is_as_long_as_its_value() -> None:
    root = drawing(Bar("kiqcluster", 200.0, "200", "one"), Bar("sidekiq", 50.0, "50", "one"))

    ours, theirs = (float(bar.attrib["width"]) for bar in root.findall(f"{SVG}rect")[1:])

    assert ours == 4 * theirs


def test_it_says_its_figures_to_those_who_do_not_see_it() -> None:
    root = drawing(Bar("kiqcluster", 200.0, "200 ms", "one process"))

    assert root.findtext(f"{SVG}title") == "A & B"
    assert root.findtext(f"{SVG}desc") == "one process, kiqcluster: 200 ms"
    assert "2026-11-21, a <machine>, 2 cores" in "".join(root.itertext())


@pytest.mark.parametrize("name", PLOTS)
def test_it_can_be_read_in_light_and_dark_and_is_shown(name: str) -> None:
    text = (TARGET / f"{name}.svg").read_text()
    sizes = [float(size) for size in re.findall(r"(?:font-size|font): ([\d.]+)px", text)]
    pages = "\n".join((ROOT / "docs" / name).read_text() for name in ("reference/performance.md", "web.md"))

    assert min(sizes) >= MIN_FONT_PIXELS
    assert "prefers-color-scheme: dark" in text
    assert re.search(rf"!\[(.+)\]\(\S+/{name}\.svg\)", pages), "no page shows it with a text for who does not see it"
