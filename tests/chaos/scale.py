"""How large a scenario is: short in `make test`, full in `make chaos` (the environment variable KIQ_CHAOS)."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["FULL", "sized"]

T = TypeVar("T")
FULL = os.environ.get("KIQ_CHAOS") == "full"


def sized(short: T, full: T) -> T:
    """Return a scenario's figure for the size of this run."""
    return full if FULL else short
