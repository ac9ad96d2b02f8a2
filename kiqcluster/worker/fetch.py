"""Fetch: the engine's half in the worker, by rules R1 to R7 of docs/engine.md.

Runs in: processor threads (`next`), the manager (`tend`, `ring`, `look`), the main thread (quiet, resume, leave).
1. next       a finished unit's outcome in, the next unit out: no lock while units are at hand
2. lead       one settle + reserve in one round trip, for everybody; at most one is outstanding.  Whoever finds no unit
              leads; under load whoever finds few sends a round and runs on: who finds none then takes in what it brings
3. doubt      after a lost reply: resync first, then go on (R3)
4. fenced     others have recovered this process: it goes on under a new identity (R1)

No hand-over thread: processors take from a deque, and park on a condition when there is nothing to do.
Never: holds the lock over a round trip.  Counterpart: sidekiq fetch.rb, whose BRPOP loses what it holds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

from kiqcluster.errors import RedisUnavailable, ReplyLost, StoreError
from kiqcluster.outcome import Done
from kiqcluster.runtime import Runtime
from kiqcluster.store.engine import Engine, Exchange, Limits, Member, Refusals, Reserved, Settlement, Unit
from kiqcluster.worker.holdings import STALE, Holdings
from kiqcluster.worker.pace import MOST_QUEUES, NOTHING, Appetite, Pace
from kiqcluster.worker.queues import QueueOrder
from kiqcluster.worker.reach import Reach

__all__ = ["ReliableFetch", "Round"]

COMPANY = 0.02  # seconds that an outcome may wait for others to share its round trip
FRESH = 0.1  # seconds after a round for which its connection is taken to be open; if it is not, R3 sees to that
LONGEST_WAIT = 0.1  # seconds that a unit may wait here behind running jobs; then all that wait are given back


@dataclass(slots=True)
class Round:
    """One settle + reserve, from its beginning to its end.

    sent: None until it is.  is_processor: whether a processor leads it, which goes on with a unit itself.
    is_heard: whether a bell has asked for it.
    """

    batch: list[Settlement] = field(default_factory=list)
    appetite: Appetite = NOTHING
    sent: Exchange | None = None
    begun_at: float = 0.0
    is_processor: bool = False
    is_heard: bool = False


class ReliableFetch:
    """Reserves units and settles them.

    Shared by all threads of a capsule; `_turn` guards every field below it, with two exceptions.  Processors take from
    the left of `_units` and add to the right of `_finished` without it: a deque's pops and appends are atomic.
    on_member: told of a new membership before its first reserve.  poke: wakes the manager.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        order: QueueOrder,
        new_member: Callable[[], Member],
        on_member: Callable[[Member], None],
        poke: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._engine = engine
        self._order = order
        self._new_member = new_member
        self._on_member = on_member
        self._poke = poke
        self._link = engine.store.link(trust=FRESH)
        self._ending = threading.Event()
        self._turn = threading.Condition(threading.Lock())
        self.member = self._raised = new_member()  # _raised: with the highest epoch that a resync has carried
        self._units: deque[Unit] = deque()  # at hand, the oldest first
        self._oldest = 0.0  # when the first of them came in
        self._is_tended = False  # the manager knows that something is left behind
        self._holdings = Holdings(runtime.config.max_retries_after_interruption)
        self._finished = self._holdings.finished  # what processors hand in
        self._idle = 0  # processors parked on the condition
        self._leading = False  # somebody ends a round, or one is on the air
        self._on_air: Round | None = None  # sent ahead of need; ended by whoever finds no unit, or by the manager
        self._due = True  # there may be work in Redis
        self._few = 0  # units at hand at which somebody leads ahead; 0 while none are taken ahead
        self._hungry = False  # the last reserve brought less than idle processors wanted
        self._pace = Pace()
        self._reach = Reach(runtime)
        self._unsure = False  # a reply was lost: what Redis thinks that we hold is not known
        self._quiet = False
        self._ended = False
        self._resting: frozenset[str] = frozenset()  # queues that are paused or broken
        self._is_refused = False  # the last reserve, as a whole
        self._call = 0
        self.round_trips, self.round_trip_seconds = (
            0,
            0.0,
        )  # rounds whose replies came, and how long they were waited for
        self.progress = 0  # rounds led, looks that found nothing; stands still only if every processor is busy or stuck

    # processors

    def next(self, finished: Settlement | None = None) -> Unit | None:
        """Take an outcome in and return the next unit; None when the process ends.

        No lock and no round trip while more than a few units are at hand.
        """
        if finished is not None:
            if not self._finished:
                self._oldest = self._now()
            self._finished.append(finished)
        while True:
            if len(self._units) > self._few or self._leading:
                try:
                    unit = self._units.popleft()
                except IndexError:  # others were faster
                    pass
                else:
                    if not self._is_tended:
                        self._ask_to_tend()
                    return unit
            with self._turn:
                taken = self._wait()
                if taken is not None or self._ended:
                    return taken
                turn = self._take_lead(is_processor=True)
            self._lead(turn, ahead=bool(self._units))

    def hand_in(self, finished: Settlement) -> None:
        """Take an outcome in from a thread that asks for no other unit."""
        self._finished.append(finished)
        self._ask_to_tend()

    def _wait(self) -> Unit | None:
        """Return a unit, or None when the caller should lead, or end.  Called with the lock."""
        while not self._ended:
            if self._should_lead():
                return None
            try:
                unit = self._units.popleft()
            except IndexError:
                self._idle += 1
                self._tell_of_hunger()
                self._turn.wait()
                self._idle -= 1
            else:
                self._ask_to_tend()
                if self._units or self._due or self._on_air:
                    self._turn.notify()  # each wakes the next: had all been woken, they would contend for no gain
                return unit
        return None

    def _should_lead(self) -> bool:
        if self._leading:
            return self._on_air is not None and not self._units
        if len(self._units) > self._few:
            return False
        return bool(self._few or self._finished or self._unsure or (self._due and not self._quiet))

    def _ask_to_tend(self) -> None:
        """Have the manager look after what is left behind: the caller may be busy for long."""
        if not self._is_tended and (self._finished or self._units or self._on_air):
            self._is_tended = True
            self._poke()

    # the manager

    def tend(self, long_running: Iterable[str] = ()) -> float | None:
        """Settle what has waited for COMPANY, give back units that have waited for LONGEST_WAIT.

        long_running: queues of units that have run for long.  Returns seconds until the next look, None for a poke.
        """
        self._is_tended = False  # before the look: what comes after it pokes
        on_air = self._on_air
        if not (self._units or on_air or self._holdings.is_waiting):
            return None
        self._is_tended = True
        now = self._now()
        if self._waited_since() <= now - LONGEST_WAIT:
            with self._turn:
                self._give_back_waiting()
                self._pace.blame(long_running, now)
        if on_air and (self._quiet or now >= on_air.begun_at + COMPANY):
            self._end_round()
        if self._leading:
            return COMPANY / 2  # that round does not see what came in since it began
        due_in = COMPANY  # also when processors have taken everything since: what they finish must find us looking
        if self._finished:
            due_in = max(0.0, self._oldest + COMPANY - now)
        elif self._holdings.refused:
            due_in = max(0.0, self._holdings.refused_until - now)
        if due_in == 0 or self._holdings.returned:
            self.flush()
            due_in = COMPANY
        return due_in

    def _waited_since(self) -> float:
        """Return when the oldest unit at hand was reserved."""
        try:
            return self._units[0].reserved_at
        except IndexError:
            return inf

    def flush(self) -> None:
        """Settle what is finished, if nobody leads."""
        with self._turn:
            if self._leading or not self._holdings.is_waiting:
                return
            self._due = True  # who handed these in finds nothing left to settle, and must look for work all the same
            turn = self._take_lead(is_processor=False)
        self._lead(turn)

    def _end_round(self) -> None:
        """Take in what a round has brought that nobody was in need of."""
        with self._turn:
            if self._on_air is None:
                return
            turn = self._take_lead(is_processor=False)
        self._lead(turn)

    def ring(self, queue: str | None = None) -> bool:
        """Say that there may be work; return whether somebody will look.

        queue: the one whose bell rang, None for a look at all.  After a bell the round is sent at once, and ended by
        the processor that is woken while Redis runs it.
        """
        with self._turn:
            if self._quiet or self._ended or not self._idle or not self._order.serves(queue):
                return False
            self._due = True
            if queue is None or self._leading or self._unsure:
                self._turn.notify()
                return True
            turn = self._take_lead(is_processor=False)
            turn.is_heard = True
        self._lead(turn, ahead=True)
        return True

    def look(self) -> None:
        """Ring if any of the queues holds anything, bells included; one command, where a reserve runs a dozen.

        What only a reserve can tell is left to one: whether a queue still rests, what Redis still refuses, and how long
        it is away.
        """
        with self._turn:
            if self._quiet or self._ended or self._due or self._leading or not self._idle:
                return
            is_calm = not (self._resting or self._is_refused)
        try:
            if is_calm and not self._engine.has_work(self._order.weights):
                self.progress += 1
                return
        except StoreError:
            pass  # as said
        self.ring()

    def bells_wanted(self) -> list[str]:
        """Return the queues whose bells should be armed, the preferred first."""
        with self._turn:
            if self._quiet or self._ended or self._due or self._leading or self._is_refused or not self._idle:
                return []
            resting = self._resting
        return [queue for queue in self._order.preferred() if queue not in resting]

    def bounce(self, queues: Sequence[str]) -> None:
        """Put back what rang bells while nobody was idle; it rings the next process."""
        with self._engine.store.borrowed() as link:
            self._engine.exchange(link, self.member, 0, dict.fromkeys(queues, (0, 0)), [], self._runtime.clock.now())

    # the main thread

    def quiet(self) -> int:
        """Fetch no more; give unstarted units back at once, in order.  Returns their number."""
        with self._turn:
            self._quiet, self._few = True, 0
            returned = self._give_back_waiting()
            self._oldest = 0.0  # no company to wait for
        self._poke()
        return returned

    def resume(self) -> None:
        """Fetch again."""
        with self._turn:
            self._quiet = False
            self._due = True
            self._turn.notify()

    def doubt(self) -> None:
        """Resync at the next round: what Redis holds for us may not be what we think (a fail-over, a check)."""
        with self._turn:
            self._unsure = True
            self._turn.notify()

    def running(self) -> int:
        """Return the number of units that are held: running, or finished and not yet settled.

        Those whose outcome Redis refuses do not count: nobody need wait for them.
        """
        return len(self._holdings) - len(self._holdings.refused)

    def prefetched(self) -> int:
        """Return the number of units that wait here for a processor."""
        return len(self._units)

    def is_drained(self) -> bool:
        """Return whether the queues were empty, or at rest, at the last look, and nothing is held."""
        return bool(self._idle) and not (self._due or self._leading or self._unsure or len(self._holdings))

    def is_sure(self) -> bool:
        """Return whether no unit can be in flight that is not known here: no reserve is out, none was lost."""
        return not (self._leading or self._unsure)

    def end(self) -> None:
        """Let every processor end at its next turn."""
        with self._turn:
            self._ended = True
            self._ending.set()
            self._turn.notify_all()

    def leave(self, interrupted: list[Settlement], seconds: float) -> None:
        """Settle what is left and end the membership, on a connection of its own and without a lock (R7).

        Wake lists are emptied with it: what has rung since nobody listens must not wait for another kiqcluster.
        interrupted: units that still run; they are put back with their outcome.  What Redis will not settle is put
        back with the rest.  seconds: for each of two round trips.  Raises StoreError.
        """
        link, to_empty = self._engine.store.link(timeout=seconds), dict.fromkeys(self._order.weights, (0, 0))
        outcomes = [*self._holdings.left(), *interrupted]
        refusals, _ = self._engine.exchange(link, self.member, 0, to_empty or None, outcomes, self._runtime.clock.now())
        for reason in refusals.values():
            self._reach.refused("an outcome", reason)
        self._engine.recover(link, self.member.identity)

    # leading

    def _take_lead(self, *, is_processor: bool) -> Round:
        """Return the round that the caller has to end from now on, begun or new.  Called with the lock."""
        turn, self._on_air = self._on_air or Round(), None
        turn.is_processor = is_processor
        self._leading = True
        return turn

    def _lead(self, turn: Round, *, ahead: bool = False) -> None:
        """Settle what is finished and reserve for everybody idle; afterwards nobody leads.

        ahead: there are units at hand, or it is for another to go on.  What the round brings is left on the air then,
        for whoever needs it first.
        """
        is_left, went_well, following = False, False, None
        try:
            if turn.sent is None:
                self._begin(turn, ahead=ahead)
                is_left = ahead and turn.sent is not None
            if turn.sent is not None and not is_left:
                self._finish(turn, turn.sent)
            went_well = True
        except StoreError as error:
            self._outage(error, turn.batch)
        except Exception as error:  # noqa: BLE001  # an outcome that cannot be sent must not take others with it
            self._settle_singly(turn.batch, error)
        finally:
            with self._turn:
                if is_left:
                    self._on_air = turn
                    if not turn.is_heard:
                        self._ask_to_tend()
                    self._turn.notify()  # who was woken for a unit leads instead; the next one need not wait for that
                else:
                    following = self._end(turn, went_well=went_well)
        if following is not None:
            self._lead(following, ahead=True)

    def _end(self, turn: Round, *, went_well: bool) -> Round | None:
        """Lead no more, and see to it that somebody runs what there is, or leads on.  Called with the lock.

        Returns the next round, if it is to be sent ahead: before anybody is woken, who would hold the interpreter until
        what this one has brought is used up.
        """
        self._leading = False
        self._holdings.acknowledge()
        self.progress += 1
        may_follow = went_well and turn.is_processor and turn.sent is not None and not self._unsure
        if may_follow and self._few and 0 < len(self._units) <= self._few + 1:  # of which the caller takes one itself
            return self._take_lead(is_processor=True)
        self._tell_of_hunger()
        # A leading processor goes on with a unit itself, or leads again; the manager does neither.
        # If there may be more, somebody else leads on: who parked during this round was not counted in it.
        if len(self._units) > turn.is_processor or (self._due and self._units) or not turn.is_processor:
            self._turn.notify()
        return None

    def _begin(self, turn: Round, *, ahead: bool) -> None:
        """Send what is finished, and what is wanted; nothing, if there is neither."""
        if self._unsure:
            self._resync()
        with self._turn:
            turn.begun_at = self._now()
            turn.appetite, limits = self._decide(turn)
            if limits is None and ahead:
                return
            self._pace.note(len(self._finished), turn.begun_at)
            turn.batch = self._holdings.take(turn.begun_at)
            most_deaths = self._holdings.most_deaths(turn.batch, turn.begun_at)
            self._call += 1
            if ahead and self._idle and any(type(each.outcome) is not Done for each in turn.batch):
                self._turn.notify()  # payloads are sent along, which a Redis that is busy may be slow to take
        if limits is None and not turn.batch:
            return
        now = self._runtime.clock.now()
        turn.sent = self._engine.begin(
            self._link, self.member, self._call, limits, turn.batch, now, most_deaths=most_deaths
        )

    def _decide(self, turn: Round) -> tuple[Appetite, Limits | None]:
        """Return how much to reserve, in all and from each queue.  Called with the lock."""
        if self._quiet or self._ended or not (turn.is_processor or turn.is_heard or self._few):
            return NOTHING, None
        appetite = self._pace.appetite(self._idle + turn.is_processor, len(self._units))
        if appetite == NOTHING:  # enough is at hand; if a look is due, it stays so for who takes the last of it
            self._few = 0
            return NOTHING, None
        drawn = self._order.draw(MOST_QUEUES if self._few else None)
        self._due = len(drawn) < len(self._order.weights)  # the others are not asked
        limits = self._pace.limits(drawn, appetite, turn.begun_at)
        if not limits:
            self._few = 0
        return appetite, limits or None

    def _tell_of_hunger(self) -> None:
        """Have the manager arm the bells: the queues are empty, and somebody is idle.  Called with the lock.

        A leader that finds them empty is not idle yet, and bells are armed for idle processors only: it tells when it
        parks.  And they are armed only while nobody leads: who parks before its round is over leaves the telling to it.
        """
        if self._hungry and self._idle and not self._leading:
            self._hungry = False
            self._poke()

    def _finish(self, turn: Round, sent: Exchange) -> None:
        """Take in what a round has brought."""
        waited_since = self._now()
        refusals, reserved = self._engine.finish(self._link, sent)
        self.round_trips += 1
        self.round_trip_seconds += self._now() - waited_since
        batch = turn.batch
        self._holdings.settle([each for each in batch if each.unit.token not in refusals] if refusals else batch)
        self._reach.back()
        if refusals:
            self._keep_refused(batch, refusals)
        elif not self._holdings.refused and not (reserved is not None and reserved.refusal):
            self._reach.agreed()
        if reserved is not None:
            self._receive(reserved, turn)

    def _receive(self, reserved: Reserved, turn: Round) -> None:
        if reserved.fenced:
            self._rejoin()
            return
        now, appetite = self._now(), turn.appetite
        if now > turn.begun_at + STALE:
            with self._turn:
                self._unsure = self._due = True
            return
        if reserved.refusal:
            self._reach.refused("a reserve", reserved.refusal)
        self._is_refused = bool(reserved.refusal) and not reserved.resting
        units = reserved.units
        with self._turn:
            self._resting = reserved.resting
            self._holdings.reserve(units, turn.begun_at)
            is_alone = bool(units) and units[0].deaths > 0  # a suspect's batch is short for that
            if self._quiet or self._ended:  # it was on its way when the process became quiet
                self._holdings.returned += units
                self._poke()
                return
            self._units.extend(units)
            self._due = self._due or is_alone or len(units) >= appetite.now
            brought_all = len(units) == appetite.in_all > appetite.now
            self._few = self._pace.depth // 2 if brought_all else 0
            self._hungry = len(units) < appetite.now and not is_alone and not self._is_refused

    def _give_back_waiting(self) -> int:
        """Have all units that wait put back; return their number.  Called with the lock."""
        returned = self._holdings.returned
        before = len(returned)
        while self._units:
            try:
                returned.append(self._units.pop())
            except IndexError:  # a processor was faster
                break
        return len(returned) - before

    def _keep_refused(self, batch: list[Settlement], refusals: Refusals) -> None:
        self._reach.refused("an outcome", next(iter(refusals.values())))
        with self._turn:
            self._holdings.refuse(batch, refusals, self._now())

    def _settle_singly(self, batch: list[Settlement], error: Exception) -> None:
        """Settle one by one what cannot be sent together; what cannot be sent at all stays held."""
        self._reach.refused("a batch", repr(error))
        with self._turn:
            self._unsure = self._due = True  # what was reserved with them is not known
            self._turn.notify()
        for number, settlement in enumerate(batch):
            try:
                self._engine.settle(self._link, [settlement], self._runtime.clock.now())
                self._holdings.settle([settlement])
            except (RedisUnavailable, ReplyLost) as outage:
                self._outage(outage, batch[number:])
                return
            except Exception as reason:  # noqa: BLE001  # as above
                self._keep_refused([settlement], {settlement.unit.token: repr(reason)})

    # trouble

    def _resync(self) -> None:
        held = self._holdings.tokens
        self._raised = self._raised.raised()
        if self._engine.resync(self._link, self.member, self._raised, held) is None:
            self._rejoin()
            return
        with self._turn:
            self._unsure = False
            self._due = True
            self.member = self._raised

    def _rejoin(self) -> None:
        """Go on under a new identity: what was held is others' now, and what still runs settles to nothing."""
        if self._ended:  # we have left ourselves
            return
        old, member = self.member, self._new_member()
        self._on_member(member)
        self._engine.join(member)
        if self._ending.is_set():  # the process has left meanwhile, and would leave this one behind
            self._engine.recover(self._link, member.identity)
            return
        with self._turn:
            self.member = self._raised = member
            self._units.clear()
            self._holdings.forget()
            self._unsure, self._due = False, True
        self._runtime.events.emit("worker_fenced", old=old.identity, new=member.identity)

    def _outage(self, error: StoreError, batch: list[Settlement]) -> None:
        """Keep the outcomes, wait a little.  A settle may be sent again; a reserve never is (R3, R4)."""
        with self._turn:
            self._holdings.put_back(batch)
            self._due, self._few = True, 0
            self._unsure = self._unsure or isinstance(error, ReplyLost)
            self._turn.notify()  # what is at hand runs meanwhile
        self._reach.failed("a round", error)
        self._reach.pause(self._ending)

    @property
    def is_connected(self) -> bool:
        """Whether the last round reached Redis, and was not refused as a whole."""
        return self._reach.is_there and not self._is_refused

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
