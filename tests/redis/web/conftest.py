"""Fixtures of the web pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kiqcluster.store import Store
from tests.redis.web import fleet
from tests.redis.web.site import Site


@pytest.fixture(autouse=True)
def _end_supervisors() -> Iterator[None]:
    with fleet.ended():
        yield


@pytest.fixture
def site(store: Store, setup: object) -> Site:
    """A browser of an administrator."""
    return Site(store)
