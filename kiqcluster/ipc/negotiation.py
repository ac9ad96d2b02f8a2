"""Negotiation: chooses the format and compression of metrics by a scraper's Accept headers.  Pure.

The supervisor's pages and kiqctl's exporter use it.  prometheus-client's own choice ignores q-values.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONTENT_TYPES", "OPENMETRICS", "TEXT", "Format", "accepts_gzip", "choose_format"]

Format = str  # TEXT or OPENMETRICS
TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
CONTENT_TYPES = {
    TEXT: f"{TEXT}; version=0.0.4; charset=utf-8",
    OPENMETRICS: f"{OPENMETRICS}; version=1.0.0; charset=utf-8",
}
ANY_TEXT = ("text/plain", "text/*", "*/*")


def choose_format(accept: str) -> Format:
    """Return the format that an Accept header prefers; text when the header names neither."""
    qualities = _qualities(accept)
    text = max((qualities.get(name, 0.0) for name in ANY_TEXT), default=0.0)
    openmetrics = qualities.get(OPENMETRICS, 0.0)
    return OPENMETRICS if openmetrics > 0 and openmetrics >= text else TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    return _qualities(accept_encoding).get("gzip", 0.0) > 0


def _qualities(header: str) -> Mapping[str, float]:
    """Return the types of an Accept header, in lower case, each with its highest q; an invalid q counts as 1."""
    found: dict[str, float] = {}
    for each in header.lower().split(","):
        name, *parameters = (part.strip() for part in each.split(";"))
        quality = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                quality = _quality(value.strip())
        if name:
            found[name] = max(found.get(name, 0.0), quality)
    return found


def _quality(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 1.0
    return value if 0.0 <= value <= 1.0 else 1.0
