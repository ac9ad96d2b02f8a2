"""Fixtures of the process tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from kiqcluster.store import Store
from tests.kit import RedisServer
from tests.process.kiqctl import Kiqctl
from tests.process.stage import Releases


@pytest.fixture
def application(tmp_path: Path) -> Callable[[str], str]:
    """Write an application of the test's own; returns what -r takes.  It has a job, or it would be refused."""

    def write(source: str) -> str:
        path = tmp_path / "application.py"
        path.write_text(f"from tests.apps.basic import record\n{dedent(source)}")
        return str(path)

    return write


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    """A place for releases; the first is deployed."""
    releases = Releases(tmp_path)
    releases.deploy("1")
    return releases


@pytest.fixture
def kiqctl(store: Store, redis_server: RedisServer) -> Iterator[Kiqctl]:
    """Run kiqctl on an empty database; what still runs ends with the test."""
    running = Kiqctl(redis_server.url)
    yield running
    running.close()
