"""What the tests of outbox and inbox share: databases with the tables, and a table of effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sql
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from kiqcluster.contrib.sqlalchemy import OutboxJob, begin_on_sqlite, metadata
from kiqcluster.contrib.sqlalchemy.outbox import SENDERS

__all__ = ["Base", "Effect", "count", "fresh", "running_database"]


class Base(DeclarativeBase):
    pass


class Effect(Base):
    """A row of the application."""

    __tablename__ = "effects"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


def fresh(engine: sql.Engine) -> sql.Engine:
    """Return the engine once its database has empty tables."""
    for each in (metadata, Base.metadata):
        each.drop_all(engine)
        each.create_all(engine)
    return engine


@contextmanager
def running_database(url: str) -> Iterator[sql.Engine]:
    """Give a database with empty tables."""
    engine = sql.create_engine(url)
    if engine.dialect.name == "sqlite":
        begin_on_sqlite(engine)
    yield fresh(engine)
    for thread in SENDERS.pop(engine)._threads.values() if engine in SENDERS else ():
        thread.stop()
    engine.dispose()


def count(engine: sql.Engine, table: type[DeclarativeBase] = OutboxJob) -> int:
    with Session(engine) as session:
        return session.scalar(sql.select(sql.func.count()).select_from(table)) or 0
