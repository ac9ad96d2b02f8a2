"""Durations and sizes as people write them (90, 90s, 1h30m; 600MB), and the times for which callers schedule jobs.

A number below 10⁹ is a delay in seconds, a larger one an epoch second, as to Sidekiq; but it is never taken for the
other one of the two: `delay_of` refuses epoch seconds, `scheduled_at` delays.
A size has a unit, since bytes and megabytes are confused.  Pure.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Annotated

from kiqcluster.errors import InvalidPush
from kiqcluster.sidekiq.payload import MAX_EPOCH_SECONDS

__all__ = [
    "MAX_DURATION_SECONDS",
    "UNIT",
    "Bytes",
    "Duration",
    "delay_of",
    "due_at",
    "parse_duration",
    "parse_size",
    "scheduled_at",
    "show_duration",
    "show_size",
]

Duration = float | str | timedelta  # as settings take it
MAX_DURATION_SECONDS = 1e8  # three years; a longer one is a mistake
MIN_EPOCH_SECONDS = 1e9  # September 2001; as a delay, 31 years (sidekiq job.rb)
UNIT_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
UNITS_PER_SECOND = {"milliseconds": 1_000, "microseconds": 1_000_000, "nanoseconds": 1_000_000_000}  # … in a second
DURATION_PATTERN = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+(?:\.[0-9]+)?)s)?")
NUMBER_PATTERN = re.compile(r"[0-9]+(?:\.[0-9]+)?")
UNIT = "bytes"
Bytes = Annotated[int, UNIT]  # type of settings that take a size
UNIT_BYTES = {"B": 1, "kB": 1_000, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SHOWN_UNITS = ("GB", "GiB", "MB", "MiB", "kB", "KiB", "B")  # the first that divides a size shows it
SIZE_PATTERN = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z]+)")


def parse_duration(text: str) -> float:
    """Return seconds.  Raises ValueError that shows the valid forms."""
    found = DURATION_PATTERN.fullmatch(text)
    if NUMBER_PATTERN.fullmatch(text):
        seconds = float(text)
    elif text and found is not None:
        seconds = sum(float(part or 0) * unit for part, unit in zip(found.groups(), UNIT_SECONDS.values(), strict=True))
    else:
        raise ValueError(f"{text!r} is not a duration; write seconds, or as in 90s, 15m, 1h30m or 2d")
    if seconds > MAX_DURATION_SECONDS:
        raise ValueError(f"{text!r} is longer than {show_duration(MAX_DURATION_SECONDS)}")
    return seconds


def show_duration(seconds: float) -> str:
    """Return a duration in its two largest units: 14m 58s."""
    left, parts = round(seconds), []
    for name, unit in UNIT_SECONDS.items():
        count, left = divmod(left, unit)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts[:2]) or "0s"


def parse_size(raw: object) -> int:
    """Return bytes; 0 needs no unit.  Raises ValueError for a number without one."""
    if raw in ("0", 0) and not isinstance(raw, bool):
        return 0
    found = SIZE_PATTERN.fullmatch(raw) if isinstance(raw, str) else None
    if found is None or found[2] not in UNIT_BYTES:
        raise ValueError(f"a size has one of the units {', '.join(UNIT_BYTES)}, as in 600MB")
    return round(float(found[1]) * UNIT_BYTES[found[2]])


def show_size(count: int) -> str:
    """Return bytes in the form that parse_size reads: 600MB."""
    unit = next(unit for unit in SHOWN_UNITS if count % UNIT_BYTES[unit] == 0)
    return f"{count // UNIT_BYTES[unit]}{unit}" if count else "0"


def delay_of(delay: float | timedelta) -> timedelta:
    """Return a delay in seconds as a timedelta.  Raises InvalidPush for what is none, such as an epoch second."""
    if isinstance(delay, timedelta):
        return delay
    if isinstance(delay, bool) or not isinstance(delay, int | float) or delay - delay != 0:
        raise InvalidPush(f"{delay!r} is not a delay; pass seconds or a timedelta")
    if delay >= MIN_EPOCH_SECONDS:
        raise InvalidPush(f"{delay!r} is not a delay but a point in time; pass seconds from now, or call perform_at")
    try:
        return timedelta(seconds=delay)
    except OverflowError as error:
        raise InvalidPush("a delay of more than a billion days is taken for a mistake; pass seconds") from error


def scheduled_at(when: float | timedelta | datetime, now: float) -> float:
    """Return `due_at` of a time that a caller gives.  Raises InvalidPush as that does, and for a number below 10⁹."""
    due = due_at(when, now)
    if due < MIN_EPOCH_SECONDS and not isinstance(when, timedelta | datetime):
        raise InvalidPush(
            f"{when!r} is not a point in time but a delay; pass an epoch second or an aware datetime, or for a delay a "
            "timedelta (perform_in takes seconds)"
        )
    return due


def due_at(when: float | timedelta | datetime, now: float) -> float:
    """Return the epoch second of a delay (timedelta), an epoch second, or an aware datetime.

    Raises InvalidPush for a datetime without a time zone, which hosts would read differently, for a time too large for
    readers of Sidekiq's format, and for a value that is not a time.
    """
    if isinstance(when, timedelta):
        due = now + when.total_seconds()
    elif isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidPush(f"{when!r} has no time zone; pass datetime.now(UTC) + …, or a zone of your choice")
        due = when.timestamp()
    elif isinstance(when, bool) or not isinstance(when, int | float) or when - when != 0:
        raise InvalidPush(f"{when!r} is not a valid time; pass epoch seconds, a timedelta or an aware datetime")
    else:
        try:
            due = float(when)
        except OverflowError as error:
            raise InvalidPush("an integer beyond the floats is not a valid time; pass epoch seconds") from error
    if due >= MAX_EPOCH_SECONDS:
        raise InvalidPush(_too_late(when, due))
    return due


def _too_late(when: object, due: float) -> str:
    """Return the message for a time that lies some thousand years ahead."""
    for unit, per_second in UNITS_PER_SECOND.items():
        if (
            not isinstance(when, timedelta | datetime)
            and MAX_EPOCH_SECONDS / 1_000 <= due / per_second < MAX_EPOCH_SECONDS
        ):
            return f"{when!r} looks like {unit}; pass epoch seconds: {when!r} / {per_second}"
    return f"{when!r} is after the year 5138, which is taken for a mistake; pass epoch seconds or an aware datetime"
