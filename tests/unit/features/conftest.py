"""Fixtures of the features: the two ends of a job, its push and its run."""

from __future__ import annotations

import pytest

from kiqcluster.application.registry import Registry
from kiqcluster.process.runtime import Setup
from tests.unit.features.test_size_limiter import Written
from tests.unit.worker.run.test_execution import Worker


@pytest.fixture
def worker(setup: Setup, registry: Registry) -> Worker:
    """A worker without jobs; the test declares them."""
    return Worker(setup, registry)


@pytest.fixture
def written(setup: Setup) -> Written:
    """All pushes of the test, in place of Redis."""
    setup.delivery = written = Written()
    return written
