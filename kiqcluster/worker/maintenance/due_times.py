"""Due times: when a process wakes before its next look, because it knows that something becomes due.  No I/O.

A poll learns the time of the next entry of its source, and each wake that of the one after it.  The process follows the
source until another one has polled it: that one knows all that was written before.  So two or three processes follow a
source at a time, and one of them would do.  Their number costs Redis little, by three rules:
- spread     with others in the fleet, a process wakes at a random moment within SPREAD_SECONDS of that time
- back off   each wake in vain doubles the spread, until a wake finds something or the next look comes
- gather     two wakes are GATHER_SECONDS apart at least, so entries that are due at about the same time share one
What a process itself puts into a source, a retry or a deferred job, it knows without a poll.  It may be the only one:
it wakes for that with the smallest spread, though it does not follow the source.
"""

from __future__ import annotations

from math import ceil, inf
from random import Random
from typing import NamedTuple

__all__ = ["GATHER_SECONDS", "MAX_SPREAD_SECONDS", "SPREAD_SECONDS", "DueTimes", "gathered"]

SPREAD_SECONDS, MAX_SPREAD_SECONDS = 0.05, 0.4  # in which the processes of a fleet wake for the same entry
GATHER_SECONDS = 0.02  # between two wakes of a process
MARGIN_SECONDS = 0.001  # after a due time, so that a wake does not come a moment before it


def gathered(at: float) -> float:
    """Return the moment at which an entry is woken for together with others that are due a little earlier."""
    return ceil(at / GATHER_SECONDS) * GATHER_SECONDS


class Next(NamedTuple):
    """When the next entry of a source is due, and since when this process follows it."""

    at: float
    since: float


class DueTimes:
    """The due times that one poller knows.  All times are monotonic seconds.  One thread."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._followed: dict[str, Next] = {}
        self._own: set[tuple[str, float]] = set()  # source, and when an entry is due that this process has written
        self._least_spread = self._spread = 0.0
        self._woke_at = -inf

    def begin(self, processes: int) -> None:
        """Begin anew after a look.  processes: in the fleet, this one included."""
        self._least_spread = self._spread = SPREAD_SECONDS if processes > 1 else 0.0

    def follow(self, key: str, now: float) -> None:
        """Follow a source, which this process polls."""
        self._followed[key] = Next(inf, now)

    def leave(self, key: str, polled_at: float) -> None:
        """Leave a source to another process, which has polled it at that moment."""
        if key in self._followed and self._followed[key].since < polled_at:
            del self._followed[key]

    def learn(self, key: str, at: float) -> None:
        """Take note of when the next entry of a source is due, inf for none; nothing if it is not followed."""
        if key in self._followed:
            self._followed[key] = self._followed[key]._replace(at=at)

    def expect(self, key: str, at: float) -> None:
        """Take note that this process has written an entry, which is due at that time (gathered)."""
        self._own.add((key, at))

    def wake_at(self) -> float:
        """Return when to wake; inf if nothing is known.  Each call draws anew."""
        chance = self._rng.random()
        followed = min((each.at for each in self._followed.values()), default=inf) + chance * self._spread
        own = min((at for _, at in self._own), default=inf) + chance * self._least_spread
        return max(min(followed, own) + MARGIN_SECONDS, self._woke_at + GATHER_SECONDS)

    def take_due(self, now: float) -> list[str]:
        """Return the sources that have something due, and forget its time."""
        due = [key for key, each in self._followed.items() if each.at <= now]
        for key in due:
            self.learn(key, inf)
        own = {(key, at) for key, at in self._own if at <= now}
        self._own -= own
        return list(dict.fromkeys([*due, *(key for key, _ in own)]))

    def woke(self, now: float, *, in_vain: bool) -> None:
        """Take note of a wake.  in_vain: others had moved everything before."""
        self._woke_at = now
        longer = min(max(2 * self._spread, SPREAD_SECONDS), MAX_SPREAD_SECONDS)
        self._spread = longer if in_vain else self._least_spread
