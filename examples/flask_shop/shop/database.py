"""One connection for each application context: for each request, and for each job."""

from __future__ import annotations

import sqlite3

from flask import Flask, current_app, g

SCHEMA = "CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, mail TEXT, receipt_sent INTEGER DEFAULT 0)"


def connection() -> sqlite3.Connection:
    """Return the connection of this context; opened at first use."""
    if "database" not in g:
        g.database = sqlite3.connect(current_app.config["DATABASE"])
    return g.database


def close(_error: BaseException | None) -> None:
    if "database" in g:
        g.pop("database").close()


def init_app(app: Flask) -> None:
    app.teardown_appcontext(close)
    with app.app_context(), connection() as database:
        database.execute(SCHEMA)
