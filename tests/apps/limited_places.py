"""The places of the jobs in limited.py.  A test may import this: it puts no feature into force."""

from __future__ import annotations

SLOTS = "kiq:test:slots"
MAX_RUNNING_JOBS = 2
