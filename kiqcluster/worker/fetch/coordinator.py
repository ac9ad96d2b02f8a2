"""Turns: who takes which unit, who waits for one, who leads the next round, and what all of them know.

Runs in: every thread that fetch.py runs in.
1. wait       a processor gets a unit, or parks, or gets the round that it has to lead; at most one is led at a time
2. load       that round is told what to settle and what to reserve
3. take_in    what it has brought is at hand
4. end        nobody leads, and somebody is woken, who wakes the next.  Or the round is left on the air, for whoever
              needs it first

Threads meet here and Redis is elsewhere: this module has the lock and no link, fetch.py the link and no lock, so none
is ever held over a round trip.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf

from kiqcluster.clock import Clock
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store.engine import (
    ANY_DEATHS,
    MAX_QUEUES,
    MAX_RESERVE_BYTES,
    Exchange,
    Limits,
    Refusals,
    Reserved,
    Settlement,
    Unit,
)
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.prefetch import NO_UNITS, Prefetch, ReserveSize
from kiqcluster.worker.fetch.queue_order import MAX_QUEUES_AT_FULL_PACE, QueueOrder
from kiqcluster.worker.fetch.wakeups import MAX_ARMED_QUEUES

__all__ = ["Round", "Turns"]

FORBIDDEN_SECONDS = 60.0  # until a queue is tried again whose keys Redis forbids: somebody may have changed the ACL


@dataclass(slots=True)
class Round:
    """One settle + reserve, from its beginning to its end.

    batch: what it settles.  size, limits, most_deaths: what it reserves, nothing when there are no limits.
    sent: None until it is.  is_processor: whether a processor leads it, which goes on with a unit itself.
    is_heard: whether a bell has asked for it.
    """

    batch: list[Settlement] = field(default_factory=list)
    size: ReserveSize = NO_UNITS
    limits: Limits | None = None
    most_deaths: int = ANY_DEATHS
    sent: Exchange | None = None
    begun_at: float = 0.0
    is_processor: bool = False
    is_heard: bool = False


class Turns:
    """What the threads of a worker share.

    `lock` guards every field, with two exceptions.  Processors take from the left of `units` and add to the right of
    `finished` without it (in fetch.py): a deque's pops and appends are atomic.  `oldest` and `is_tended`, which go
    with these, are set without it as well, and any single field may be read so.
    Methods take it, but for those that say otherwise.  poke: wakes the manager.
    """

    def __init__(self, order: QueueOrder, in_flight: InFlight, clock: Clock, poke: Callable[[], None]) -> None:
        self._order = order
        self._in_flight = in_flight
        self._now = clock.monotonic
        self._poke = poke
        # A lock by itself, for `with` takes it in one step: what is raised in this thread from outside (a time limit of
        # a library) comes before or after that. A condition's would stay locked, and stop the process.
        self.lock = threading.Lock()
        self.parked = threading.Condition(self.lock)
        self.units: deque[Unit] = deque()  # at hand, the oldest first
        self.finished = in_flight.finished  # what processors hand in
        self.oldest = 0.0  # when the first of them came in
        self.is_tended = False  # the manager knows that something is left behind
        self.idle = 0  # processors parked on the condition
        self.leading = False  # somebody ends a round, or one is on the air
        self.on_air: Round | None = None  # sent ahead of need; ended by whoever finds no unit, or by the manager
        self.prefetch = Prefetch()
        self.due = True  # there may be work in Redis
        self.few = 0  # units at hand at which somebody leads ahead; 0 while none are taken ahead
        self.hungry = False  # the last reserve brought less than idle processors wanted
        self.resting: frozenset[str] = frozenset()  # queues that are paused or broken
        self.forbidden: dict[str, float] = {}  # queues that Redis keeps from us → when they are tried again
        self.is_refused = False  # the last reserve, as a whole
        self.unsure = False  # a reply was lost: what Redis thinks that we hold is not known
        self.is_quiet = False
        self.has_ended = False
        self.ending = threading.Event()  # the same, to wait for

    # processors

    def wait(self) -> Unit | Round | None:
        """Return a unit, or the round that the caller has to lead; None when it is time to end."""
        with self.lock:
            while not self.has_ended:
                if self._should_lead():
                    return self._take_lead(is_processor=True)
                try:
                    unit = self.units.popleft()
                except IndexError:
                    self.idle += 1
                    try:
                        self._tell_of_hunger()
                        self.parked.wait()
                    finally:  # a library may raise in this thread what was meant for the job before (a time limit)
                        self.idle -= 1
                else:
                    self.ask_to_tend()
                    if self.units or self.due or self.on_air:
                        self.parked.notify()  # each wakes the next: had all been woken, they would contend for no gain
                    return unit
            return None

    def ask_to_tend(self) -> None:
        """Have the manager look after what is left behind: the caller may be busy for long.  Needs no lock."""
        if not self.is_tended and (self.finished or self.units or self.on_air):
            self.is_tended = True
            self._poke()

    def _should_lead(self) -> bool:
        if self.leading:
            return self.on_air is not None and not self.units
        if len(self.units) > self.few:
            return False
        return bool(self.few or self.finished or self.unsure or (self.due and not self.is_quiet))

    def _take_lead(self, *, is_processor: bool) -> Round:
        """Return the round that the caller has to end from now on, begun or new.  Called with the lock."""
        turn, self.on_air = self.on_air or Round(), None
        turn.is_processor = is_processor
        self.leading = True
        return turn

    def _tell_of_hunger(self) -> None:
        """Have the manager arm the bells: the queues are empty, and somebody is idle.  Called with the lock.

        A leader that finds them empty is not idle yet, and bells are armed for idle processors only: it tells when it
        parks.  And they are armed only while nobody leads: who parks before its round is over leaves the telling to it.
        """
        if self.hungry and self.idle and not self.leading:
            self.hungry = False
            self._poke()

    # the manager

    def begin_to_tend(self) -> bool:
        """Take note that the manager looks now; return whether anything is left behind.  Needs no lock."""
        self.is_tended = False  # before the look: what comes after it pokes
        if not (self.units or self.on_air or self._in_flight.has_waiting):
            return False
        self.is_tended = True
        return True

    def waited_since(self) -> float:
        """Return when the oldest unit at hand was reserved.  Needs no lock."""
        try:
            return self.units[0].reserved_at
        except IndexError:
            return inf

    def give_back(self, long_running: Iterable[str], now: float) -> None:
        """Have all units that wait put back, and for a while take none ahead from the queues that were in their way."""
        with self.lock:
            self._in_flight.return_units(self.units)
            self.prefetch.penalize(long_running, now)

    def lead_to_settle(self) -> Round | None:
        """Return the round by which the manager settles what is finished; None if somebody leads, or nothing is."""
        with self.lock:
            if self.leading or not self._in_flight.has_waiting:
                return None
            self.due = True  # who handed these in finds nothing left to settle, and must look for work all the same
            return self._take_lead(is_processor=False)

    def lead_on_air(self) -> Round | None:
        """Return the round on the air, which nobody was in need of, for the manager to end."""
        with self.lock:
            return None if self.on_air is None else self._take_lead(is_processor=False)

    def heed(self, queue: str | None) -> tuple[bool, Round | None]:
        """Return whether somebody will look for work, and the round that the caller is to send for it.

        queue: the one whose bell rang, None for a look at all, which is left to the processor that is woken.
        """
        with self.lock:
            if self.is_quiet or self.has_ended or not self.idle:
                return False, None
            self.due = True
            if queue is None or self.leading or self.unsure:
                self.parked.notify()
                return True, None
            turn = self._take_lead(is_processor=False)
            turn.is_heard = True
            return True, turn

    def is_look_wanted(self) -> bool:
        """Return whether somebody is idle, and nobody looks for work already."""
        with self.lock:
            return self._is_waiting()

    def bells_wanted(self) -> list[str]:
        """Return the queues whose bells should be armed, the preferred first."""
        with self.lock:
            if self.is_refused or not self._is_waiting():
                return []
            left_alone = {*self.resting, *self._forbidden_now()}
        return list(islice((queue for queue in self._order.preferred() if queue not in left_alone), MAX_ARMED_QUEUES))

    def look_at(self, most: int) -> list[str]:
        """Return the queues for the next look, without those that are known to be forbidden."""
        with self.lock:
            forbidden = self._forbidden_now()
            return [queue for queue in self._order.next_to_sweep(most) if queue not in forbidden]

    def suspect(self, queues: Iterable[str]) -> None:
        """Take note that these queues may hold work."""
        self._order.add_candidates(queues)

    def _forbidden_now(self) -> set[str]:
        now = self._now()
        return {queue for queue, until in self.forbidden.items() if now < until}

    def _is_waiting(self) -> bool:
        return bool(self.idle) and not (self.is_quiet or self.has_ended or self.due or self.leading)

    # the main thread

    def quiet(self) -> int:
        """Want no more, have unstarted units put back; return their number."""
        with self.lock:
            self.is_quiet, self.few = True, 0
            returned = self._in_flight.return_units(self.units)
            self.oldest = 0.0  # no company to wait for
        self._poke()
        return returned

    def resume(self) -> None:
        """Want units again."""
        with self.lock:
            self.is_quiet = False
            self.due = True
            self.parked.notify()

    def doubt(self) -> None:
        """Have the next round begin with a resync."""
        with self.lock:
            self.unsure = True
            self.parked.notify()

    def end_all(self) -> None:
        """Let every processor end at its next turn."""
        with self.lock:
            self.has_ended = True
            self.ending.set()
            self.parked.notify_all()

    # a round, by whoever leads it

    def load(self, turn: Round, *, ahead: bool) -> bool:
        """Tell a round what to settle and what to reserve; return whether there is anything.

        ahead: nothing is taken along if it would reserve nothing.
        """
        with self.lock:
            turn.begun_at = self._now()
            turn.size, turn.limits = self._decide(turn)
            if turn.limits is None and ahead:
                return False
            self.prefetch.record_finished(len(self.finished), turn.begun_at)
            turn.batch = self._in_flight.take_waiting(turn.begun_at)
            turn.most_deaths = self._in_flight.most_deaths(turn.batch, turn.begun_at)
            if ahead and self.idle and any(type(each.outcome) is not Done for each in turn.batch):
                self.parked.notify()  # payloads are sent along, which a Redis that is busy may be slow to take
        return turn.limits is not None or bool(turn.batch)

    def _decide(self, turn: Round) -> tuple[ReserveSize, Limits | None]:
        """Return how much to reserve, in all and from each queue.  Called with the lock."""
        if self.is_quiet or self.has_ended or not (turn.is_processor or turn.is_heard or self.few):
            return NO_UNITS, None
        size = self.prefetch.reserve_size(self.idle + turn.is_processor, len(self.units))
        if size == NO_UNITS:  # enough is at hand; if a look is due, it stays so for who takes the last of it
            self.few = 0
            return NO_UNITS, None
        drawn = self._order.draw(self.prefetch.max_queues() if self.few else MAX_QUEUES)
        self.due = self._order.has_other_candidates(drawn)
        if self.forbidden:
            forbidden = self._forbidden_now()
            drawn = {queue: share for queue, share in drawn.items() if queue not in forbidden}
        limits = self.prefetch.limits(drawn, size, turn.begun_at)
        if not limits:
            self.few = 0
        return size, limits or None

    def leave_on_air(self, turn: Round) -> None:
        """Leave a round that was sent to whoever needs it first."""
        with self.lock:
            self.on_air = turn
            if not turn.is_heard:
                self.ask_to_tend()
            self.parked.notify()  # who was woken for a unit leads instead; the next one need not wait for that

    def take_in(self, reserved: Reserved, turn: Round) -> None:
        """Have at hand what a round has brought."""
        units, size = reserved.units, turn.size
        with self.lock:
            self.is_refused = reserved.is_refused
            self.resting = self.resting.difference(turn.limits or ()) | reserved.resting
            self._in_flight.add(units, self._now())
            is_alone = bool(units) and units[0].deaths > 0  # a suspect's batch is short for that
            if self.is_quiet or self.has_ended:  # it was on its way when the process became quiet
                self._in_flight.returned += units
                self._poke()
                return
            self.units.extend(units)
            self._note_queues(reserved, turn)
            # Refused, the next sweep tries again: queues that were not asked would be refused as well.
            self.due = not self.is_refused and (self.due or is_alone or len(units) >= size.needed)
            brought_all = len(units) == size.total > size.needed
            self.few = self.prefetch.depth // 2 if brought_all else 0
            self.hungry = len(units) < size.needed and not is_alone and not self.is_refused

    def _note_queues(self, reserved: Reserved, turn: Round) -> None:
        """Take note which queues may hold more, if they are too many to be asked each time.  Called with the lock."""
        limits, units, most = turn.limits or {}, reserved.units, turn.size.total
        if self.is_refused or len(self._order.weights) <= MAX_QUEUES_AT_FULL_PACE:
            return
        is_alone, is_filled = bool(units) and units[0].deaths > 0, len(units) >= most
        is_cut_short = is_alone or is_filled or any(each < most for _, each in limits.values())
        is_whole = not is_cut_short and sum(len(unit.payload) for unit in units) < MAX_RESERVE_BYTES
        self._order.record_reserve(limits, {unit.queue for unit in units}, is_whole=is_whole)

    def end(self, turn: Round, *, went_well: bool) -> Round | None:
        """Lead no more, and see to it that somebody runs what there is, or leads on.

        Returns the next round, if it is to be sent ahead: before anybody is woken, who would hold the interpreter until
        what this one has brought is used up.
        """
        with self.lock:
            self.leading = False
            self._in_flight.acknowledge()
            may_follow = went_well and turn.is_processor and turn.sent is not None and not self.unsure
            if may_follow and self.few and 0 < len(self.units) <= self.few + 1:  # of which the caller takes one itself
                return self._take_lead(is_processor=True)
            self._tell_of_hunger()
            # A leading processor goes on with a unit itself, or leads again; the manager does neither.
            # If there may be more, somebody else leads on: who parked during this round was not counted in it.
            if len(self.units) > turn.is_processor or (self.due and self.units) or not turn.is_processor:
                self.parked.notify()
            return None

    # a round that went wrong

    def refuse(self, batch: Sequence[Settlement], refusals: Refusals) -> None:
        """Keep what Redis would not write, and try it again later."""
        with self.lock:
            self._in_flight.keep_refused(batch, refusals, self._now())

    def forbid(self, queues: Iterable[str]) -> bool:
        """Ask these queues no more for a while, and look again; return whether any was not known to be forbidden."""
        with self.lock:
            is_new = not self.forbidden.keys() >= set(queues)
            self.forbidden.update(dict.fromkeys(queues, self._now() + FORBIDDEN_SECONDS))
            self._order.drop_candidates(queues)
            self.due = True
            self.parked.notify()
            return is_new

    def disbelieve(self) -> None:
        """Take what a round has reserved for unknown: look again, after a resync."""
        with self.lock:
            self.unsure = self.due = True
            self.parked.notify()

    def put_back(self, batch: Sequence[Settlement], *, is_lost: bool) -> None:
        """Have what a round took along wait for the next one.  is_lost: it may have come to Redis all the same."""
        with self.lock:
            self._in_flight.restore(batch)
            self.due, self.few = True, 0
            self.unsure = self.unsure or is_lost
            self.parked.notify()  # what is at hand runs meanwhile

    def be_sure(self) -> None:
        """Go on after a resync."""
        with self.lock:
            self.unsure, self.due = False, True

    def start_over(self) -> None:
        """Hold nothing, and look for work: what was at hand is others' now."""
        with self.lock:
            self.units.clear()
            self._in_flight.clear()
            self.unsure, self.due = False, True
