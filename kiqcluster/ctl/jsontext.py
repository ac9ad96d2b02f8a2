"""JSON in one line, for people and for programs, whatever a job holds.  Pure."""

from __future__ import annotations

import json
import re

from kiqcluster import rubyjson
from kiqcluster.rubyjson import JSON

__all__ = ["ascii_only", "json_line"]

OUTSIDE_ASCII = re.compile(r"[^ -~]")


def json_line(value: JSON) -> str:
    """Return JSON that every parser reads, and that a terminal only shows: what is not printable is an escape.

    Integers have all of their digits.  A float beyond the range, which Ruby writes as 1e400, is null.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # Infinity, an integer beyond the digit limit, nested far too deep
        text = _line_of_extremes(value)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def ascii_only(line: str) -> str:
    """Return a line of JSON with all else as escapes, for whom UTF-8 is too much."""
    return OUTSIDE_ASCII.sub(lambda found: _escaped(found[0]), line)


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1]


def _line_of_extremes(value: JSON) -> str:
    try:
        return rubyjson.encode(_finite(value)).decode()
    except RecursionError:
        return '"(nested too deep)"'


def _finite(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and value - value != 0 else value
