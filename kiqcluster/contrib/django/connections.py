"""Connections: what Django does with database connections around a request is done around a job.

Before: connections that are too old or broken are closed, and the list of queries (DEBUG) is emptied.  After: the
same, so that with CONN_MAX_AGE = 0 a connection is closed, and one of a pool is returned.  In a transaction, as in
those around tests, nothing is closed.
A job may leave a block `atomic` open, in a generator that something keeps.  Then Django can neither use nor close the
connection of this thread, so it is thrown away: what the job has written there is rolled back, and the job is named.
An error of this end is reported, and is not the job's.
Runs in: threads of jobs, as server middleware; for async jobs in the thread of sync_to_async, which has their
connections.  That is one thread for all async jobs of a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from kiqcluster.contrib.run_errors import SuppressErrors
from kiqcluster.errors import as_exception
from kiqcluster.process.boundary.calls import guarded
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.sidekiq.outcome import Outcome

__all__ = ["Connections"]

SUPPRESS = SuppressErrors("django")


class Connections:
    """Server middleware."""

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        if not run.identity:  # no worker: perform_inline, or a test, whose connections are the caller's
            return proceed()
        _renew()
        try:
            return proceed()
        finally:
            with SUPPRESS:
                _end(run)

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Do the same around an async job."""
        if not run.identity:
            return await proceed()
        await sync_to_async(_renew, thread_sensitive=True)()
        try:
            return await proceed()
        finally:
            with SUPPRESS:
                await sync_to_async(_end, thread_sensitive=True)(run)


def _end(run: Run) -> None:
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            _throw_away(connection, run)
    close_old_connections()


def _throw_away(connection: BaseDatabaseWrapper, run: Run) -> None:
    error = TransactionManagementError(
        f"{run.job.name} {run.jid} has left a transaction of the database {connection.alias!r} open: it is rolled "
        "back, and its connection closed. End the block atomic in the job; a generator that is kept keeps it open"
    )
    context = {"context": "django", "job": run.payload, "queue": run.queue}
    del connections[connection.alias]  # the next one to ask gets another
    setup = current_setup()
    guarded(lambda raised: setup.notify_error_handlers(as_exception(raised), context), connection.close)
    setup.notify_error_handlers(error, context)


def _renew() -> None:
    reset_queries()
    close_old_connections()
