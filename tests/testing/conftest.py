"""Fixtures of the kit's tests: a set-up whose store never connects, so that a push that gets past the kit fails."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store


@pytest.fixture
def setup(registry: Registry) -> Iterator[Setup]:
    """A set-up of the test's own, with every setting at its default."""
    with using_setup(Setup(config=Config(), store=Store("redis://127.0.0.1:1/0"))) as setup:
        yield setup
