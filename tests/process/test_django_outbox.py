"""Outbox and inbox of Django, in a process of their own, for its settings are those of a process."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import sqlalchemy as sql

from kiqcluster.contrib.sqlalchemy import metadata
from tests import forkserver
from tests.kit import ROOT
from tests.stage import Stage


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_outbox_and_once(kind: str, request: pytest.FixtureRequest, stage: Stage, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'app.db'}" if kind == "sqlite" else request.getfixturevalue("postgres")
    engine = sql.create_engine(url)
    metadata.drop_all(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE IF EXISTS django_migrations")
    engine.dispose()

    line = [sys.executable, "-m", "tests.apps.django_outbox", url.replace("+psycopg", "")]
    environ = {**os.environ, "REDIS_URL": stage.redis.url}
    done = forkserver.run(line, cwd=ROOT, env=environ, timeout=100)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
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
