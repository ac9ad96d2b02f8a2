"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kiqcluster.store import Store
from tests.fake_supervisor import FakeSupervisor
from tests.kit import RedisServer
from tests.process.kiqctl import Kiqctl
from tests.process.releases import Releases


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    """A folder with one release, the current one."""
    releases = Releases(tmp_path)
    releases.deploy("1")
    return releases


@pytest.fixture
def kiqctl(store: Store, redis_server: RedisServer) -> Iterator[Kiqctl]:
    """Run kiqctl on an empty database; what still runs ends with the test."""
    running = Kiqctl(redis_server.url)
    yield running
    running.close()


@pytest.fixture
def fake_supervisor(store: Store) -> Iterator[Callable[..., FakeSupervisor]]:
    """Make fake supervisors: `fake_supervisor("app-1", workers=2)`."""
    made: list[FakeSupervisor] = []

    def make(*arguments: Any, **options: Any) -> FakeSupervisor:
        made.append(FakeSupervisor(store, *arguments, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
