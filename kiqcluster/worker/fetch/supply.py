"""Supply: the units at hand of a process and who waits for more; and what it knows of those in Redis.

Supply      which units are here, how many more takers wait for, and how many of these may run at once
RedisView   whether Redis has more, and whether it holds what this process thinks

The coordinator's lock guards both (coordinator.py, which also says what is done without it).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from kiqcluster.store.engine.units import Settlement, Unit
from kiqcluster.worker.fetch.concurrency_limit import WATCH_SECONDS, ConcurrencyLimit
from kiqcluster.worker.fetch.prefetch import Prefetch
from kiqcluster.worker.fetch.queue_order import ExcludedQueues

__all__ = ["RedisView", "Supply"]


@dataclass(slots=True)
class Supply:
    """The units of one process that nobody has taken, and its takers."""

    finished: deque[Settlement]  # outcomes that takers hand in
    limit: ConcurrencyLimit
    units: deque[Unit] = field(default_factory=deque)  # at hand, the oldest first
    prefetch: Prefetch = field(default_factory=Prefetch)
    demand: int = 0  # units that takers wait for
    low_watermark: int = 0  # units at hand at which the next batch is sent ahead; 0 while none are prefetched
    received: int = 0  # units that batches and pushes have brought
    oldest_finished_at: float = 0.0  # monotonic seconds
    is_manager_notified: bool = False  # the manager knows that something waits
    is_crowded: bool = False  # more takers run than the limit allows: whoever takes next waits
    is_watched: bool = False  # a taker waits for WATCH_SECONDS, and then sees whether the others are blocked

    def units_ahead(self) -> list[Unit]:
        """Return the units at hand that are next, if takers wait beside them: as many as there are such takers.

        Without the lock: others may take them meanwhile.
        """
        count = min(self.demand, len(self.units)) if self.is_limited() else 0
        try:
            return [self.units[number] for number in range(count)]
        except IndexError:
            return []

    def begin_watch(self) -> float | None:
        """Return how long a taker may wait that gets nothing, in seconds; None until it is woken.

        While the limit lets takers wait beside units at hand, one of them watches.  It calls `end_watch`.
        """
        if self.is_watched or not self.is_limited():
            return None
        self.is_watched = True
        self.limit.begin_watch(self.taken(), self.received)
        return WATCH_SECONDS

    def end_watch(self, *, is_flushing: bool) -> None:
        """Let more takers run if units are at hand and the others are blocked; the caller takes next.

        is_flushing: whether one of the others flushes.
        """
        self.is_watched = False
        if self.units and self.is_limited():
            self.limit.end_watch(self.taken(), self.received, self.active(), is_flushing=is_flushing)

    def is_limited(self) -> bool:
        """Return whether takers may have to wait beside units at hand: only while units are prefetched."""
        return self.low_watermark > 0 and self.limit.current < self.limit.most

    def active(self) -> int:
        """Return how many takers do not wait."""
        return self.limit.most - self.demand

    def taken(self) -> int:
        """Return how many units takers have taken so far."""
        return self.received - len(self.units)

    def check_crowd(self) -> None:
        """Have the next taker wait if more run than the limit allows."""
        self.is_crowded = self.is_limited() and self.active() > self.limit.current


@dataclass(slots=True)
class RedisView:
    """What one process knows of the queues, and of the units that Redis holds for it."""

    excluded: ExcludedQueues
    is_reserve_due: bool = True  # there may be work in Redis
    is_starved: bool = False  # the last reserve brought less than was demanded, and the manager does not know
    is_refused: bool = False  # Redis refused the last reserve as a whole
    is_uncertain: bool = False  # a reply was lost: resync before the next batch
    generation: int = 0  # of what is known of the units that Redis holds for us; a resync begins a new one

    def begin_generation(self) -> None:
        """Be certain again, after a resync: Redis holds what is known here, and there may be work."""
        self.generation += 1
        self.is_uncertain, self.is_reserve_due = False, True
