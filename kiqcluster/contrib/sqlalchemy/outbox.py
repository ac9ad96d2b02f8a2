"""Outbox: `outbox(session, job).enqueue(…)` writes the job into the transaction of the session.

1. add           the row is added to the session, and written with its next flush: no statement here
2. after commit  the sender pushes the rows that were committed, in a thread (contrib/outbox/sender)
3. relay         workers push the rows that are left (use_outbox)

With a connection instead of a session, 1 is an INSERT, and 2 is left to the relay.  So it is with an async engine,
which a thread cannot use; with an engine of `execution_options`, for an application may make one for each request; and
within a transaction of the connection to which the session is bound, as in tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload
from weakref import WeakKeyDictionary

import sqlalchemy as sql
from sqlalchemy import event
from sqlalchemy.engine.base import OptionEngine
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from kiqcluster.client.chains import Chain, HasPerform
from kiqcluster.contrib.outbox.metrics import publish
from kiqcluster.contrib.outbox.relay import INTERVAL_SECONDS, KEEP_INBOX, Relay
from kiqcluster.contrib.outbox.sender import Sender
from kiqcluster.contrib.outbox.verbs import Outbox, OutboxOfJob, enqueuer_of
from kiqcluster.contrib.sqlalchemy.models import OutboxJob, bind_of, check_savepoint, check_transactional, plain_session
from kiqcluster.contrib.sqlalchemy.table import SqlTable
from kiqcluster.errors import UsageError
from kiqcluster.job import Enqueuer
from kiqcluster.process.runtime import current_setup

if TYPE_CHECKING:  # it needs greenlet, which SQLAlchemy 2.1 does not install by itself
    from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session

    AnySession = Session | scoped_session[Any] | AsyncSession | async_scoped_session[Any] | sql.Connection

__all__ = ["outbox", "use_outbox"]

P = ParamSpec("P")
R = TypeVar("R")

INFO = "kiqcluster_outbox"  # key of Session.info: what has been added, and whether it was committed
SENDERS: WeakKeyDictionary[sql.Engine, Sender] = WeakKeyDictionary()


def use_outbox(
    engine: sql.Engine | str,
    *,
    name: str = "default",
    interval: float = INTERVAL_SECONDS,
    keep_inbox: timedelta | None = KEEP_INBOX,
) -> Relay:
    """Have the workers of this application relay the outbox of a database; call it where the jobs are declared.

    engine: not an async one; or a URL.  name: in metrics and messages.  interval: seconds; the fleet together looks so
    often for rows that were not pushed after their commit.  keep_inbox: for how long `once` remembers; None for ever.
    Called again for one name, it replaces what it did before.  Raises UsageError.
    """
    engine = sql.create_engine(engine) if isinstance(engine, str) else engine
    if not isinstance(engine, sql.Engine) or engine.dialect.is_async:
        raise UsageError(f"use_outbox takes an engine that is not async, or its URL, not {engine!r}")
    relay = Relay(SqlTable(engine, name), interval=interval, keep_inbox=keep_inbox, on_summary=publish)
    sources = current_setup().due_sources
    sources[:] = [*(source for source in sources if source.name != relay.name), relay]
    return relay


@overload
def outbox(session: AnySession, job: type[HasPerform[P, R]], *, push_after_commit: bool = ...) -> OutboxOfJob[P, R]: ...
@overload
def outbox(
    session: AnySession, job: Enqueuer[P, R] | Chain[P, R], *, push_after_commit: bool = ...
) -> OutboxOfJob[P, R]: ...
@overload
def outbox(session: AnySession, job: None = ..., *, push_after_commit: bool = ...) -> Outbox: ...
def outbox(session: AnySession, job: Any = None, *, push_after_commit: bool = True) -> Any:
    """Return the verbs of a job that write into the transaction of the session: enqueue, perform_in, perform_bulk, ….

    job: a job class or function, also with `.set(…)`, or a chain; None for `push` and `push_bulk` by items.
    push_after_commit: False leaves the push to the relay, for a process that cannot reach Redis.  Raises UsageError.
    """
    plain = plain_session(session)
    check_transactional(plain if isinstance(plain, sql.Connection) else bind_of(plain, OutboxJob))
    check_savepoint(plain, OutboxJob)
    write = partial(_insert, plain) if isinstance(plain, sql.Connection) else partial(_add, plain, push_after_commit)
    return Outbox(write) if job is None else OutboxOfJob(write, enqueuer_of(job))


def _insert(connection: sql.Connection, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sql.insert(OutboxJob), rows)


def _add(session: Session, push_after_commit: bool, rows: list[dict[str, Any]]) -> None:
    added = [OutboxJob(**row) for row in rows]
    session.add_all(added)
    if push_after_commit:
        _watch(session).rows += added


# After the commit


class Added:
    """Rows of the transaction of a session.  committed: their ids, from its commit to its end."""

    def __init__(self) -> None:
        self.rows: list[OutboxJob] = []
        self.committed: list[int] = []


def _watch(session: Session) -> Added:
    """Return what is kept of a session; from the first call on, its commits have their rows pushed."""
    added: Added | None = session.info.get(INFO)
    if added is None:
        added = session.info[INFO] = Added()
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_transaction_end", _after_transaction)
    return added


def _after_commit(session: Session) -> None:
    if session.in_nested_transaction():  # a savepoint, which the transaction may still roll back
        return
    added: Added = session.info[INFO]
    identities = [sql.inspect(row).identity for row in added.rows]
    added.committed = [identity[0] for identity in identities if identity is not None]  # None: rolled back


def _after_transaction(session: Session, transaction: SessionTransaction) -> None:
    if transaction.parent is not None:
        return
    added: Added = session.info[INFO]
    committed, added.committed, added.rows = added.committed, [], []
    if committed:  # by now the session has given its connection back
        _send(session, committed)


def _send(session: Session, ids: Sequence[int]) -> None:
    engine = session.get_bind(OutboxJob)
    if not isinstance(engine, sql.Engine) or isinstance(engine, OptionEngine):
        return
    if engine.dialect.is_async or _is_in_memory(engine):
        return
    sender = SENDERS.get(engine)
    if sender is None:
        sender = SENDERS.setdefault(engine, Sender(Relay(SqlTable(engine), keep_inbox=None)))
    sender.send(ids)


def _is_in_memory(engine: sql.Engine) -> bool:
    """Return whether each thread has a database of its own."""
    return engine.dialect.name == "sqlite" and engine.url.database in (None, "", ":memory:")
