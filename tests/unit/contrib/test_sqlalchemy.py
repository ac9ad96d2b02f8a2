"""contrib.sqlalchemy: what it needs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker

from kiqcluster.contrib.sqlalchemy import manage_sessions
from kiqcluster.contrib.sqlalchemy.sessions import job_scope
from kiqcluster.process.job_context import CURRENT_JOB
from kiqcluster.process.runtime import Setup
from tests.kit import ROOT

WITHOUT_GREENLET = """
import sys
sys.modules["greenlet"] = None  # as if it were not installed
import sqlalchemy, sqlalchemy.orm
from kiqcluster.contrib.sqlalchemy import manage_sessions, once
session = manage_sessions(sqlalchemy.orm.sessionmaker(sqlalchemy.create_engine("sqlite://")))
"""


def test_it_needs_no_greenlet() -> None:
    """SQLAlchemy 2.1 has it in an extra of its own, for async sessions."""
    subprocess.run([sys.executable, "-c", WITHOUT_GREENLET], cwd=ROOT, check=True)


@pytest.mark.parametrize("kind", [ConnectionError, SystemExit])
def test_an_async_job_that_is_done_stays_done_though_its_session_cannot_be_ended(
    setup: Setup, kind: type[BaseException]
) -> None:
    class Lost(AsyncSession):
        async def close(self) -> None:
            raise kind

    current = manage_sessions(async_scoped_session(async_sessionmaker(class_=Lost), scopefunc=job_scope))
    told: list[str] = []
    setup.error_handler(lambda error, context: told.append(context["context"]))

    async def note() -> Any:
        current()
        return "done"

    job: Any = SimpleNamespace(jid="1")
    (middleware,) = setup.server_middleware
    token = CURRENT_JOB.set(job)
    assert asyncio.run(middleware.acall(job, note)) == "done"
    CURRENT_JOB.reset(token)

    assert told == ["sqlalchemy"]
    assert not current.registry.registry, "nothing is kept of it"
