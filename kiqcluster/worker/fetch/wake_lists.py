"""Wake lists after a recovery: the jobs in them go back to their queues, because Ruby does not look into wake lists.

A wake list belongs to the queue, so any may be emptied at any time; the processes that live and wait there are notified
again.  Suspects stay until the waits have ended that could move them into a hand list (rule H5 of docs/engine.md).
Redis does not know any more which queues the dead served, so all are looked at.
1. begin     after each recovery
2. go_on     a part of it, between two beats
3. finish    at a stop: nobody else may be there to return the suspects

Runs in: the thread of recovery.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from kiqcluster.errors import StoreError
from kiqcluster.process.clock import Clock
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import Engine
from kiqcluster.worker.fetch.hand_lists import MAX_GRACE_SECONDS, MAX_WAIT_SECONDS

__all__ = ["QUEUES_PER_ROUND_TRIP", "WakeLists"]

QUEUES_PER_ROUND_TRIP = 1_000  # whose wake lists one round trip reads
MAX_EMPTYING_SECONDS = 1.0  # that wake lists are emptied for between two beats
SUSPECTS_STAY_SECONDS = MAX_WAIT_SECONDS + MAX_GRACE_SECONDS  # longer than a wait with a hand list


class WakeLists:
    """What is left to be returned from wake lists."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._now = clock.monotonic
        self._left: Iterator[str] | None = None  # queues that are still to be looked at
        self._suspects_stay_until = 0.0
        self._have_suspects_stayed = False

    def begin(self) -> None:
        """Have all wake lists looked at: a process was recovered."""
        self._left = self._engine.queue_names()
        self._suspects_stay_until = self._now() + SUSPECTS_STAY_SECONDS

    def go_on(self) -> None:
        """Return jobs for MAX_EMPTYING_SECONDS; the other queues wait for the next call.

        After an outage it begins anew.  Two round trips per QUEUES_PER_ROUND_TRIP queues, and one more where anything
        lies there.  Raises StoreError.
        """
        until = self._now() + MAX_EMPTYING_SECONDS
        if self._have_suspects_stayed and self._now() >= self._suspects_stay_until:
            self._have_suspects_stayed, self._left = False, self._engine.queue_names()
        while self._left is not None and self._now() < until:
            try:
                names = list(islice(self._left, QUEUES_PER_ROUND_TRIP))
                stay = self._now() < self._suspects_stay_until
                with self._engine.store.borrowed() as connection:
                    stayed = self._engine.return_wake_lists(connection, names, suspects_stay=stay)
            except StoreError as error:
                self._left = self._engine.queue_names() if is_outage(error) else None  # else no look succeeds
                raise
            self._have_suspects_stayed = self._have_suspects_stayed or stayed > 0
            if len(names) < QUEUES_PER_ROUND_TRIP:
                self._left = None

    def finish(self) -> None:
        """Return the suspects that have stayed.  Raises StoreError."""
        if self._have_suspects_stayed:
            self._suspects_stay_until = self._now()
            self.go_on()
