"""Text format: read back by the parsers of the formats."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from kiqcluster.ipc.negotiation import OPENMETRICS, TEXT
from kiqcluster.supervisor.metrics.text_format import family_header, format_exemplar, format_value, sample_prefix

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"))


def parsed(name: str, kind: str, text: str, lines: str, form: str) -> Metric:
    page = family_header(name, kind, text, "", form) + lines
    families: Iterator[Metric] = parse_openmetrics(f"{page}# EOF\n") if form == OPENMETRICS else parse_text(page)
    return next(iter(families))


@given(value=st.floats(allow_nan=True), label=TEXTS, text=TEXTS, form=st.sampled_from([TEXT, OPENMETRICS]))
def test_a_sample_is_read_back_as_it_was_written(value: float, label: str, text: str, form: str) -> None:
    line = f"{sample_prefix('pool', [('db', label)])}{format_value(value)}\n"

    family = parsed("pool", "gauge", text, line, form)

    (sample,) = family.samples
    assert sample.labels == {"db": label}
    assert repr(sample.value) == repr(value)


@pytest.mark.parametrize("form", [TEXT, OPENMETRICS])
@pytest.mark.parametrize("text", ["plain", 'a "b"', "back\\slash", "two\nlines", "\\n"])
def test_a_help_text_is_read_back_as_it_was_written(text: str, form: str) -> None:
    assert parsed("pool", "gauge", text, "pool 1\n", form).documentation == text


@pytest.mark.parametrize(
    ("kind", "suffix", "as_text"),
    [
        ("counter", "_total", "counter"),
        ("gauge", "", "gauge"),
        ("histogram", "", "histogram"),
        ("summary", "", "summary"),
        ("info", "_info", "gauge"),
        ("stateset", "", "gauge"),
        ("unknown", "", "untyped"),
        ("gaugehistogram", "", "untyped"),
    ],
)
def test_types_that_the_text_format_lacks_have_its_nearest_word(kind: str, suffix: str, as_text: str) -> None:
    assert family_header("thing", kind, "x", "", TEXT) == f"# HELP thing{suffix} x\n# TYPE thing{suffix} {as_text}\n"
    assert family_header("thing", kind, "x", "", OPENMETRICS) == f"# TYPE thing {kind}\n# HELP thing x\n"


@pytest.mark.parametrize(("unit", "is_told"), [("seconds", True), ("bytes", False), ("", False)])
def test_a_unit_is_told_to_openmetrics_where_the_name_has_it(unit: str, is_told: bool) -> None:
    assert ("# UNIT" in family_header("took_seconds", "gauge", "x", unit, OPENMETRICS)) is is_told
    assert "# UNIT" not in family_header("took_seconds", "gauge", "x", unit, TEXT)


def test_labels_are_sorted_and_without_any_there_are_no_braces() -> None:
    assert sample_prefix("a", [("z", "1"), ("b", "2")]) == 'a{b="2",z="1"} '
    assert sample_prefix("a", []) == "a "


@pytest.mark.parametrize(
    ("value", "written"),
    [(1, "1.0"), (0.1, "0.1"), (1e17, "1e+17"), (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN")],
)
def test_numbers_are_written_as_go_reads_them(value: float, written: str) -> None:
    assert format_value(value) == written


@pytest.mark.parametrize(("at", "moment"), [(None, ""), (1_600_000_000.25, " 1600000000.250")])
def test_an_exemplar_has_its_moment_where_that_is_known(at: float | None, moment: str) -> None:
    assert format_exemplar((("trace_id", 'a"b'),), 2, at) == f' # {{trace_id="a\\"b"}} 2.0{moment}'
