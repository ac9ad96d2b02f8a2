"""Batch: one settle + reserve in one round trip.  A process has one at a time:

      take, on_wakeup, check_overdue               leave_in_transit
NONE ───────────────────────────────► FLUSHING ─────────────────────► IN_TRANSIT
  ▲                                    │    ▲                              │
  └────────────── close ───────────────┘    └─── take, check_overdue ──────┘

While units are prefetched, `close` may claim the next batch at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from kiqcluster.store.engine.units import ANY_DEATHS, Exchange, Limits, Settlement
from kiqcluster.worker.fetch.prefetch import NO_UNITS, ReserveSize

__all__ = ["Batch", "BatchState", "Batches", "FetchMode"]


class BatchState(Enum):
    """Where the batch of a process is."""

    NONE = "none"  # there is none
    FLUSHING = "flushing"  # somebody builds it, sends it, or waits for its reply
    IN_TRANSIT = "in transit"  # it was sent before anybody needed it; nobody waits for its reply


class FetchMode(Enum):
    """Whether a process fetches.  FETCHING ⇄ QUIET, and from both to ENDED."""

    FETCHING = "fetching"
    QUIET = "quiet"  # it settles, but reserves nothing
    ENDED = "ended"  # takers get no unit any more


@dataclass(slots=True)
class Batch:
    """One settle + reserve, from the claim to the close.

    settlements: what it settles.  size, limits, most_deaths: what it reserves; nothing if `limits` is None.
    sent: None until it is sent.  started_at: monotonic seconds.  own_demand: units that its flusher takes itself.
    is_wakeup: whether a wakeup has asked for it.
    """

    settlements: list[Settlement] = field(default_factory=list)
    size: ReserveSize = NO_UNITS
    limits: Limits | None = None
    most_deaths: int = ANY_DEATHS
    sent: Exchange | None = None
    started_at: float = 0.0
    own_demand: int = 0
    is_wakeup: bool = False


@dataclass
class Batches:
    """Where the batch of a process is: at most one is open (docs/engine/fetching.md draws the states)."""

    state: BatchState = BatchState.NONE
    in_transit: Batch | None = None  # the batch, in that state
    flusher: str = ""  # name of who has claimed the last batch

    def claim(self, own_demand: int, flusher: str) -> Batch:
        """Return the batch that the caller has to flush: the one in transit, or a new one."""
        batch, self.in_transit = self.in_transit or Batch(), None
        batch.own_demand = own_demand
        self.flusher = flusher
        self.state = BatchState.FLUSHING
        return batch

    def leave_in_transit(self, batch: Batch) -> None:
        """Leave a batch that was sent to the first one who needs its reply."""
        self.state, self.in_transit = BatchState.IN_TRANSIT, batch

    def close(self) -> None:
        """End the batch."""
        self.state = BatchState.NONE

    def abandon(self, flusher: str) -> bool:
        """End the batch of a flusher that is gone; return whether it has one."""
        if self.state is not BatchState.FLUSHING or self.flusher != flusher:
            return False
        self.state = BatchState.NONE
        return True
