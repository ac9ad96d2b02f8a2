"""Tables for a terminal, and numbers, times and durations in words.  Pure, but for the terminal's width.

1. clean    whatever came from Redis becomes one line that a terminal only shows, and never obeys
2. measure  in cells of the terminal, by graphemes: an emoji of several characters takes two (wcwidth knows; ADR 0013)
3. fit      columns that may shrink give way: ids first, then the widest; what is still too long is cut at the edge
Where standard output is not a terminal, nothing is cut: who reads a pipe wants all of it (COLUMNS says otherwise).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

from kiqcluster.ipc.stdio import clean
from kiqcluster.process.durations import show_duration
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_json import JSON

__all__ = [
    "NO_VALUE",
    "Column",
    "ago",
    "ascii_only",
    "clean",
    "display_width",
    "format_duration",
    "format_megabytes",
    "format_number",
    "format_time",
    "iso_time",
    "json_line",
    "number_column",
    "pluralize",
    "table",
    "terminal_width",
    "text_column",
    "truncate",
]

COLUMN_GAP = "  "
NO_VALUE = "–"
MAX_PLAIN_NUMBER = 10**18  # nobody counts that far, but a payload may say anything, also with thousands of digits
MAX_EPOCH_SECONDS = 253_402_300_799.0  # the last second of the year 9999, where datetime ends


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    min_width: cells to which it may shrink where the terminal is narrow; None: it never shrinks.
    shrinks_first: it shrinks before all others.
    """

    title: str
    align: Literal["left", "right"] = "left"
    min_width: int | None = None
    shrinks_first: bool = False


def text_column(title: str, min_width: int | None = None, *, shrinks_first: bool = False) -> Column:
    """Return a column of words."""
    return Column(title, "left", min_width, shrinks_first)


def number_column(title: str) -> Column:
    """Return a column of numbers; these are never cut."""
    return Column(title, "right")


Paint = Callable[[Column, str, str], str]  # column, what a cell says, the same padded → that with colours


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[str]],
    width: int | None = None,
    indent: int = 2,
    paint: Paint | None = None,
) -> list[str]:
    """Return the lines of a table, its head first.

    width: cells of the terminal; None: as many as it takes.  Cells may hold anything: see clean.  paint: gives a cell
    its colours; lines that are cut at the edge have none.
    """
    lines = [[column.title for column in columns], *([clean(cell) for cell in row] for row in rows)]
    widths = [max(map(display_width, column)) for column in zip(*lines, strict=True)]
    if width is not None:
        widths = _fit_widths(columns, widths, width - indent - len(COLUMN_GAP) * (len(columns) - 1))
    shown = []
    for line in lines:
        words = [_pad(text, size, column) for text, size, column in zip(line, widths, columns, strict=True)]
        text = (" " * indent + COLUMN_GAP.join(words)).rstrip()
        fits = width is None or display_width(text) <= width
        if paint is not None and fits:
            words = [paint(*each) for each in zip(columns, line, words, strict=True)]
            text = " " * indent + COLUMN_GAP.join(words)
        shown.append(text if fits else truncate(text, width or 0))
    return shown


def _fit_widths(columns: Sequence[Column], widths: Sequence[int], available: int) -> list[int]:
    """Return the widths, of which the widest that may shrink have given way until all fit, if they can."""
    fitted = [
        size if column.min_width is None else min(size, max(available, column.min_width))
        for size, column in zip(widths, columns, strict=True)
    ]
    while sum(fitted) > available:
        spare = [
            (column.shrinks_first, size, at)
            for at, (size, column) in enumerate(zip(fitted, columns, strict=True))
            if column.min_width is not None and size > column.min_width
        ]
        if not spare:
            break
        fitted[max(spare)[2]] -= 1
    return fitted


def _pad(text: str, width: int, column: Column) -> str:
    if text.isascii() and len(text) <= width:  # nearly all of them, and a large fleet has a hundred thousand
        return text.rjust(width) if column.align == "right" else text.ljust(width)
    text = truncate(text, width)
    spaces = " " * (width - display_width(text))
    return spaces + text if column.align == "right" else text + spaces


def terminal_width() -> int | None:
    """Return the cells of a line: of COLUMNS, else of the terminal on standard output; None where there is neither."""
    return shutil.get_terminal_size((0, 0)).columns or None


# 2. measure


def display_width(text: str) -> int:
    """Return how many cells of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(size for _, size in _graphemes(text))


def truncate(text: str, width: int) -> str:
    """Return as much of a text as so many cells hold, with … for what is left out.  A grapheme stays whole."""
    if text.isascii():
        return text if len(text) <= width else f"{text[: width - 1]}…" if width > 0 else ""
    kept: list[str] = []
    fits = used = 0
    for grapheme, size in _graphemes(text):
        used += size
        if used > width:
            return f"{''.join(kept[:fits])}…" if width > 0 else ""
        kept.append(grapheme)
        fits = len(kept) if used < width else fits
    return text


def _graphemes(text: str) -> Iterator[tuple[str, int]]:
    """Yield the graphemes of a text with their cells."""
    from wcwidth import iter_graphemes, wcswidth  # 36 ms and tables of Unicode, of no use where all is ASCII

    return ((each, max(0, wcswidth(each))) for each in iter_graphemes(text))


# words


def format_number(value: int) -> str:
    """Return 1204331 as 1,204,331, and what is enormous as 1.2e+30."""
    return f"{value:,}" if abs(value) < MAX_PLAIN_NUMBER else f"{Decimal(value):.1e}"


def pluralize(count: int, one: str, many: str = "") -> str:
    """Return `1 job`, `1,204 jobs`; many: the plural, where an s does not make it."""
    return f"{format_number(count)} {one if count == 1 else many or f'{one}s'}"


def format_duration(seconds: float | None) -> str:
    """Return 0.4s, 9.5s, 14m 58s; None is nothing known, and so is what lasts for thousands of years."""
    if seconds is None or not abs(seconds) <= MAX_EPOCH_SECONDS:
        return NO_VALUE
    return f"{max(0.0, seconds):.1f}s" if seconds < 9.95 else show_duration(seconds)


def ago(at: float | None, now: float) -> str:
    """Return how long ago an epoch second was, `in 5m` for one to come."""
    if at is None or not abs(at) <= MAX_EPOCH_SECONDS:
        return NO_VALUE
    return f"{format_duration(now - at)} ago" if at <= now else f"in {format_duration(at - now)}"


def format_time(at: float | None) -> str:
    """Return an epoch second as 2026-11-20 09:59:00Z."""
    if at is None or not 0 <= at <= MAX_EPOCH_SECONDS:
        return NO_VALUE
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%SZ}"


def iso_time(at: float | None) -> str | None:
    """Return the same as 2026-11-20T09:59:00Z, for a document; None where nothing is known."""
    words = format_time(at)
    return None if words == NO_VALUE else words.replace(" ", "T")


def format_megabytes(count: int) -> str:
    """Return bytes as 41 MB; 0 is nothing known."""
    return f"{format_number(round(count / 1e6))} MB" if count else NO_VALUE


# JSON

NOT_PRINTABLE_ASCII = re.compile(r"[^ -~]")


def json_line(value: JSON) -> str:
    """Return JSON that every parser reads, and that a terminal only shows: what is not printable is an escape.

    Integers have all of their digits.  A float beyond the range, which Ruby writes as 1e400, is null.
    """
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):  # Infinity, an integer beyond the digit limit, nested far too deep
        text = _encode_extremes(value)
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escape(each) for each in text)


def ascii_only(line: str) -> str:
    """Return a line of JSON with all else as escapes, for whom UTF-8 is too much."""
    return NOT_PRINTABLE_ASCII.sub(lambda found: _escape(found[0]), line)


def _escape(character: str) -> str:
    return json.dumps(character)[1:-1]


def _encode_extremes(value: JSON) -> str:
    try:
        return ruby_json.encode(_finite(value)).decode()
    except RecursionError:
        return '"(nested too deep)"'


def _finite(value: JSON) -> JSON:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and value - value != 0 else value
