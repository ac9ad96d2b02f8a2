"""Membership: who this process is in Redis, and what it does when that is uncertain (R1, R3, R7).

Runs in: the thread that flushes (resync, rejoin), the main thread (join, leave).
1. join       the member that was drawn here joins before the first reserve
2. resync     after a lost reply: a higher epoch, which fences a reserve that is still on the wire (R3)
3. rejoin     others have recovered this process, and dead is final: it goes on under a new identity (R1)
4. leave      this process runs on itself the recovery that others would run on a dead one (R7)

Never: knows which units are at hand, or takes a lock.  One thread at a time replaces `member`, as a whole; any thread
may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from kiqcluster.store import Connection
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member

__all__ = ["Membership"]


class Membership:
    """The right of one process to reserve.

    on_member: called with a new member before its first reserve.  leaving: set once the process needs no other one.
    """

    def __init__(
        self, engine: Engine, new_member: Callable[[], Member], on_member: Callable[[Member], None], leaving: Event
    ) -> None:
        self._engine = engine
        self._new_member = new_member
        self._on_member = on_member
        self._leaving = leaving
        self.member = self._highest = new_member()  # _highest: with the highest epoch that a resync has carried

    def join(self) -> None:
        """Become a member, before the first reserve.  May be called again.  One round trip.  Raises StoreError."""
        self._on_member(self.member)
        self._engine.join(self.member)

    def resync(self, connection: Connection, held: Sequence[str]) -> bool:
        """Have Redis put back every unit whose token is not among those held; return whether this is still a member.

        May be called again after it has failed.  One round trip, more for large units.  Raises StoreError.
        """
        left = 1
        while left:
            self._highest = self._highest.raised()  # each try: one that arrives late takes nothing away
            returned = self._engine.resync(connection, self.member, self._highest, held)
            if returned is None:
                return False
            _, left = returned
        self.member = self._highest
        return True

    def rejoin(self, connection: Connection) -> bool:
        """Become a member under a new identity; return whether this process goes on under it.

        One round trip.  Raises StoreError.
        """
        if self._leaving.is_set():  # this process has left on purpose
            return False
        member = self._new_member()
        self._on_member(member)
        self._engine.join(member)
        if self._leaving.is_set():  # it left meanwhile, and nobody would end the new membership
            self._engine.recover(connection, member.identity)
            return False
        self.member = self._highest = member
        return True

    def leave(self, connection: Connection, suspects: Sequence[str] = ()) -> None:
        """End the membership, and put back every unit that is still held.  See Engine.recover for both."""
        self._engine.recover(connection, self.member.identity, suspects)
