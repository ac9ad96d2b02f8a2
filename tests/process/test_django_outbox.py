"""Outbox and inbox of Django, in a process of their own, for its settings are those of a process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql

from kiqcluster.contrib.sqlalchemy import metadata
from tests import forkserver
from tests.kit import ROOT, require_module
from tests.stage import Stage


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database without tables."""
    found = f"sqlite:///{tmp_path / 'app.db'}" if request.param == "sqlite" else request.getfixturevalue("postgres")
    engine = sql.create_engine(found)
    metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS django_migrations")
    engine.dispose()
    return str(found).replace("+psycopg", "")


def seen_by(application: str, url: str, stage: Stage) -> Any:
    """Run an application; return what it has seen."""
    environ = {**os.environ, "REDIS_URL": stage.redis.url}
    line = [sys.executable, "-m", f"tests.apps.{application}", url]
    done = forkserver.run(line, cwd=ROOT, env=environ, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_outbox_and_once(url: str, stage: Stage) -> None:
    assert seen_by("django_outbox", url, stage) == {
        "sources": ["outbox default"],
        "before the commit": [],
        "after the commit": [1, 2],
        "left to the relay": 2,
        "relayed": [1, 2, 5, 6],
        "refused": ["the payload is not JSON"],
        "retried": 1,
        "in_memory": [[7]],
        "once": [True, False, True],
        "outside": True,
        "at once": [False, True],
        "pruned": 2,
        "level": "read committed",
    }


def test_tasks_in_an_outbox(url: str, stage: Stage) -> None:
    require_module("django_tasks" if sys.version_info < (3, 12) else "django")

    said = seen_by("django_outbox_tasks", url, stage)

    assert [f"{promise}\n{reason}" for promise, reason in said.items() if reason] == []
    assert len(said) == 12
