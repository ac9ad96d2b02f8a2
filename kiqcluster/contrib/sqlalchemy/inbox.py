"""Inbox: `once(session)` records the run in the transaction of the job, so that a second run does nothing.

    with Session.begin() as session:
        if not once(session):
            return
        session.add(Payment(order_id=order_id))

Two runs of one job at once: the second waits in the INSERT until the first transaction has ended.  If that committed,
the second has False; if it rolled back, the record is gone as well, and the second goes on.  (In the isolation levels
REPEATABLE READ and SERIALIZABLE, PostgreSQL may end the second with an error instead; its retry has False.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session, scoped_session

from kiqcluster.contrib.outbox.inbox import once_key
from kiqcluster.contrib.sqlalchemy.models import InboxKey, bind_of, check_savepoint, check_transactional, plain_session
from kiqcluster.process.clock import SystemClock

if TYPE_CHECKING:  # it needs greenlet, which SQLAlchemy 2.1 does not install by itself
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

__all__ = ["aonce", "once"]

INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def once(session: Session | scoped_session[Any] | Connection, key: str | None = None) -> bool:
    """Record that this job takes effect in this transaction; return False if it has done so before.

    key: what is recorded; None means the jid of the running job.  Call it before anything else in the transaction.
    One statement.  Raises UsageError; SQLAlchemyError.
    """
    name, plain = once_key(key), plain_session(session)
    check_savepoint(plain, InboxKey)
    if isinstance(plain, Connection):
        return plain.execute(_insert(plain, name)).scalar() is not None
    statement = _insert(bind_of(plain, InboxKey), name)
    return plain.execute(statement, bind_arguments={"mapper": InboxKey}).scalar() is not None


async def aonce(session: AsyncSession | async_scoped_session[Any], key: str | None = None) -> bool:
    """Do the same in a coroutine."""
    name, plain = once_key(key), plain_session(session)
    statement = _insert(bind_of(plain, InboxKey), name)
    result: Any = await session.execute(statement, bind_arguments={"mapper": InboxKey})
    return result.scalar() is not None


def _insert(bind: Engine | Connection, key: str) -> Any:
    check_transactional(bind)
    statement = INSERTS[bind.dialect.name](InboxKey.__table__).values(key=key, recorded_at=SystemClock.now())
    # Drivers do not tell how many rows an INSERT has written; RETURNING does.
    return statement.on_conflict_do_nothing().returning(InboxKey.__table__.c.key)
