"""Enumerators: the items of sequences and CSV files for `build_enumerator`, each with its cursor.

sequence_enumerator       item, index                    batches_enumerator       list of items, number of the batch
csv_enumerator            row, index                     csv_batches_enumerator   list of rows, number of the batch

A cursor is the place of the item that comes next, as in Sidekiq: Ruby goes on where Python was, and the reverse.
Items before it are left out; of a file they are read all the same.  The items must be the same in each run: those of a
file that has changed meanwhile are not.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["CountedItems", "batches_enumerator", "csv_batches_enumerator", "csv_enumerator", "sequence_enumerator"]

T = TypeVar("T")
Row = dict[str, str]
DEFAULT_BATCH_SIZE = 100  # (sidekiq csv_enumerator.rb)


class CountedItems(Iterator[tuple[T, int]]):
    """Items whose number is known, so that the job says how far it has come.  total: items of all runs."""

    def __init__(self, item_at: Callable[[int], T], start: int, total: int) -> None:
        self.total = total
        self._indexes = iter(range(start, total))
        self._item_at = item_at

    def __next__(self) -> tuple[T, int]:
        index = next(self._indexes)
        return self._item_at(index), index


def sequence_enumerator(items: Sequence[T], *, cursor: int | None) -> CountedItems[T]:
    """Yield each item with its index.  cursor: None for all of them."""
    return CountedItems(items.__getitem__, _checked(cursor), len(items))


def batches_enumerator(
    items: Sequence[T], *, cursor: int | None, size: int = DEFAULT_BATCH_SIZE
) -> CountedItems[Sequence[T]]:
    """Yield batches of items with their number.  A batch is done again as a whole.  size: keep it the same."""
    _check_size(size)

    def batch_at(number: int) -> Sequence[T]:
        return items[number * size : (number + 1) * size]

    return CountedItems(batch_at, _checked(cursor), -(-len(items) // size))


def csv_enumerator(
    path: str | PathLike[str], *, cursor: int | None, encoding: str = "utf-8-sig", **dialect: Any
) -> Generator[tuple[Row, int], None, None]:
    """Yield each row of a CSV file as a dictionary, with its index; the first line names the columns.

    dialect: as for csv.DictReader: `fieldnames` for a file without that line, `delimiter`, …
    """
    start = _checked(cursor)
    with Path(path).open(newline="", encoding=encoding) as file:
        for index, row in enumerate(csv.DictReader(file, **dialect)):
            if index >= start:
                yield row, index


def csv_batches_enumerator(
    path: str | PathLike[str],
    *,
    cursor: int | None,
    size: int = DEFAULT_BATCH_SIZE,
    encoding: str = "utf-8-sig",
    **dialect: Any,
) -> Generator[tuple[list[Row], int], None, None]:
    """Yield batches of rows with their number.  A batch is done again as a whole.  size: keep it the same."""
    _check_size(size)
    number = _checked(cursor)
    with Path(path).open(newline="", encoding=encoding) as file:
        rows = csv.DictReader(file, **dialect)
        for _ in islice(rows, number * size):
            pass
        while batch := list(islice(rows, size)):
            yield batch, number
            number += 1


def _checked(cursor: int | None) -> int:
    """Return an index.  Raises ValueError for the cursor of another enumerator."""
    if cursor is None:
        return 0
    if isinstance(cursor, bool) or not isinstance(cursor, int) or cursor < 0:
        raise ValueError(f"the cursor {cursor!r} is no index: another enumerator has written it")
    return cursor


def _check_size(size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r} is not a number of items; pass 1 or more")
