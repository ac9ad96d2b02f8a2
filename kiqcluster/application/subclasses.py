"""Subclasses: a value whose class derives from that of a time, a Decimal, text or bytes → a value of the class itself.

freezegun and pendulum return such values, pandas has its Timestamp, and Django its SafeString.  Their JSON is that of
the base class.  A job gets a value of the base class, so changes.py checks that it equals the given one: a Timestamp
with nanoseconds does not.  The functions below read what the base class keeps, not attributes that a subclass defines
anew: str(…) of a SafeString is a SafeString.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

__all__ = ["as_base"]

SOME_DAY = date(2000, 1, 1)

# freezegun replaces these names in all modules; the table keeps the classes.
_combine, _ordinal = datetime.combine, date.fromordinal
_date_of, _time_of, _ordinal_of = datetime.date, datetime.timetz, date.toordinal


def _datetime(value: Any) -> datetime:
    return _combine(_date_of(value), _time_of(value))


def _date(value: Any) -> date:
    return _ordinal(_ordinal_of(value))


def _time(value: Any) -> time:
    return _time_of(_combine(SOME_DAY, value))


BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (datetime, _datetime),  # before date, from which it derives
    (date, _date),
    (time, _time),
    (timedelta, timedelta.__pos__),
    (Decimal, Decimal),
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (bytearray, lambda value: bytearray(memoryview(value))),
)


def as_base(value: Any) -> Any:
    """Return a value of a subclass as one of the class that JSON has a form for; None if it has none.

    A member of an Enum is no such value.
    """
    if isinstance(value, Enum):
        return None
    for base, convert in BASES:
        if isinstance(value, base) and type(value) is not base:
            return convert(value)
    return None
