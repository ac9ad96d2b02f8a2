"""Fixtures of the tests with one process and a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.kit import RedisServer
from tests.redis.kiqctl import Kiqctl


@pytest.fixture
def kiqctl(store: Store, redis_server: RedisServer) -> Kiqctl:
    """Run kiqctl on an empty database."""
    return Kiqctl(redis_server.url)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """An engine of SQLAlchemy, with the tables of outbox_stage, which are empty."""
    from tests.redis.outbox_stage import running_database  # few tests need SQLAlchemy

    is_sqlite = request.param == "sqlite"
    with running_database(
        f"sqlite:///{tmp_path / 'app.db'}" if is_sqlite else request.getfixturevalue("postgres")
    ) as engine:
        yield engine
