"""Membership beat: tells Redis that this process lives, and keeps what its beats show of Redis.

Runs in: the thread of recovery.  failure_detector has the rules by which a process may recover others.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from weakref import WeakKeyDictionary

from kiqcluster.process.clock import Clock
from kiqcluster.store import Connection
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Beat
from kiqcluster.worker.maintenance import failure_detector
from kiqcluster.worker.maintenance.failure_detector import BEATS_PER_WINDOW, Observation, Window

__all__ = ["MembershipBeat"]

MAX_TIMEOUT_SECONDS = 5.0  # of a round trip; never more than the time between two beats


class MembershipBeat:
    """recover_after: seconds after which a silent process is recovered.  interval: most seconds between two beats."""

    def __init__(self, engine: Engine, clock: Clock, recover_after: float) -> None:
        self._engine = engine
        self._clock = clock
        self.recover_after = recover_after
        self.interval = recover_after / BEATS_PER_WINDOW
        self._timeout = min(MAX_TIMEOUT_SECONDS, self.interval)
        self._window: Window | None = None
        # Connection → its connect_count, which server it reaches, and the same as the server tells.
        self._servers: WeakKeyDictionary[Connection, tuple[int, str, str]] = WeakKeyDictionary()
        self._unknown_servers = count(1)

    def begin_window(self) -> None:
        """Let the next beat begin a new window."""
        self._window = None

    def send(self, identity: str, asked: float, most: int) -> Beat:
        """Beat under an identity, and receive silent members to recover, at most so many.

        asked: the time now, monotonic seconds.  Raises StoreError.  One round trip, one more after each new connection.
        """
        before = self._window
        is_certain = failure_detector.may_recover(before, asked, self.recover_after)
        server, beat = self._exchange(identity, most, is_certain)
        seen = Observation(asked, self._clock.monotonic(), server, beat.at)
        self._window = failure_detector.observe(before, seen, self.recover_after)
        is_doubtful = is_certain and not failure_detector.may_recover(self._window, asked, self.recover_after)
        if is_doubtful or failure_detector.is_disturbed(before, seen, self.recover_after):
            return replace(beat, silent={})  # others are handed them in a while
        return beat

    def _exchange(self, identity: str, most: int, is_certain: bool) -> tuple[str, Beat]:
        """Return which server answered, "" where that is not known, and its answer."""
        with self._engine.store.borrowed() as connection:
            connection.connect()
            number, server, known = self._servers.get(connection, (0, "", ""))
            if number != connection.connect_count:
                number = connection.connect_count
                known = self._engine.server_of(connection, self._timeout)
                server = known or f"unknown server {next(self._unknown_servers)}"
                self._servers[connection] = (number, server, known)
            limits = (self.recover_after, most, self.interval, self._timeout)
            beat = self._engine.beat(connection, [identity], *limits, server=known, is_certain=is_certain)
            return (server if number == connection.connect_count else ""), beat
