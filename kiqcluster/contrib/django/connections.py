"""Connections: what Django does with database connections around a request is done around a job.

Before: connections that are too old or broken are closed, and the list of queries (DEBUG) is emptied.  After: the
same, so that with CONN_MAX_AGE = 0 a connection is closed, and one of a pool is returned.  In a transaction, as in
those around tests, nothing is closed.
Runs in: threads of jobs, as server middleware; for async jobs in the thread of sync_to_async, which has their
connections.  That is one thread for all async jobs of a process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries

from kiqcluster.process.runtime import Run
from kiqcluster.sidekiq.outcome import Outcome

__all__ = ["Connections"]


class Connections:
    """Server middleware."""

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        if not run.identity:  # no worker: perform_inline, or a test, whose connections are the caller's
            return proceed()
        _renew()
        try:
            return proceed()
        finally:
            close_old_connections()

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        """Do the same around an async job."""
        if not run.identity:
            return await proceed()
        await sync_to_async(_renew, thread_sensitive=True)()
        try:
            return await proceed()
        finally:
            await sync_to_async(close_old_connections, thread_sensitive=True)()


def _renew() -> None:
    reset_queries()
    close_old_connections()
