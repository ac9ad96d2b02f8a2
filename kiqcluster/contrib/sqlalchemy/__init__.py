"""SQLAlchemy: jobs that are part of a transaction (`outbox`), runs that take effect once (`once`), sessions of jobs.

Read in this order:
models    the two tables, with metadata of their own
outbox    `outbox(session, job)`, `use_outbox(engine)`; what happens after a commit
table     the relay's side of the tables
inbox     `once(session)`
sessions  `manage_sessions(Session)`: each job ends the session that it has used
"""

from __future__ import annotations

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401
except ImportError as error:
    raise ImportError(
        "kiqcluster.contrib.sqlalchemy needs SQLAlchemy, which is not installed: pip install 'kiqcluster[sqlalchemy]', "
        "and the driver of your database"
    ) from error

from kiqcluster.contrib.sqlalchemy.inbox import aonce, once
from kiqcluster.contrib.sqlalchemy.models import InboxKey, OutboxJob, begin_on_sqlite, metadata
from kiqcluster.contrib.sqlalchemy.outbox import outbox, use_outbox
from kiqcluster.contrib.sqlalchemy.sessions import manage_sessions

__all__ = [
    "InboxKey",
    "OutboxJob",
    "aonce",
    "begin_on_sqlite",
    "manage_sessions",
    "metadata",
    "once",
    "outbox",
    "use_outbox",
]
