"""Strategy: the one small interface between the threads that run jobs and the way in which they are fetched.

ReliableFetch (fetch.py) is the strategy; its conformance to this is checked by mypy where the launcher hands it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kiqcluster.store.engine import Settlement, Unit

__all__ = ["FetchStrategy"]


class FetchStrategy(Protocol):
    """What the manager and its processors need of a way to fetch."""

    def next(self, finished: Settlement | None = None) -> Unit | None:
        """Take an outcome in; return the next unit, or None when it is time to end.  Waits."""
        ...

    def hand_in(self, finished: Settlement) -> None:
        """Take an outcome in from a thread that asks for no other unit."""
        ...

    def tend(self, long_running: Iterable[str] = ()) -> float | None:
        """Settle what has waited long enough for company, give back what has waited too long for a processor.

        long_running: queues of units that have run for long.  Returns seconds until the next look, None for a poke.
        """
        ...

    def ring(self, queue: str | None = None) -> bool:
        """Say that there may be work (in a queue, or anywhere); return whether somebody will look."""
        ...

    def look(self) -> None:
        """Look whether there is work that no bell has told of, and ring if so."""
        ...

    def bounce(self, queues: Sequence[str]) -> None:
        """Put back what rang bells while nobody was idle."""
        ...

    def bells_wanted(self) -> list[str]:
        """Return the queues whose bells should be armed: none unless somebody is idle for want of units."""
        ...
