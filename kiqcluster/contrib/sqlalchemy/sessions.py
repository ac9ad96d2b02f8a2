"""Sessions: each job ends the session that it has used.

manage_sessions   server middleware: after each run it rolls back what was not committed, and removes the session
job_scope         of whom a session is: the run of a job, else the thread
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy.orm import Session, scoped_session, sessionmaker

from kiqcluster.contrib.run_errors import SuppressErrors
from kiqcluster.errors import UsageError
from kiqcluster.process.job_context import current_job
from kiqcluster.process.runtime import Run, current_setup
from kiqcluster.sidekiq.outcome import Outcome

__all__ = ["job_scope", "manage_sessions"]

S = TypeVar("S", bound=Session)

SUPPRESS = SuppressErrors("sqlalchemy")  # the database may be gone once the job is done


def job_scope() -> int:
    """Return whom a session belongs to: the job that runs in this thread or coroutine, else the thread."""
    running = current_job()
    return threading.get_ident() if running is None else id(running)


def manage_sessions(session: Any) -> Any:
    """Have each run give back its session at its end, rolled back unless it has committed; return the scoped session.

    session: a scoped_session or an async_scoped_session; of a sessionmaker one is made, with a session for each run.
    Call it where the application declares its jobs.  Raises UsageError.
    """
    if isinstance(session, sessionmaker):
        session = scoped_session(session, scopefunc=job_scope)
    if not isinstance(session, scoped_session) and not _is_async(session):
        raise UsageError(f"manage_sessions takes a scoped_session or a sessionmaker, not {session!r}")
    current_setup().server_middleware.prepend(EndSession(session))
    return session


class EndSession:
    """Server middleware.  The removal closes the session, which rolls back what was not committed.

    Where the removal fails, the session is dropped without it: the next job of this scope gets another one.
    perform_inline runs a job within the work of its caller, whose session goes on.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._is_async = _is_async(session)

    def __call__(self, run: Run, proceed: Callable[[], Outcome | None]) -> Outcome | None:
        if not _is_own(run) or self._is_async:
            return proceed()
        try:
            return proceed()
        finally:
            with self._removal():
                self._session.remove()

    async def acall(self, run: Run, proceed: Callable[[], Awaitable[Outcome | None]]) -> Outcome | None:
        if not _is_own(run):
            return await proceed()
        try:
            return await proceed()
        finally:
            with self._removal():
                if self._is_async:
                    await self._session.remove()
                else:
                    self._session.remove()

    @contextmanager
    def _removal(self) -> Iterator[None]:
        with SUPPRESS:
            try:
                yield
            finally:
                self._session.registry.clear()


def _is_async(session: Any) -> bool:
    """Return whether this is an async_scoped_session; its module needs greenlet, which is not there without one."""
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return module is not None and isinstance(session, module.async_scoped_session)


def _is_own(run: Run) -> bool:
    running = current_job()  # in perform_inline that of the caller, or none
    return running is not None and running.jid == run.jid
