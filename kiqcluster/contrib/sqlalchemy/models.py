"""The two tables: `kiq_outbox` and `kiq_inbox`.

They have metadata of their own: `metadata.create_all(engine)`, or `target_metadata = [Base.metadata, metadata]` in
the env.py of Alembic, whose autogenerate then finds them.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session

from kiqcluster.contrib.outbox.rows import DATABASES
from kiqcluster.errors import UsageError

__all__ = [
    "InboxKey",
    "OutboxJob",
    "begin_on_sqlite",
    "bind_of",
    "check_savepoint",
    "check_transactional",
    "metadata",
    "plain_session",
]

metadata = sql.MetaData()
LEGACY_TRANSACTION_CONTROL = -1  # of sqlite3, which has the name from Python 3.12 on


class _Base(DeclarativeBase):
    metadata = metadata


class OutboxJob(_Base):
    """A job that waits for its push (contrib/outbox/rows).  retry_at: no earlier push, epoch seconds."""

    __tablename__ = "kiq_outbox"

    id: Mapped[int] = mapped_column(sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True)
    jid: Mapped[str] = mapped_column(sql.Text)
    queue: Mapped[str] = mapped_column(sql.Text)
    run_at: Mapped[float | None] = mapped_column(sql.Double)
    payload: Mapped[bytes] = mapped_column(sql.LargeBinary)
    guards: Mapped[str] = mapped_column(sql.Text)
    shard: Mapped[str] = mapped_column(sql.Text)
    wait_replicas: Mapped[int] = mapped_column(sql.Integer)
    created_at: Mapped[float] = mapped_column(sql.Double)
    retry_at: Mapped[float] = mapped_column(sql.Double)
    problem: Mapped[str] = mapped_column(sql.Text)


class InboxKey(_Base):
    """A run that has taken effect.  recorded_at: epoch seconds."""

    __tablename__ = "kiq_inbox"

    key: Mapped[str] = mapped_column(sql.String(255), primary_key=True)
    recorded_at: Mapped[float] = mapped_column(sql.Double, index=True)


def plain_session(session: Any) -> Any:
    """Return the Session behind a scoped or an async one; a connection as it is.  Raises UsageError."""
    if isinstance(session, scoped_session):
        return session()
    registry = getattr(session, "registry", None)  # async_scoped_session
    session = registry() if callable(registry) else session
    plain = getattr(session, "sync_session", session)
    if not isinstance(plain, Session | sql.Connection):
        raise UsageError(f"a session or a connection of SQLAlchemy is needed here, not {session!r}")
    return plain


def bind_of(session: Session, table: type[DeclarativeBase]) -> sql.Engine | sql.Connection:
    """Return the database of a session that has this table.  Raises UsageError if the session knows none."""
    try:
        return session.get_bind(table)
    except UnboundExecutionError as error:
        raise UsageError(
            f"this session knows no database for {table.__tablename__}; give it one for all tables, "
            "sessionmaker(engine), or add OutboxJob and InboxKey to binds, both of kiqcluster.contrib.sqlalchemy: "
            "sessionmaker(binds={Base: engine, OutboxJob: engine, InboxKey: engine})"
        ) from error


def check_transactional(engine: Any) -> None:
    """Raise UsageError for a database that is not supported, or without transactions.

    engine: an Engine or a Connection.
    """
    if engine.dialect.name not in DATABASES:
        raise UsageError(f"outbox and once work with PostgreSQL and SQLite, not with {engine.dialect.name}")
    level = engine.get_execution_options().get("isolation_level")
    if level is None:
        level = getattr(engine.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        raise UsageError(
            "this connection commits each statement by itself (isolation_level AUTOCOMMIT), so that nothing could be "
            "part of a transaction; use an engine without that level"
        )


# Savepoints on SQLite


def begin_on_sqlite(engine: sql.Engine) -> sql.Engine:
    """Have transactions on SQLite begin where they should, as savepoints need it; return the engine.

    Python's sqlite3 begins a transaction at its first change, and a savepoint before that is a transaction of its
    own: its end would commit.  Call it before the engine is used.
    """
    event.listen(engine, "connect", _leave_transactions_alone)
    event.listen(engine, "begin", _begin)
    return engine


def check_savepoint(session: Session | sql.Connection, table: type[DeclarativeBase]) -> None:
    """Raise UsageError in a savepoint on SQLite whose end would commit.  table: that is written."""
    if not session.in_nested_transaction():
        return
    bind = bind_of(session, table) if isinstance(session, Session) else session
    if bind.dialect.name != "sqlite" or bind.dialect.is_async:
        return
    connection = session if isinstance(session, sql.Connection) else session.connection({"mapper": table})
    driver: Any = connection.connection.dbapi_connection
    is_legacy = getattr(driver, "autocommit", LEGACY_TRANSACTION_CONTROL) == LEGACY_TRANSACTION_CONTROL
    if is_legacy and driver.isolation_level is not None:
        raise UsageError(
            "a savepoint on SQLite may commit by itself, because the driver begins transactions too late; "
            "call kiqcluster.contrib.sqlalchemy.begin_on_sqlite(engine) once, where the engine is created"
        )


def _leave_transactions_alone(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def _begin(connection: sql.Connection) -> None:
    connection.exec_driver_sql("BEGIN")
