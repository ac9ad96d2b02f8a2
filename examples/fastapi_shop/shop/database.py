"""The orders, in SQLite."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

SCHEMA = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, mail TEXT, receipt_sent INTEGER DEFAULT 0)"


@contextmanager
def transaction() -> Iterator[sqlite3.Connection]:
    """Commit at the end of the block, roll back if it fails; each block has a connection of its own."""
    connection = sqlite3.connect(os.environ.get("SHOP_DATABASE", "shop.sqlite3"))
    try:
        with connection:
            connection.execute(SCHEMA)
            yield connection
    finally:
        connection.close()
