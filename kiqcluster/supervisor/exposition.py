"""Exposition: metrics as text, in Prometheus' format 0.0.4 and in OpenMetrics 1.0.  Pure.

The lines of samples are alike in both; heads differ, and exemplars and the end mark are OpenMetrics' own.
prometheus-client writes whole registries in one go, which takes too long for the supervisor's loop; tests hold this
beside its parsers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite

__all__ = [
    "CONTENT_TYPES",
    "END",
    "OPENMETRICS",
    "TEXT",
    "Format",
    "Labels",
    "accepts_gzip",
    "choose_format",
    "exemplar",
    "head",
    "line_start",
    "number",
]

Labels = tuple[tuple[str, str], ...]
Format = str  # TEXT or OPENMETRICS
TEXT, OPENMETRICS = "text/plain", "application/openmetrics-text"
CONTENT_TYPES = {
    TEXT: f"{TEXT}; version=0.0.4; charset=utf-8",
    OPENMETRICS: f"{OPENMETRICS}; version=1.0.0; charset=utf-8",
}
END = {TEXT: b"", OPENMETRICS: b"# EOF\n"}
# type → (what it adds to the name, its type), where format 0.0.4 has another word for it
AS_TEXT = {
    "counter": ("_total", "counter"),
    "info": ("_info", "gauge"),
    "stateset": ("", "gauge"),
    "gaugehistogram": ("", "untyped"),
    "unknown": ("", "untyped"),
}
ANY_TEXT = ("text/plain", "text/*", "*/*")


def head(name: str, kind: str, text: str, unit: str, form: Format) -> str:
    """Return the lines that come before the samples of a metric."""
    help_text = text.replace("\\", "\\\\").replace("\n", "\\n")
    if form == OPENMETRICS:
        help_text = help_text.replace('"', '\\"')
        units = f"# UNIT {name} {unit}\n" if unit and name.endswith(f"_{unit}") else ""
        return f"# TYPE {name} {kind}\n{units}# HELP {name} {help_text}\n"
    suffix, kind = AS_TEXT.get(kind, ("", kind))
    return f"# HELP {name}{suffix} {help_text}\n# TYPE {name}{suffix} {kind}\n"


def line_start(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return the line of a sample up to its value; labels are sorted by name."""
    inner = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{inner}}} " if inner else f"{name} "


def exemplar(labels: Labels, value: float, at: float | None) -> str:
    """Return what OpenMetrics adds to a sample's line."""
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    moment = "" if at is None else f" {at:.3f}"
    return f" # {{{inner}}} {number(value)}{moment}"


def number(value: float) -> str:
    """Return a value as both formats write it."""
    if isfinite(value):
        return repr(float(value))
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text


def choose_format(accept: str) -> Format:
    """Return the format that an Accept header prefers; text where it says nothing of the two."""
    qualities = _qualities(accept)
    text = max((qualities.get(name, 0.0) for name in ANY_TEXT), default=0.0)
    openmetrics = qualities.get(OPENMETRICS, 0.0)
    return OPENMETRICS if openmetrics > 0 and openmetrics >= text else TEXT


def accepts_gzip(accept_encoding: str) -> bool:
    return _qualities(accept_encoding).get("gzip", 0.0) > 0


def _qualities(header: str) -> Mapping[str, float]:
    """Return what an Accept header lists, in lower case, each with its highest q; a q that is none counts as 1."""
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
