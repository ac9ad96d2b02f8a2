"""Tables for a terminal, and numbers, times and durations in words.  Pure, but for the terminal's width.

1. clean    whatever came from Redis becomes one line that a terminal only shows, and never obeys
2. measure  in cells of the terminal: wide characters take two, combining ones none (unicodedata knows)
3. fit      columns that may shrink give way, the widest first; what is still too long is cut at the edge
Where standard output is no terminal, nothing is cut: who reads a pipe wants all of it (COLUMNS says otherwise).
"""

from __future__ import annotations

import shutil
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from kiqcluster.durations import show_duration
from kiqcluster.streams import clean

__all__ = [
    "NOTHING",
    "Column",
    "ago",
    "cells",
    "clean",
    "counted",
    "cut",
    "duration",
    "left",
    "megabytes",
    "moment",
    "number",
    "right",
    "stamp",
    "table",
    "terminal_width",
]

GAP = "  "
NOTHING = "–"
WIDE = frozenset("WF")  # East Asian widths that take two cells
WITHOUT_A_CELL = frozenset({"Mn", "Me"})  # categories of characters that combine with the one before
ENORMOUS = 10**18  # nobody counts that far, but a payload may say anything, also with thousands of digits
LATEST_MOMENT = 253_402_300_799.0  # the last second of the year 9999, where datetime ends


@dataclass(frozen=True, slots=True)
class Column:
    """least: cells to which it may shrink where the terminal is narrow; None: it never does."""

    title: str
    align: Literal["left", "right"] = "left"
    least: int | None = None


def left(title: str, least: int | None = None) -> Column:
    """Return a column of words."""
    return Column(title, "left", least)


def right(title: str) -> Column:
    """Return a column of numbers; these are never cut."""
    return Column(title, "right")


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[str]], width: int | None = None, indent: int = 2
) -> list[str]:
    """Return the lines of a table, its head first.

    width: cells of the terminal; None: as many as it takes.  Cells may hold anything: see clean.
    """
    lines = [[column.title for column in columns], *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(cells, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        widths = _fitted(columns, widths, width - indent - len(GAP) * (len(columns) - 1))
    shown = []
    for line in lines:
        words = [_padded(text, size, column) for text, size, column in zip(line, widths, columns, strict=True)]
        text = (" " * indent + GAP.join(words)).rstrip()
        shown.append(text if width is None else cut(text, width))
    return shown


def _fitted(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return the widths, of which the widest that may shrink have given way until all fit, if they can."""
    fitted = [
        size if column.least is None else min(size, max(room, column.least))
        for size, column in zip(widths, columns, strict=True)
    ]
    while sum(fitted) > room:
        spare = [
            (size, at)
            for at, (size, column) in enumerate(zip(fitted, columns, strict=True))
            if column.least is not None and size > column.least
        ]
        if not spare:
            break
        fitted[max(spare)[1]] -= 1
    return fitted


def _padded(text: str, width: int, column: Column) -> str:
    text = cut(text, width)
    spaces = " " * (width - cells(text))
    return spaces + text if column.align == "right" else text + spaces


def terminal_width() -> int | None:
    """Return the cells of a line: of COLUMNS, else of the terminal on standard output; None where there is neither."""
    return shutil.get_terminal_size((0, 0)).columns or None


# 2. measure


def cells(text: str) -> int:
    """Return how many cells of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.category(character) in WITHOUT_A_CELL:
        return 0
    return 2 if unicodedata.east_asian_width(character) in WIDE else 1


def cut(text: str, width: int) -> str:
    """Return as much of a text as so many cells hold, with … for what is left out."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept, room = [], width - 1
    for character in text:
        room -= _cells_of(character)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


# words


def number(value: int) -> str:
    """Return 1204331 as 1,204,331, and what is enormous as 1.2e+30."""
    return f"{value:,}" if abs(value) < ENORMOUS else f"{Decimal(value):.1e}"


def counted(count: int, one: str, many: str = "") -> str:
    """Return `1 job`, `1,204 jobs`; many: the plural, where an s does not make it."""
    return f"{number(count)} {one if count == 1 else many or f'{one}s'}"


def duration(seconds: float | None) -> str:
    """Return 0.4s, 9.5s, 14m 58s; None is nothing known, and so is what lasts for thousands of years."""
    if seconds is None or not abs(seconds) <= LATEST_MOMENT:
        return NOTHING
    return f"{max(0.0, seconds):.1f}s" if seconds < 9.95 else show_duration(seconds)


def ago(at: float | None, now: float) -> str:
    """Return how long ago an epoch second was, `in 5m` for one to come."""
    if at is None or not abs(at) <= LATEST_MOMENT:
        return NOTHING
    return f"{duration(now - at)} ago" if at <= now else f"in {duration(at - now)}"


def moment(at: float | None) -> str:
    """Return an epoch second as 2026-11-20 09:59:00Z."""
    if at is None or not 0 <= at <= LATEST_MOMENT:
        return NOTHING
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def stamp(at: float | None) -> str | None:
    """Return the same as 2026-11-20T09:59:00Z, for a document; None where nothing is known."""
    words = moment(at)
    return None if words == NOTHING else words.replace(" ", "T")


def megabytes(count: int) -> str:
    """Return bytes as 41 MB; 0 is nothing known."""
    return f"{number(round(count / 1e6))} MB" if count else NOTHING
