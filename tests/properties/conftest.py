"""Fixtures of the properties: the seed."""

from __future__ import annotations

import os
from random import SystemRandom

import pytest


@pytest.fixture(scope="session")
def seed() -> str:
    """What all choices follow from; drawn, or repeated with KIQ_SEED."""
    return os.environ.get("KIQ_SEED") or str(SystemRandom().randrange(10**9))
