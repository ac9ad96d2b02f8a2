"""Fencing: whether this process still holds the units that it runs, as far as it can know.

Others may recover a member that has not reached Redis for `recover_after`.  They count from its last beat that has
arrived.  So the process can tell by its own clock when that may happen, also while it is cut off from Redis.

1. begin      the process takes an identity; others now hold the units that it reserved under the one before
2. confirm    Redis has taken a beat of this identity
3. lose       Redis answers that the identity is not a member any more
4. is_fenced  jobs ask this, from any thread: lost, or not confirmed for so long that others may have its units

Never: waits, or talks to Redis.
"""

from __future__ import annotations

from math import inf

from kiqcluster.process.clock import Clock

__all__ = ["Fencing"]

SAFETY_MARGIN = 1 / 6  # of `recover_after`: the process calls itself fenced so much before others may recover it


class Fencing:
    """What is known about the membership of this process.

    _current: the identity, and the monotonic seconds before the latest beat that Redis has taken; replaced as a whole.
    """

    def __init__(self, clock: Clock, recover_after: float) -> None:
        self._clock = clock
        self._max_unconfirmed_seconds = recover_after * (1 - SAFETY_MARGIN)
        self._current: tuple[str, float] = ("", -inf)

    def begin(self, identity: str) -> None:
        """Set a new identity, before it joins."""
        self._current = (identity, self._clock.monotonic())

    def confirm(self, identity: str, asked: float) -> None:
        """Record that Redis has taken a beat that was sent at `asked`, monotonic seconds."""
        if self._current[0] == identity:
            self._current = (identity, asked)

    def lose(self, identity: str) -> None:
        """Record that an identity is not a member any more."""
        if self._current[0] == identity:
            self._current = (identity, -inf)

    def is_fenced(self, identity: str) -> bool:
        """Return whether others may run units that were reserved under an identity."""
        current, confirmed = self._current
        return identity != current or self._clock.monotonic() - confirmed > self._max_unconfirmed_seconds
