"""Due times: when the poller wakes before its next poll, because it knows that something becomes due.  No I/O.

A poll learns the time of the next entry of each source.  Every process that has polled meanwhile knows the same time,
and one of them would do.  So their number costs Redis little, by three rules:
- spread     with others in the fleet, a process wakes at a random moment within SPREAD_SECONDS of that time
- back off   each wake in vain doubles the spread, until a wake finds something or the next poll comes; so one process
             soon does the work, and the others wake in vain about a dozen times between two polls
- gather     two wakes are GATHER_SECONDS apart at least, so entries that are due at about the same time share one
The process that has just polled is perhaps the only one that knows a new time; its spread is the smallest again.
What a process itself puts into a source, a retry or a deferred job, it knows without a poll.
"""

from __future__ import annotations

from math import inf
from random import Random

__all__ = ["GATHER_SECONDS", "SPREAD_SECONDS", "DueTimes"]

SPREAD_SECONDS = 0.05  # in which the processes of a fleet wake for the same entry
GATHER_SECONDS = 0.02  # between two wakes of a process
MARGIN_SECONDS = 0.001  # after a due time, so that a wake does not come a moment before it


class DueTimes:
    """The due times that one poller knows.  All times are monotonic seconds.  One thread."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._at_by_key: dict[str, float] = {}
        self._least_spread = self._spread = 0.0
        self._woke_at = -inf

    def begin(self, processes: int) -> None:
        """Begin a poll, and forget the times of the one before.  processes: in the fleet, this one included."""
        self._at_by_key.clear()
        self._least_spread = self._spread = SPREAD_SECONDS if processes > 1 else 0.0

    def learn(self, key: str, at: float) -> None:
        """Take note of when the next entry of a source is due; inf for none."""
        self._at_by_key[key] = at

    def expect(self, key: str, at: float) -> None:
        """Take note that this process writes an entry, which is due at that time."""
        self._at_by_key[key] = min(at, self._at_by_key.get(key, inf))

    def wake_at(self) -> float:
        """Return when to wake; inf if nothing is known.  Each call draws anew."""
        at = min(self._at_by_key.values(), default=inf) + MARGIN_SECONDS + self._rng.random() * self._spread
        return max(at, self._woke_at + GATHER_SECONDS)

    def take_due(self, now: float) -> list[str]:
        """Return the sources that have something due, and forget their times."""
        due = [key for key, at in self._at_by_key.items() if at <= now]
        for key in due:
            del self._at_by_key[key]
        return due

    def woke(self, now: float, *, in_vain: bool) -> None:
        """Take note of a wake.  in_vain: others had moved everything before."""
        self._woke_at = now
        self._spread = max(2 * self._spread, SPREAD_SECONDS) if in_vain else self._least_spread
