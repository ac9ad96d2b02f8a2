"""Durations as people write them: 90, 90s, 15m, 1h30m.  Pure."""

from __future__ import annotations

import re

__all__ = ["LONGEST_DURATION", "parse_duration", "show_duration"]

LONGEST_DURATION = 1e8  # seconds, three years; a longer one is a slip
SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
FORM = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?")
PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)?")


def parse_duration(text: str) -> float:
    """Return seconds.  Raises ValueError that shows the forms which work."""
    found = FORM.fullmatch(text)
    if PLAIN.fullmatch(text):
        seconds = float(text)
    elif text and found is not None:
        seconds = sum(float(part or 0) * unit for part, unit in zip(found.groups(), SECONDS.values(), strict=True))
    else:
        raise ValueError(f"{text!r} is no duration; write seconds, or as in 90s, 15m, 1h30m or 2d")
    if seconds > LONGEST_DURATION:
        raise ValueError(f"{text!r} is longer than {show_duration(LONGEST_DURATION)}")
    return seconds


def show_duration(seconds: float) -> str:
    """Return the two largest units of it: 14m 58s."""
    left, parts = round(seconds), []
    for name, unit in SECONDS.items():
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts[:2]) or "0s"
