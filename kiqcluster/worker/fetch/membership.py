"""Membership: who this process is in Redis, and what becomes of that when it is in doubt (R1, R3, R7).

Runs in: the thread that leads a round (resync, rejoin), the main thread (leave).
1. member     made here, entered by the launcher before the first reserve
2. resync     a reply was lost: the epoch is raised, which fences what is still on the wire (R3)
3. rejoin     others have recovered this process, and dead is final: it goes on under a new identity (R1)
4. leave      it runs on itself what others would run on a dead one (R7)

Never: knows which units are at hand, or takes a lock.  One thread at a time changes `member`, and replaces it as a
whole; any may read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event

from kiqcluster.store import Link
from kiqcluster.store.engine import Engine, Member

__all__ = ["Membership"]


class Membership:
    """One process' right to reserve.

    on_member: told of a new one before its first reserve.  leaving: set once the process needs no other.
    """

    def __init__(
        self, engine: Engine, new_member: Callable[[], Member], on_member: Callable[[Member], None], leaving: Event
    ) -> None:
        self._engine = engine
        self._new_member = new_member
        self._on_member = on_member
        self._leaving = leaving
        self.member = self._raised = new_member()  # _raised: with the highest epoch that a resync has carried

    def resync(self, link: Link, held: Sequence[str]) -> bool:
        """Have Redis give back what is not among the tokens held; return whether this is a member still.

        May be called again when it has failed.  One round trip, more where large units go back.  Raises StoreError.
        """
        left = 1
        while left:
            self._raised = self._raised.raised()  # each try: one that arrives late takes nothing away
            returned = self._engine.resync(link, self.member, self._raised, held)
            if returned is None:
                return False
            _, left = returned
        self.member = self._raised
        return True

    def rejoin(self, link: Link) -> bool:
        """Become a member under a new identity; return whether this process goes on under it.

        One round trip.  Raises StoreError.
        """
        if self._leaving.is_set():  # we have left ourselves
            return False
        member = self._new_member()
        self._on_member(member)
        self._engine.join(member)
        if self._leaving.is_set():  # the process has left meanwhile, and would leave this one behind
            self._engine.recover(link, member.identity)
            return False
        self.member = self._raised = member
        return True

    def leave(self, link: Link, suspects: Sequence[str] = ()) -> None:
        """End the membership, and give back what is still held.  See Engine.recover for both."""
        self._engine.recover(link, self.member.identity, suspects)
