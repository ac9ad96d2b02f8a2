"""Shards: what each shard of a command has, and how a list tells the shard of a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from kiqcluster.ctl.text.options import Output
from kiqcluster.ctl.text.tables import Column, text_column
from kiqcluster.errors import StoreError
from kiqcluster.store import Store, is_outage

__all__ = ["read_shards", "sharded_document", "sharded_table"]

SHARD_COLUMN = text_column("SHARD", 8)
T = TypeVar("T")


def read_shards(stores: Sequence[Store], output: Output, read: Callable[[Store], T]) -> tuple[list[T], list[str]]:
    """Return what each shard has, and the names of those that are away, which is said.

    Raises StoreError if none answers, or one refuses.
    """
    found: list[T] = []
    failures: dict[str, StoreError] = {}
    for store in stores:
        try:
            found.append(read(store))
        except StoreError as error:
            if not is_outage(error):
                raise
            failures[store.name] = error
    if not found:
        raise next(iter(failures.values()))
    for name, failure in failures.items():
        output.error(f"the shard {name} is left out: {failure}")
    return found, list(failures)


def sharded_table(
    output: Output, stores: Sequence[Store], columns: Sequence[Column], rows: Iterable[tuple[str, Sequence[str]]]
) -> None:
    """Print a table.  rows: each with the name of its shard before it, the second column where there are several."""
    if len(stores) > 1:
        columns = (columns[0], SHARD_COLUMN, *columns[1:])
        output.table(columns, [(row[0], shard, *row[1:]) for shard, row in rows], indent=0)
    else:
        output.table(columns, [row for _, row in rows], indent=0)


def sharded_document(stores: Sequence[Store], document: Mapping[str, Any], **members: Any) -> dict[str, Any]:
    """Return a document, with these members where there are several shards."""
    return {**document, **(members if len(stores) > 1 else {})}
