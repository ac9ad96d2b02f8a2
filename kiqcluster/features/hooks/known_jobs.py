"""Known jobs: which features a job uses is found once for each class."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["remember"]

MAX_JOBS = 10_000  # whose features are kept
K = TypeVar("K")
V = TypeVar("V")


def remember(known: dict[K, V], key: K, found: V) -> V:
    """Keep which features a job uses, and return them; a process that makes definitions without end keeps some."""
    if len(known) >= MAX_JOBS:
        known.clear()
    known[key] = found
    return found
