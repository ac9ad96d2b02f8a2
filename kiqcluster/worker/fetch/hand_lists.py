"""Hand lists: where an idle process has a push moved, so that it runs the job without another round trip.

An idle process waits with `BLMOVE queue:q kiq:hand:<identity>:<token>:q`.  The payload is in flight from the moment
that Redis moves it, and its reply brings it here: one round trip, where a wakeup and a reserve are two.
1. register    before each wait: Redis confirms the membership, and will find the list when this process is gone
2. wait        it ends by itself long before others may recover this process; a late reply is not believed.
               One look tells whether its queue was paused while it began
3. give up     a wait whose reply was lost may still fill its list: a resync puts back what came, now and later (look)

Each list takes one payload at most, under a token of its own.  Rules H1 to H6 of docs/engine.md.
Runs in: the manager thread.  Never: takes a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kiqcluster.process.clock import Clock
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member
from kiqcluster.store.engine.wait_lists import (
    HANDS_MEMORY_SECONDS,
    are_filled,
    forget_empty_hands,
    paused_queues,
)
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS

__all__ = ["MAX_GRACE_SECONDS", "MAX_WAIT_SECONDS", "HandList", "HandLists", "hand_seconds"]

# Shares of `recover_after`.  A process that waits has beaten.  Others may not recover it before the wait has ended, its
# reply is no longer believed, and its job is no longer started (STALE_UNIT_SECONDS, at most half of `recover_after`).
MAX_BEAT_AGE_SHARE, GRACE_SHARE, TOTAL_SHARE = 1 / 4, 1 / 30, 0.95
MAX_WAIT_SECONDS, MAX_GRACE_SECONDS = 20.0, 2.0
MIN_LOOK_SECONDS, MAX_LOOK_SECONDS = 1.0, 60.0  # between looks into lists that were given up


@dataclass(frozen=True, slots=True)
class HandList:
    """A list into which one push may be moved.

    token: of the unit that it becomes.  identity: of the process that holds it.
    generation: of the process' view of Redis (RedisView.generation): after a resync its reply is not believed.
    """

    queue: str
    token: str
    identity: str
    generation: int

    @property
    def field(self) -> str:
        return f"{self.token}:{self.queue}"


def hand_seconds(recover_after: float) -> tuple[float, float]:
    """Return after how many seconds a wait ends by itself, and how much later than that a reply is still believed.

    recover_after: the setting, seconds.
    """
    grace = min(MAX_GRACE_SECONDS, recover_after * GRACE_SHARE)
    until_stale = min(STALE_UNIT_SECONDS, recover_after / 2)
    return min(MAX_WAIT_SECONDS, recover_after * (TOTAL_SHARE - MAX_BEAT_AGE_SHARE) - grace - until_stale), grace


class HandLists:
    """The hand lists of one process.

    wait_seconds: after which a wait ends by itself.  grace_seconds: later than that a reply is not believed.
    """

    def __init__(self, engine: Engine, clock: Clock, recover_after: float) -> None:
        self._engine = engine
        self._clock = clock
        self._max_beat_age = recover_after * MAX_BEAT_AGE_SHARE
        self.wait_seconds, self.grace_seconds = hand_seconds(recover_after)
        self._count = 0
        self._given_up: dict[HandList, tuple[float, float]] = {}  # → since when, and until when it is remembered
        self._look_at = 0.0

    def register(
        self, member: Member, generation: int, waits: Mapping[str, tuple[int, HandList | None]]
    ) -> dict[str, HandList] | None:
        """Return queue → the list for its next push, where that is allowed; None when this process is no member.

        waits: queue → id of the connection that will wait, and a list that is empty, and into which no wait moves a
        push any more.
        One round trip.  Raises StoreError.
        """
        lists = {queue: self._next(queue, member, generation, spare) for queue, (_, spare) in waits.items()}
        ids = {queue: client_id for queue, (client_id, _) in waits.items()}
        tokens = {queue: each.token for queue, each in lists.items()}
        allowed = self._engine.register_hands(member, tokens, ids, self._max_beat_age)
        return None if allowed is None else {queue: lists[queue] for queue in allowed}

    def paused(self, queues: Sequence[str]) -> list[str]:
        """Return those of these queues that have been paused since they were registered.

        Who pauses a queue ends the waits that are armed, and does not see one that is about to be.
        One round trip.  Raises StoreError.
        """
        return paused_queues(self._engine.store, queues)

    def give_up(self, hand_list: HandList, *, has_ended: bool = False) -> None:
        """Remember a list that a wait may still fill whose reply will not be read.

        has_ended: no wait fills it any more.  It may be full, so it is not used again: two units would have its token.
        """
        now = self._clock.monotonic()
        self._given_up[hand_list] = now, now + (0.0 if has_ended else HANDS_MEMORY_SECONDS)
        self._look_at = now

    @property
    def has_given_up(self) -> bool:
        """Whether there are lists that a late command may still fill."""
        now = self._clock.monotonic()
        return any(until > now for _, until in self._given_up.values())

    def look(self, identity: str) -> bool:
        """Return whether a list that was given up has been filled since.  Looks now and then; Raises StoreError.

        identity: of this process now.  The lists of a former one are looked at by the whole fleet.
        """
        now = self._clock.monotonic()
        if not self._given_up or now < self._look_at:
            return False
        self._given_up = {each: times for each, times in self._given_up.items() if each.identity == identity}
        youngest = min((now - since for since, _ in self._given_up.values()), default=0.0)
        self._look_at = now + min(max(youngest, MIN_LOOK_SECONDS), MAX_LOOK_SECONDS)
        if are_filled(self._engine.store, identity, [each.field for each in self._given_up]):
            return True  # the resync finds what is there only while it is registered
        late = [each for each, (_, until) in self._given_up.items() if now >= until]
        if late:
            forget_empty_hands(self._engine.store, identity, [each.field for each in late])
            self._given_up = {each: times for each, times in self._given_up.items() if each not in late}
        return False

    def _next(self, queue: str, member: Member, generation: int, spare: HandList | None) -> HandList:
        if spare is not None and spare.identity == member.identity:
            return replace(spare, generation=generation)
        self._count += 1
        return HandList(queue, f"{member.padded_epoch}.h{self._count:09d}", member.identity, generation)
