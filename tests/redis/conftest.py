"""Fixtures of the tests with one process and a real Redis."""

from __future__ import annotations

import pytest

from kiqcluster.store import Store
from tests.kit import RedisServer
from tests.redis.kiqctl import Kiqctl


@pytest.fixture
def kiqctl(store: Store, redis_server: RedisServer) -> Kiqctl:
    """Run kiqctl on an empty database."""
    return Kiqctl(redis_server.url)
