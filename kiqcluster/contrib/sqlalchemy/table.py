"""Table: the relay's side of both tables.

PostgreSQL: rows are locked with SKIP LOCKED, so that relays share the work and none waits for another.
SQLite: it has one writer; a relay that has seen rows takes that place, and reads again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError, OperationalError, ProgrammingError

from kiqcluster.contrib.outbox.relay import NoTables, Summary
from kiqcluster.contrib.outbox.rows import Row
from kiqcluster.contrib.sqlalchemy.models import InboxKey, OutboxJob, check_transactional, metadata

__all__ = ["SqlTable"]

OUTBOX = OutboxJob.__table__
INBOX = InboxKey.__table__
REMEDY = "create them (metadata of kiqcluster.contrib.sqlalchemy), or do not call use_outbox for it"
COLUMNS = [OUTBOX.c[name] for name in Row.__dataclass_fields__]


class SqlBatch:
    """Locked rows."""

    def __init__(self, connection: sql.Connection, rows: Sequence[Row]) -> None:
        self._connection = connection
        self.rows = rows

    def delete(self, ids: Sequence[int]) -> None:
        self._connection.execute(sql.delete(OutboxJob).where(OUTBOX.c.id.in_(ids)))

    def mark(self, identifier: int, problem: str, retry_at: float) -> None:
        text = problem.replace("\0", "")  # PostgreSQL takes none
        update = sql.update(OutboxJob).where(OUTBOX.c.id == identifier)
        self._connection.execute(update.values(problem=text, retry_at=retry_at))


class SqlTable:
    def __init__(self, engine: sql.Engine, name: str = "default") -> None:
        check_transactional(engine)
        self.name = name
        self._is_sqlite = engine.dialect.name == "sqlite"
        # Of the relay alone: in a stricter level two relays would fail each other.
        self._engine = engine if self._is_sqlite else engine.execution_options(isolation_level="READ COMMITTED")

    @contextmanager
    def locked(
        self, limit: int, now: float, without_shards: Collection[str], ids: Sequence[int] | None
    ) -> Iterator[SqlBatch]:
        query = sql.select(*COLUMNS).where(OUTBOX.c.retry_at <= now).order_by(OUTBOX.c.id).limit(limit)
        if without_shards:
            query = query.where(OUTBOX.c.shard.not_in(without_shards))
        if ids is not None:
            query = query.where(OUTBOX.c.id.in_(ids))
        with self._explained(), self._engine.connect() as connection:
            if self._is_sqlite:
                is_empty = connection.execute(query.limit(1)).first() is None
                connection.rollback()  # a reader holds up the commits of others
                if is_empty:
                    yield SqlBatch(connection, [])
                    return
            with connection.begin():
                if self._is_sqlite:  # any UPDATE makes this transaction the writer
                    connection.execute(sql.update(OutboxJob).where(OUTBOX.c.id == -1).values(retry_at=0.0))
                rows = connection.execute(query.with_for_update(skip_locked=True))
                yield SqlBatch(connection, [Row(*row) for row in rows])

    def summary(self) -> Summary:
        refused = sql.func.count().filter(OUTBOX.c.problem != "")
        query = sql.select(sql.func.count(), refused, sql.func.min(OUTBOX.c.created_at))
        with self._explained(), self._engine.connect() as connection:
            return Summary(*connection.execute(query).one())

    def refused(self, limit: int) -> list[Row]:
        query = sql.select(*COLUMNS).where(OUTBOX.c.problem != "").order_by(OUTBOX.c.id).limit(limit)
        with self._explained(), self._engine.connect() as connection:
            return [Row(*row) for row in connection.execute(query)]

    def retry_refused(self) -> int:
        with self._explained(), self._engine.begin() as connection:
            update = sql.update(OutboxJob).where(OUTBOX.c.problem != "").values(retry_at=0.0)
            return connection.execute(update).rowcount

    def prune_inbox(self, before: float, limit: int) -> int:
        old = sql.select(INBOX.c.key).where(INBOX.c.recorded_at < before).limit(limit)
        with self._explained(), self._engine.begin() as connection:
            return connection.execute(sql.delete(InboxKey).where(INBOX.c.key.in_(old))).rowcount

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise NoTables for an error whose reason that is."""
        try:
            yield
        except (ProgrammingError, OperationalError) as error:
            if self._lacks_tables():
                raise NoTables(self.name, REMEDY) from error
            raise

    def _lacks_tables(self) -> bool:
        try:
            inspector = sql.inspect(self._engine)
            return not all(inspector.has_table(table.name) for table in metadata.tables.values())
        except DBAPIError:  # of a database that does not answer
            return False
