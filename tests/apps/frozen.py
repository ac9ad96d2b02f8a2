"""Jobs that hold something while their process is frozen: places of limited capacity, the only place of equal jobs."""

from __future__ import annotations

from tests.apps.capacity import Drain, start
from tests.apps.deduplicated import alone

__all__ = ["Drain", "alone", "start"]
