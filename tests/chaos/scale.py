"""How large a scenario is: short in `make test`, full in `make chaos` (the environment variable KIQ_CHAOS)."""

from __future__ import annotations

import os
from typing import TypeVar

__all__ = ["FULL", "MOST_KILLS", "sized"]

T = TypeVar("T")
FULL = os.environ.get("KIQ_CHAOS") == "full"


def sized(short: T, full: T) -> T:
    """Return a scenario's figure for the size of this run."""
    return full if FULL else short


# In one test.  A busy machine does little between two kills: without this bound a test would not end there.
MOST_KILLS = sized(30, 400)
