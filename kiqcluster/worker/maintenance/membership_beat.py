"""Membership beat: tells Redis that this process lives, and keeps what its beats show of Redis.

Runs in: the thread of recovery.  The rules of the window, within which a process may recover others, are those of
failure_detector.
"""

from __future__ import annotations

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
        # Connection → its connect_count, and which server it reaches.
        self._servers: WeakKeyDictionary[Connection, tuple[int, str]] = WeakKeyDictionary()
        self._unknown_servers = count(1)

    def may_recover(self, at: float) -> bool:
        """Return whether this process may recover silent ones, at a moment in monotonic seconds."""
        return failure_detector.may_recover(self._window, at, self.recover_after)

    def begin_window(self) -> None:
        """Let the next beat begin a new window."""
        self._window = None

    def send(self, identity: str, asked: float, most: int) -> Beat:
        """Beat under an identity, and ask for silent members, at most so many, if this process may recover them now.

        asked: the time now, monotonic seconds.  Raises StoreError.  One round trip, one more after each new connection.
        """
        server, beat = self._exchange(identity, most if self.may_recover(asked) else 0)
        seen = Observation(asked, self._clock.monotonic(), server, beat.at)
        self._window = failure_detector.observe(self._window, seen, self.recover_after)
        return beat

    def _exchange(self, identity: str, most: int) -> tuple[str, Beat]:
        """Return which server answered, "" where that is not known, and its answer."""
        with self._engine.store.borrowed() as connection:
            connection.connect()
            number, server = self._servers.get(connection, (0, ""))
            if number != connection.connect_count:
                number = connection.connect_count
                known = self._engine.server_of(connection, self._timeout)
                server = known or f"unknown server {next(self._unknown_servers)}"
                self._servers[connection] = (number, server)
            beat = self._engine.beat(connection, [identity], self.recover_after, most, self.interval, self._timeout)
            return (server if number == connection.connect_count else ""), beat
