"""Fixtures of the unit tests: a set-up whose store never connects, the logger."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.process.config import Config
from kiqcluster.process.logs import log
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.store import Store


@pytest.fixture
def setup(registry: Registry) -> Iterator[Setup]:
    """A set-up of the test's own, with every setting at its default."""
    with using_setup(Setup(config=Config(), store=Store("redis://127.0.0.1:1/0"))) as setup:
        yield setup


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Our logger, put back afterwards as it was."""
    ours = log.LOGGER
    before = (ours.handlers[:], ours.level, ours.propagate, type(ours))
    yield ours
    ours.handlers[:], level, ours.propagate, ours.__class__ = before
    ours.setLevel(level)


@pytest.fixture(autouse=True)
def _own_registry(registry: Registry) -> None:
    """Jobs that a test declares have names of their own, whatever other tests of this process have imported."""
