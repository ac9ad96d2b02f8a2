"""Last settle: the outcomes that a worker writes before it leaves (R7).

Runs in: the main thread, on a connection of its own.  Outcomes that Redis does not take go back with everything that is
still held, by the recovery that follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiqcluster.errors import RedisUnavailable, ReplyLost
from kiqcluster.process.clock import Clock
from kiqcluster.store import Connection
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement
from kiqcluster.worker.fetch.in_flight import MAX_SETTLE_BYTES, count_fitting, payload_bytes
from kiqcluster.worker.fetch.redis_health import RedisHealth

__all__ = ["LastSettle"]

MAX_SMALL_OUTCOME_BYTES = 100_000  # of an outcome that is settled before the large ones


class LastSettle:
    """The settle of one stop."""

    def __init__(self, engine: Engine, member: Member, health: RedisHealth, clock: Clock) -> None:
        self._engine = engine
        self._member = member
        self._health = health
        self._clock = clock

    def settle(self, connection: Connection, outcomes: Sequence[Settlement], seconds: float) -> None:
        """Settle the small outcomes together, then the large ones.  seconds: for each round trip.

        Raises StoreError if the small ones cannot be settled.
        """
        large = [each for each in outcomes if payload_bytes(each) > MAX_SMALL_OUTCOME_BYTES]
        self._settle(connection, [each for each in outcomes if payload_bytes(each) <= MAX_SMALL_OUTCOME_BYTES])
        self._settle_large(large, seconds)

    def _settle_large(self, outcomes: Sequence[Settlement], seconds: float) -> None:
        """Settle outcomes with large payloads one by one, while there is time: a slow line has none for all.

        The others are put back with everything that is still held.
        """
        until = self._clock.monotonic() + seconds
        for number, settlement in enumerate(outcomes):
            connection = self._engine.store.connection(timeout=seconds, total=until - self._clock.monotonic())
            try:
                self._settle(connection, [settlement])
            except (RedisUnavailable, ReplyLost) as error:
                reason = f"{len(outcomes) - number} large outcomes are not written, their jobs go back ({error})"
                self._health.on_refusal("a stop", reason)
                return
            finally:
                connection.close()

    def _settle(self, connection: Connection, outcomes: Sequence[Settlement]) -> None:
        while outcomes:
            count = count_fitting(outcomes, MAX_SETTLE_BYTES)
            now = self._clock.now()
            refusals, _ = self._engine.exchange(connection, self._member, 0, None, outcomes[:count], now)
            for reason in refusals.values():
                self._health.on_refusal("an outcome", reason)
            outcomes = outcomes[count:]
