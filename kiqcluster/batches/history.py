"""History: batches and their jobs in a database, for queries and for longer than Redis keeps them (extra `sql`).

BatchHistory    copies what has changed of batches with `history=True`, and reads it
MIGRATIONS     the changes of the schema, in order; each database knows how many it has

No job waits for the database: Redis remembers which jobs have changed, and forgets that only once they are copied.
While the database is away, changes wait in Redis.  Copies may run at once: each row has the time of Redis at which it
was read, and is never replaced by an older one.
SQLite and PostgreSQL, by SQLAlchemy Core; `copy` needs no more than a connection.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import replace
from typing import Any

import sqlalchemy as sql
from sqlalchemy.dialects import postgresql, sqlite

from kiqcluster.batches.records import STATUS_FIELDS, BatchChange, BatchJob, BatchStatus, read_job, read_status
from kiqcluster.errors import UsageError
from kiqcluster.process.runtime import current_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.store import Store
from kiqcluster.store import batches as stored
from kiqcluster.store.batches import Changes, StoredJob

__all__ = ["MIGRATIONS", "BatchHistory"]

BATCH_SIZE = 1_000  # jobs of one transaction
MAX_BATCHES = 100  # that are looked at together
MIGRATION_LOCK = 0x6B69715F  # of PostgreSQL: two programs that migrate at once
INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}

METADATA = sql.MetaData()
SCHEMA = sql.Table("kiq_schema", METADATA, sql.Column("version", sql.Integer, nullable=False))
BATCHES = sql.Table(
    "kiq_batches",
    METADATA,
    sql.Column("id", sql.Text, primary_key=True),
    sql.Column("worker_name", sql.Text, nullable=False),
    sql.Column("name", sql.Text, nullable=False),
    sql.Column("parent_id", sql.Text, nullable=False),
    *(sql.Column(name, sql.Integer, nullable=False) for name in ("total", "enqueue", "working", "finish", "failed")),
    *(sql.Column(name, sql.Integer, nullable=False) for name in ("error", "cancelled", "expected", "open_children")),
    sql.Column("created_at", sql.Double, nullable=False),
    *(sql.Column(name, sql.Double) for name in ("completed_at", "succeeded_at", "cancelled_at")),
    sql.Column("is_open", sql.Boolean, nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
    sql.Column("problem", sql.Text, nullable=False),
    sql.Column("read_at", sql.BigInteger, nullable=False),
)
JOBS = sql.Table(
    "kiq_batch_jobs",
    METADATA,
    sql.Column("job_id", sql.Text, primary_key=True),
    sql.Column("batch_id", sql.Text, nullable=False),
    sql.Column("status", sql.Text, nullable=False),
    sql.Column("params", sql.Text),
    sql.Column("added_messages", sql.Text, nullable=False),
    sql.Column("read_at", sql.BigInteger, nullable=False),
    sql.Column("worker_name", sql.Text),  # as BatchJob.worker
    sql.Column("changes", sql.Text, nullable=False),  # of its status, as BatchJob.as_json has them
)
COLUMN_OF = {"worker": "worker_name", "parent": "parent_id"}  # of a field of BatchStatus, where it has another name

_COUNTS = ("total", "enqueue", "working", "finish", "failed", "error", "cancelled", "expected", "open_children")
# Statements of each version.  A version that was released never changes: a change of the schema is another version.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE kiq_batches (id TEXT PRIMARY KEY, worker_name TEXT NOT NULL, name TEXT NOT NULL, "
        f"parent_id TEXT NOT NULL, {', '.join(f'{name} INTEGER NOT NULL' for name in _COUNTS)}, "
        "created_at DOUBLE PRECISION NOT NULL, completed_at DOUBLE PRECISION, succeeded_at DOUBLE PRECISION, "
        "cancelled_at DOUBLE PRECISION, is_open BOOLEAN NOT NULL, reason TEXT NOT NULL, problem TEXT NOT NULL, "
        "read_at BIGINT NOT NULL)",
        "CREATE TABLE kiq_batch_jobs (job_id TEXT PRIMARY KEY, batch_id TEXT NOT NULL, status TEXT NOT NULL, "
        "params TEXT, added_messages TEXT NOT NULL, read_at BIGINT NOT NULL, worker_name TEXT, changes TEXT NOT NULL)",
        "CREATE INDEX kiq_jobs_of_batch ON kiq_batch_jobs (batch_id, status)",
        "CREATE INDEX kiq_batches_by_time ON kiq_batches (created_at)",
    ),
)


class BatchHistory:
    """Batches in a database.  database: a URL (`sqlite:///batches.db`, `postgresql+psycopg://…`), or an engine."""

    def __init__(self, database: str | sql.Engine) -> None:
        self._engine = sql.create_engine(database) if isinstance(database, str) else database
        kind = self._engine.dialect.name
        if kind not in INSERTS:
            raise UsageError(f"the history of batches goes to SQLite or PostgreSQL, not to {kind}")
        self._insert = INSERTS[kind]
        self._is_migrated = False

    def migrate(self, migrations: Sequence[Sequence[str]] = MIGRATIONS) -> int:
        """Bring the schema up to date; return its version.  Raises UsageError for a newer one; SQLAlchemyError.

        `copy` does so at its first call.  Two programs that migrate at once do it once.
        """
        with self._engine.begin() as connection:
            if self._engine.dialect.name == "postgresql":
                connection.execute(sql.select(sql.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            else:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.execute(sql.schema.CreateTable(SCHEMA, if_not_exists=True))
            version = connection.scalar(sql.select(sql.func.max(SCHEMA.c.version))) or 0
            if version > len(migrations):
                raise UsageError(
                    f"the tables are of version {version}, this release knows {len(migrations)}; update it"
                )
            for number, statements in enumerate(migrations[version:], version + 1):
                for statement in statements:
                    connection.exec_driver_sql(statement)
                connection.execute(SCHEMA.insert().values(version=number))
        return len(migrations)

    def copy(self, *, store: Store | None = None) -> int:
        """Copy what has changed since the last copy; return how many jobs and batches were written.

        Three round trips to Redis and one transaction for each 1 000 jobs.  Raises StoreError; SQLAlchemyError, after
        which the changes are still known, and the next call copies them.
        """
        if not self._is_migrated:
            self.migrate()
            self._is_migrated = True
        store, written, skipped = store or current_setup().current_store(), 0, 0
        while batches := stored.read_changed_batches(store, skipped, MAX_BATCHES):
            for identifier, score in batches:
                count, is_done = self._copy_batch(store, identifier, score)
                written += count
                skipped += not is_done  # it has changed meanwhile: the next call has it
        return written

    def batches(self, *, name: str | None = None, worker: str | None = None, limit: int = 100) -> list[BatchStatus]:
        """Return copied batches without their failures, the youngest first; of this name, with jobs of this class."""
        query = sql.select(BATCHES).order_by(BATCHES.c.created_at.desc()).limit(limit)
        if name is not None:
            query = query.where(BATCHES.c.name == name)
        if worker is not None:
            query = query.where(BATCHES.c.worker_name == worker)
        with self._engine.connect() as connection:
            return [_status(row) for row in connection.execute(query).mappings()]

    def jobs(self, batch: str, status: str | None = None) -> Iterator[BatchJob]:
        """Yield the copied jobs of a batch in a status, None for all."""
        query = sql.select(JOBS).where(JOBS.c.batch_id == batch)
        if status is not None:
            query = query.where(JOBS.c.status == status)
        with self._engine.connect() as connection:
            for row in connection.execute(query).mappings():
                params, messages = row["params"], row["added_messages"][1:-1]
                raw = None if params is None else params.encode()
                job = read_job(StoredJob(row["job_id"], row["status"], raw, messages.encode()))
                changes = json.loads(row["changes"])
                yield replace(
                    job,
                    worker=row["worker_name"],
                    changes=tuple(BatchChange(each["status"], each["at"], tuple(each["messages"])) for each in changes),
                )

    def _copy_batch(self, store: Store, identifier: str, score: str) -> tuple[int, bool]:
        """Copy the changes of a batch; return how many rows were written, and whether these were all."""
        written = 0
        while True:
            changes = stored.read_changes(store, identifier, STATUS_FIELDS, BATCH_SIZE)
            self._write(identifier, changes)
            written += len(changes.jobs) + bool(changes.fields)
            is_done = stored.forget_changes(store, identifier, score, changes.jobs)
            if is_done or len(changes.jobs) < BATCH_SIZE:
                return written, is_done

    def _write(self, identifier: str, changes: Changes) -> None:
        if "created_at" not in changes.fields:
            return  # it has expired
        with self._engine.begin() as connection:
            status = read_status(identifier, changes.fields, ())
            self._upsert(connection, BATCHES, [_batch_row(status, changes.read_at)])
            if changes.jobs:
                rows = [_job_row(identifier, each, changes.read_at) for each in changes.jobs]
                self._upsert(connection, JOBS, rows)

    def _upsert(self, connection: sql.Connection, table: sql.Table, rows: Sequence[Mapping[str, Any]]) -> None:
        """Insert rows, or replace those that were read earlier."""
        statement = self._insert(table)
        (key,) = table.primary_key.columns
        changes = {column.name: statement.excluded[column.name] for column in table.columns if column is not key}
        is_older = table.c.read_at <= statement.excluded.read_at
        connection.execute(statement.on_conflict_do_update(index_elements=[key], set_=changes, where=is_older), rows)


def _batch_row(status: BatchStatus, read_at: int) -> dict[str, Any]:
    names = [field.name for field in fields_of(status) if field.name != "failures"]
    return {COLUMN_OF.get(name, name): getattr(status, name) for name in names} | {"read_at": read_at}


def _job_row(batch: str, job: StoredJob, read_at: int) -> dict[str, Any]:
    read = read_job(job)
    messages = ruby_json.encode(list(read.messages)).decode()
    return {
        "job_id": job.jid,
        "batch_id": batch,
        "status": job.status,
        "params": job.arguments.partition(b"\n")[0].decode(errors="replace") if job.arguments else None,
        "added_messages": messages,
        "read_at": read_at,
        "worker_name": read.worker,
        "changes": ruby_json.encode(read.as_json()["changes"]).decode(),
    }


def _status(row: Any) -> BatchStatus:
    names = [field.name for field in fields_of(BatchStatus) if field.name != "failures"]
    return BatchStatus(**{name: row[COLUMN_OF.get(name, name)] for name in names})
