"""Due times: when a process wakes before its next look, because it knows that something becomes due.  No I/O.

A poll learns the time of the next entry of each source.  The processes that have polled last know the same time, and
one of them would do.  So their number costs Redis little, by three rules:
- spread     with others in the fleet, a process wakes at a random moment within SPREAD_SECONDS of that time
- back off   each wake in vain doubles the spread, until a wake finds something or the next look comes; so one process
             soon does the work, and the others wake in vain about a dozen times between two looks
- gather     two wakes are GATHER_SECONDS apart at least, so entries that are due at about the same time share one
What a process itself puts into a source, a retry or a deferred job, it knows without a poll.  What it has noted before
another process has polled, that one knows: it forgets it.
"""

from __future__ import annotations

from math import inf
from random import Random
from typing import NamedTuple

__all__ = ["GATHER_SECONDS", "SPREAD_SECONDS", "DueTimes"]

SPREAD_SECONDS = 0.05  # in which the processes of a fleet wake for the same entry
GATHER_SECONDS = 0.02  # between two wakes of a process
MARGIN_SECONDS = 0.001  # after a due time, so that a wake does not come a moment before it


class Noted(NamedTuple):
    """A due time, and when this process has taken note of it."""

    at: float
    since: float


class DueTimes:
    """The due times that one poller knows.  All times are monotonic seconds.  One thread."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._noted: dict[str, Noted] = {}
        self._least_spread = self._spread = 0.0
        self._woke_at = -inf

    def begin(self, processes: int) -> None:
        """Begin anew after a look.  processes: in the fleet, this one included."""
        self._least_spread = self._spread = SPREAD_SECONDS if processes > 1 else 0.0

    def forget(self, key: str, before: float = inf) -> None:
        """Forget what was noted about a source before that moment: somebody has polled it since."""
        if key in self._noted and self._noted[key].since < before:
            del self._noted[key]

    def learn(self, key: str, at: float, now: float) -> None:
        """Take note of when the next entry of a source is due; inf for none."""
        self._noted[key] = Noted(at, now)

    def expect(self, key: str, at: float, now: float) -> None:
        """Take note that this process writes an entry, which is due at that time."""
        known = self._noted.get(key)
        self._noted[key] = Noted(at if known is None else min(at, known.at), now)

    def wake_at(self) -> float:
        """Return when to wake; inf if nothing is known.  Each call draws anew."""
        first = min((noted.at for noted in self._noted.values()), default=inf)
        at = first + MARGIN_SECONDS + self._rng.random() * self._spread
        return max(at, self._woke_at + GATHER_SECONDS)

    def take_due(self, now: float) -> list[str]:
        """Return the sources that have something due, and forget their times."""
        due = [key for key, noted in self._noted.items() if noted.at <= now]
        for key in due:
            del self._noted[key]
        return due

    def woke(self, now: float, *, in_vain: bool) -> None:
        """Take note of a wake.  in_vain: others had moved everything before."""
        self._woke_at = now
        self._spread = max(2 * self._spread, SPREAD_SECONDS) if in_vain else self._least_spread
