"""Fixtures of the properties: the seed.  No law is broken by a machine that has other things to do."""

from __future__ import annotations

import os
from random import SystemRandom

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def seed() -> str:
    """What all choices follow from; drawn, or repeated with KIQ_SEED."""
    return os.environ.get("KIQ_SEED") or str(SystemRandom().randrange(10**9))
