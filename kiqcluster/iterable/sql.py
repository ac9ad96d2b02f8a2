"""Rows of SQL queries for `build_enumerator`, each with its cursor (SQLAlchemy: extra `sql`).

query_enumerator           row, value of its key
query_batches_enumerator   list of rows, value of the first one's key

The rows come in the order of a key, page by page, and each page is a query of its own: `WHERE key >= cursor ORDER BY
key LIMIT size`.  So no transaction and no cursor of the database is open while items are done, and a run that goes on
elsewhere begins at its row at once, however many were before.  Rows that are inserted or deleted meanwhile move no
other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, Row, Select
from sqlalchemy.sql.elements import ColumnElement

__all__ = ["query_batches_enumerator", "query_enumerator"]

PAGE_SIZE = 1_000
Key = int | str


def query_enumerator(
    engine: Engine, query: Select[Any], key: ColumnElement[Any], *, cursor: Key | None, page_size: int = PAGE_SIZE
) -> Iterator[tuple[Row[Any], Key]]:
    """Yield each row of a query with its key.

    query: without ORDER BY and LIMIT.  key: a column of it that is unique and has numbers or text, such as the primary
    key; it should have an index.  page_size: rows of one query.
    """
    label = _label(query, key)
    for rows, _ in query_batches_enumerator(engine, query, key, cursor=cursor, size=page_size):
        for row in rows:
            yield row, row._mapping[label]


def query_batches_enumerator(
    engine: Engine, query: Select[Any], key: ColumnElement[Any], *, cursor: Key | None, size: int = PAGE_SIZE
) -> Iterator[tuple[list[Row[Any]], Key]]:
    """Yield batches of rows with the key of their first row.  A batch is done again as a whole."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size={size!r} is not a number of rows; pass 1 or more")
    label, ordered = _label(query, key), query.order_by(key).limit(size)
    page = ordered if cursor is None else ordered.where(key >= cursor)
    while rows := _read(engine, page):
        first, last = rows[0]._mapping[label], rows[-1]._mapping[label]
        if not isinstance(first, Key):
            raise TypeError(f"{key} has values such as {first!r}, which are no cursors; take a key of numbers or text")
        yield rows, first
        if len(rows) < size:
            return
        page = ordered.where(key > last)


def _read(engine: Engine, page: Select[Any]) -> list[Row[Any]]:
    with engine.connect() as connection:
        return list(connection.execute(page))


def _label(query: Select[Any], key: ColumnElement[Any]) -> Any:
    """Return by what a row has the key.  Raises ValueError for a key that is none of the query's columns."""
    for column in query.selected_columns:
        if column is key or column.shares_lineage(key):
            return column
    raise ValueError(f"the query has no column {key}; select it as well, since its value is the cursor")
