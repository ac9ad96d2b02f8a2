"""Negotiation: which format and encoding a scraper gets."""

from __future__ import annotations

import pytest

from kiqcluster.ipc.negotiation import OPENMETRICS, TEXT, accepts_gzip, choose_format

PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;"
    "q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/plain", TEXT),
        ("text/html", TEXT),
        (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5", TEXT),
        ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text; version=abc", OPENMETRICS),
        ("APPLICATION/OpenMetrics-Text;version=", OPENMETRICS),
        ("text/html, application/openmetrics-text;q=0.5", OPENMETRICS),
        ("application/openmetrics-text;q=nonsense", OPENMETRICS),
        ("application/openmetrics-text;q=7", OPENMETRICS),
        ("text/plain; version=abc", TEXT),
        (";,=;;", TEXT),
        ("\x00\xff", TEXT),
    ],
)
def test_the_format_is_the_one_that_the_scraper_prefers(accept: str, form: str) -> None:
    assert choose_format(accept) == form


@pytest.mark.parametrize(
    ("encoding", "is_accepted"),
    [("", False), ("gzip", True), ("deflate, GZIP;q=0.5", True), ("gzip;q=0", False), ("gzipped", False), ("*", False)],
)
def test_gzip_is_for_those_who_say_so(encoding: str, is_accepted: bool) -> None:
    assert accepts_gzip(encoding) is is_accepted
