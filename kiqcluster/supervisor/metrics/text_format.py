"""Text format: metrics as text, in Prometheus' format 0.0.4 and in OpenMetrics 1.0.  Pure.

The lines of samples are alike in both; heads differ, and exemplars and the end mark are OpenMetrics' own.
prometheus-client writes whole registries in one go, which takes too long for the supervisor's loop; tests hold this
beside its parsers.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite

from kiqcluster.ipc.negotiation import OPENMETRICS, TEXT, Format

__all__ = ["END_MARK", "Labels", "family_header", "format_exemplar", "format_value", "sample_prefix"]

Labels = tuple[tuple[str, str], ...]
END_MARK = {TEXT: b"", OPENMETRICS: b"# EOF\n"}
# type → (what it adds to the name, its type), where format 0.0.4 has another word for it
AS_TEXT = {
    "counter": ("_total", "counter"),
    "info": ("_info", "gauge"),
    "stateset": ("", "gauge"),
    "gaugehistogram": ("", "untyped"),
    "unknown": ("", "untyped"),
}


def family_header(name: str, kind: str, text: str, unit: str, form: Format) -> str:
    """Return the lines that come before the samples of a metric."""
    help_text = text.replace("\\", "\\\\").replace("\n", "\\n")
    if form == OPENMETRICS:
        help_text = help_text.replace('"', '\\"')
        units = f"# UNIT {name} {unit}\n" if unit and name.endswith(f"_{unit}") else ""
        return f"# TYPE {name} {kind}\n{units}# HELP {name} {help_text}\n"
    suffix, kind = AS_TEXT.get(kind, ("", kind))
    return f"# HELP {name}{suffix} {help_text}\n# TYPE {name}{suffix} {kind}\n"


def sample_prefix(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """Return the line of a sample up to its value; labels are sorted by name."""
    inner = ",".join(f'{label}="{_escaped(value)}"' for label, value in sorted(labels))
    return f"{name}{{{inner}}} " if inner else f"{name} "


def format_exemplar(labels: Labels, value: float, at: float | None) -> str:
    """Return what OpenMetrics adds to a sample's line."""
    inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    moment = "" if at is None else f" {at:.3f}"
    return f" # {{{inner}}} {format_value(value)}{moment}"


def format_value(value: float) -> str:
    """Return a value as both formats write it."""
    if isfinite(value):
        return repr(float(value))
    return "NaN" if value != value else "+Inf" if value > 0 else "-Inf"


def _escaped(text: str) -> str:
    if "\\" in text or '"' in text or "\n" in text:
        return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
    return text
