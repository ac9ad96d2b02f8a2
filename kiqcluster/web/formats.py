"""Formats: numbers, times and durations as text.  Pure.  What is enormous, or no number, has a text too."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from kiqcluster.process.durations import show_duration

__all__ = [
    "MAX_PLAIN_NUMBER",
    "NO_VALUE",
    "compact",
    "count_bytes",
    "duration",
    "iso_time",
    "milliseconds",
    "number",
    "rate",
    "shown_time",
]

NO_VALUE = "–"
MAX_PLAIN_NUMBER = 10**18  # nobody counts that far, but a payload may say anything, also with thousands of digits
MAX_KEPT_TIMES = 1_024
MAX_EPOCH_SECONDS = 253_402_300_799.0  # the last second of the year 9999, where datetime ends
UNITS = ("B", "kB", "MB", "GB", "TB")


def number(value: Any) -> str:
    """Return 1204331 as 1,204,331, and what is enormous as 1.2e+30."""
    if isinstance(value, bool) or not isinstance(value, int):
        return NO_VALUE
    return f"{value:,}" if abs(value) < MAX_PLAIN_NUMBER else f"{Decimal(value):.1e}"


def rate(value: float | None) -> str:
    """Return so many a second: 0, 0.25, 12.5, 1,204."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def duration(seconds: float | None) -> str:
    """Return 0.4s, 9.5s, 14m 58s; of nothing known, or thousands of years, a dash."""
    if seconds is None or not abs(seconds) <= MAX_EPOCH_SECONDS:
        return NO_VALUE
    return f"{max(0.0, seconds):.1f}s" if seconds < 9.95 else show_duration(seconds)


def compact(value: int) -> str:
    """Return a count for a small place: 999, 1.2k, 34k, 5.6M."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value / size:.1f}{unit}" if value < 10 * size else f"{min(value // size, 999)}{unit}"
    return str(value)


def milliseconds(value: float | None) -> str:
    """Return 0.4 ms, 12 ms, 1.25 s, 14m 58s."""
    if value is None or not 0 <= value <= 1_000 * MAX_EPOCH_SECONDS:
        return NO_VALUE
    if value < 9_995:
        return f"{value / 1_000:.2f} s" if value >= 999.5 else f"{value:.0f} ms" if value >= 9.95 else f"{value:.1f} ms"
    return duration(value / 1_000)


def count_bytes(count: int) -> str:
    """Return bytes as 41 MB, 1.5 GB."""
    value, unit = float(count), UNITS[0]
    for unit in UNITS:  # the last one is what is left
        if value < 999.5 or unit == UNITS[-1]:
            break
        value /= 1_000
    return f"{value:.1f} {unit}" if value < 10 and unit != UNITS[0] else f"{value:,.0f} {unit}"


@lru_cache(MAX_KEPT_TIMES)  # a row says a time three times over
def iso_time(at: float | None) -> str | None:
    """Return an epoch second as 2026-11-20T09:59:00Z; None for what is no time."""
    if at is None or not 0 <= at <= MAX_EPOCH_SECONDS:
        return None
    return f"{datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


def shown_time(at: float | None) -> str:
    """Return the same as 2026-11-20 09:59:00 UTC."""
    text = iso_time(at)
    return NO_VALUE if text is None else f"{text[:10]} {text[11:19]} UTC"
