"""Prefetch: how many units a process reserves at once, and from which queues more than are demanded at this moment.

A process prefetches units, so that many units share a round trip.  It prefetches no more than it runs in a moment, and
for a while none from a queue whose jobs made prefetched units wait.
1. record_finished   how many units have finished: the pace of this process
2. reserve_size      demand, units at hand → how many to reserve
3. penalize          units at hand waited too long: the queues of the jobs that they waited for

The duration of a job would be a bad measure: an empty job takes 50 ms when ten threads contend for the interpreter
lock, and a job that sleeps for an hour blocks nobody while the other threads go on.

No I/O and no lock: whoever holds the coordinator's lock calls this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil

from kiqcluster.store.engine.units import Limits
from kiqcluster.store.engine.wait_lists import MAX_QUEUES

__all__ = ["LONG_JOB_SECONDS", "MAX_QUEUES_AT_FULL_PACE", "NO_UNITS", "Prefetch", "ReserveSize"]

LONG_JOB_SECONDS = 0.05  # a job that has run for longer makes prefetched units wait
# In one of the largest batches, which come every few milliseconds: each queue has its turn as often, at a lower cost.
MAX_QUEUES_AT_FULL_PACE = 30
MIN_PENALTY_SECONDS, MAX_PENALTY_SECONDS = 1.0, 60.0  # of a queue: the first time, and after many times
PREFETCH_SECONDS = 0.05  # of work that may wait in the process
MAX_PREFETCHED = 2_000  # units, at any pace: enough for a network with a latency of a millisecond


@dataclass(frozen=True, slots=True)
class ReserveSize:
    """How many units to reserve.

    needed: units that somebody waits for, from any queue.  total: with the prefetched ones, which come from queues
    without a penalty; never less than `needed`.
    """

    needed: int
    total: int


NO_UNITS = ReserveSize(0, 0)


class Prefetch:
    """What a process has learned about its pace and its queues.

    depth: units that may wait in the process.
    """

    def __init__(self) -> None:
        self.depth = 0
        self._unmet_demand = 0  # when the last size was computed
        self._finished = 0  # units, since the last measurement
        self._measured_at = 0.0
        self._penalties: dict[str, tuple[float, float]] = {}  # queue → until when, for how many seconds

    def record_finished(self, finished: int, now: float) -> None:
        """Count units that have finished since the last batch.  now: monotonic seconds.

        The depth begins with the unmet demand, and doubles as long as the process keeps up.
        """
        self._finished += finished
        elapsed = now - self._measured_at
        if self._finished < self.depth and elapsed < PREFETCH_SECONDS:
            return  # too few to measure a pace
        done_in_a_moment = int(self._finished / max(elapsed, 1e-6) * PREFETCH_SECONDS)
        self.depth = min(2 * max(self.depth, self._unmet_demand), done_in_a_moment, MAX_PREFETCHED)
        self._finished, self._measured_at = 0, now

    def penalize(self, queues: Iterable[str], now: float) -> None:
        """Prefetch nothing from these queues for a while, and begin anew with the others.

        A stall of the machine looks like a long job: the first penalty is a second, the next ones are longer.
        """
        self.depth = 0
        for queue in queues:
            until, length = self._penalties.get(queue, (-MAX_PENALTY_SECONDS, 0.0))
            is_repeated = now < until + MAX_PENALTY_SECONDS
            length = min(4 * length, MAX_PENALTY_SECONDS) if is_repeated else MIN_PENALTY_SECONDS
            self._penalties[queue] = (now + length, length)

    def max_queues(self) -> int:
        """Return how many queues may share the next batch."""
        return MAX_QUEUES_AT_FULL_PACE if self.depth == MAX_PREFETCHED else MAX_QUEUES

    def reserve_size(self, demand: int, at_hand: int) -> ReserveSize:
        """Return how many units to reserve, given how many are demanded and how many are here already."""
        self._unmet_demand = max(0, demand - at_hand)
        return ReserveSize(self._unmet_demand, max(self._unmet_demand, self.depth - at_hand))

    def limits(self, shares: Mapping[str, float], size: ReserveSize, now: float) -> Limits:
        """Return how many units to take from each queue, given its share of the batch."""
        penalized = {queue for queue, (until, _) in self._penalties.items() if now < until}
        limits, so_far = {}, 0
        for queue, share in shares.items():
            most = size.needed if queue in penalized else size.total
            so_far += ceil(max(share, 1 / MAX_QUEUES) * most)
            limits[queue] = (min(so_far, most), most)
        return limits
