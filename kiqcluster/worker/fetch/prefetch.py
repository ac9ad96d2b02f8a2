"""Pace: how many units a process reserves at once, and from which queues more than it has idle threads for.

Units are taken ahead of need, so that a round trip is shared by many; but no more than are done in a moment, and for
a while not from a queue whose jobs have made such units wait.
1. note       what has finished: how fast units go
2. appetite   idle processors, units at hand → how many to reserve
3. blame      units at hand had to wait too long: the queues of the jobs that they waited for

How long a job runs would not do as the measure: a job that does nothing takes 50 ms when ten threads contend for
the interpreter lock, and one that sleeps for an hour holds up nobody while the other threads go on.

No I/O, no lock: called with that of turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from kiqcluster.store.engine import MAX_QUEUES, Limits
from kiqcluster.worker.fetch.queue_order import FEW_QUEUES

__all__ = ["LONG", "NOTHING", "Appetite", "Pace"]

LONG = 0.05  # seconds: units wait for a job that has run for longer
SHORTEST_GRUDGE, LONGEST_GRUDGE = 1.0, 60.0  # seconds for which a queue is blamed: the first time, and again and again
AHEAD = 0.05  # seconds of work that may wait in the process
MOST = 2_000  # units, whatever their pace: enough for a network that is a millisecond away


@dataclass(frozen=True, slots=True)
class Appetite:
    """What to reserve.

    now: units that idle processors wait for, from any queue.  in_all: with those taken ahead, from queues that are not
    to blame; never less than `now`.
    """

    now: int
    in_all: int


NOTHING = Appetite(0, 0)


class Pace:
    """What this process has learned of its queues.

    depth: units that may wait in the process.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._unserved = 0  # what the last appetite began with
        self._ran = 0  # since then
        self._noted_at = 0.0
        self._blamed: dict[str, tuple[float, float]] = {}  # queue → until when, for how long

    def note(self, finished: int, now: float) -> None:
        """Take in how many units have run since the last round.  now: monotonic seconds.

        The depth begins with the number of idle processors and doubles, as long as they keep up.
        """
        self._ran += finished
        elapsed = now - self._noted_at
        if self._ran < self.depth and elapsed < AHEAD:
            return  # too little to tell
        done_in_a_moment = int(self._ran / max(elapsed, 1e-6) * AHEAD)
        self.depth = min(2 * max(self.depth, self._unserved), done_in_a_moment, MOST)
        self._ran, self._noted_at = 0, now

    def blame(self, queues: Iterable[str], now: float) -> None:
        """Take nothing ahead from these queues for a while, and begin anew with the others.

        A stall of the machine looks the same as a long job: the first time costs a second, the next ones more.
        """
        self.depth = 0
        for queue in queues:
            until, length = self._blamed.get(queue, (-LONGEST_GRUDGE, 0.0))
            length = min(4 * length, LONGEST_GRUDGE) if now < until + LONGEST_GRUDGE else SHORTEST_GRUDGE
            self._blamed[queue] = (now + length, length)

    def most_queues(self) -> int:
        """Return how many queues may share the next batch."""
        return FEW_QUEUES if self.depth == MOST else MAX_QUEUES

    def appetite(self, idle: int, waiting: int) -> Appetite:
        """Return how much to reserve for `idle` processors when `waiting` units are at hand already."""
        self._unserved = max(0, idle - waiting)
        return Appetite(self._unserved, max(self._unserved, self.depth - waiting))

    def limits(self, shares: Mapping[str, float], appetite: Appetite, now: float) -> Limits:
        """Return how many units to take from each queue, given its share of the batch."""
        blamed = {queue for queue, (until, _) in self._blamed.items() if now < until}
        limits, so_far = {}, 0
        for queue, share in shares.items():
            most = appetite.now if queue in blamed else appetite.in_all
            so_far += ceil(max(share, 1 / MAX_QUEUES) * most)
            limits[queue] = (min(so_far, most), most)
        return limits
