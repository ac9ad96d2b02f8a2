"""Inbox: `once()` records the run in the transaction of the job, so that a second run does nothing.

    with transaction.atomic():
        if not once():
            return
        Payment.objects.create(order_id=order_id)

Two runs at once: as in contrib/sqlalchemy/inbox.
"""

from __future__ import annotations

from django.db import DEFAULT_DB_ALIAS, connections

from kiqcluster.contrib.django.models import InboxKey
from kiqcluster.contrib.outbox.inbox import once_key
from kiqcluster.contrib.outbox.rows import DATABASES
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock

__all__ = ["once"]


def once(key: str | None = None, *, using: str = DEFAULT_DB_ALIAS) -> bool:
    """Record that this job takes effect in this transaction; return False if it has done so before.

    key: what is recorded; None means the jid of the running job.  using: alias of the database.  Call it before
    anything else in the transaction.  One statement.  Raises UsageError, also outside of a transaction; DatabaseError.
    """
    name, connection = once_key(key), connections[using]
    if connection.vendor not in DATABASES:
        raise UsageError(f"outbox and once work with PostgreSQL and SQLite, not with {connection.vendor}")
    if not connection.in_atomic_block:
        raise UsageError("once() belongs into a transaction: call it in `with transaction.atomic():`")
    table = connection.ops.quote_name(InboxKey._meta.db_table)
    statement = f"INSERT INTO {table} (key, recorded_at) VALUES (%s, %s) ON CONFLICT DO NOTHING"  # noqa: S608  # ours
    with connection.cursor() as cursor:
        cursor.execute(statement, [name, SystemClock.now()])
        return bool(cursor.rowcount == 1)
