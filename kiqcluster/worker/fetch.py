"""Fetch: the engine's half in the worker, by rules R1 to R7 of docs/engine.md.

Runs in: processor threads (`next`), the manager (`tend`, `ring`), the main thread (quiet, resume, leave).
1. next       a finished unit's outcome in, the next unit out: no lock while units are at hand
2. lead       one settle + reserve in one round trip, for everybody; at most one is outstanding.  Whoever finds no
              unit leads, and under load whoever finds few: the others run those meanwhile
3. doubt      after a lost reply: resync first, then go on (R3)
4. fenced     others have recovered this process: it goes on under a new identity (R1)

No hand-over thread: processors take from a deque, and park on a condition when there is nothing to do.
Never: holds the lock over a round trip.  Counterpart: sidekiq fetch.rb, whose BRPOP loses what it holds.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from math import inf

from kiqcluster.backoff import jittered
from kiqcluster.errors import RedisRefused, ReplyLost, StoreError
from kiqcluster.outcome import Requeue
from kiqcluster.runtime import Runtime
from kiqcluster.store.engine import ISOLATED, Engine, Limits, Member, Refusals, Reserved, Settlement, Unit
from kiqcluster.worker.pace import MOST_QUEUES, NOTHING, Appetite, Pace
from kiqcluster.worker.queues import QueueOrder

__all__ = ["ReliableFetch"]

COMPANY = 0.02  # seconds that an outcome may wait for others to share its round trip
FRESH = 0.1  # seconds after a round for which its connection is taken to be open; if it is not, R3 sees to that
LONGEST_WAIT = 0.1  # seconds that a unit may wait here behind running jobs; then all that wait are given back
REFUSED_PAUSE = 2.0  # seconds until an outcome that Redis refused is tried again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0  # seconds between tries while Redis is away


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
        self._finished: deque[Settlement] = deque()  # outcomes; only the leader takes some out
        self._oldest = 0.0  # when the first of them came in
        self._returned: list[Unit] = []  # never started, to be put back
        self._is_tended = False  # the manager knows that something is left behind
        self._held: dict[str, Unit] = {}  # by token, until the settle is acknowledged
        self._suspect = ""  # token of the one unit held that processes have died of
        self._idle = 0  # processors parked on the condition
        self._leading = False
        self._due = True  # there may be work in Redis
        self._few = 0  # units at hand at which somebody leads ahead; 0 while none are taken ahead
        self._hungry = False  # the last reserve brought less than idle processors wanted
        self._pace = Pace()
        self._unsure = False  # a reply was lost: what Redis thinks that we hold is not known
        self._quiet = False
        self._ended = False
        self._resting: frozenset[str] = frozenset()  # queues that are paused or broken
        self._on_wire: list[Settlement] = []  # outcomes whose settle is not acknowledged yet
        self._refused: list[Settlement] = []  # outcomes that Redis would not write, and when they are tried again
        self._refused_until = 0.0
        self._is_refused = False  # the last reserve, as a whole
        self._complaint = ""
        self._call = 0
        self._failures = 0
        self._lost_at = 0.0
        self.progress = 0  # rounds led; stands still only if every processor is busy or stuck

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
                self._leading = True
                if self._units:
                    self._turn.notify()  # somebody runs these meanwhile
            self._lead(is_processor=True)

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
                return unit
        return None

    def _should_lead(self) -> bool:
        if self._leading or len(self._units) > self._few:
            return False
        return bool(self._few or self._finished or self._unsure or (self._due and not self._quiet))

    def _ask_to_tend(self) -> None:
        """Have the manager look after what is left behind: the caller may be busy for long."""
        if not self._is_tended and (self._finished or self._units):
            self._is_tended = True
            self._poke()

    # the manager

    def tend(self, long_running: Iterable[str] = ()) -> float | None:
        """Settle what has waited for COMPANY, give back units that have waited for LONGEST_WAIT.

        long_running: queues of units that have run for long.  Returns seconds until the next look, None for a poke.
        """
        self._is_tended = False  # before the look: what comes after it pokes
        if not (self._finished or self._units or self._returned or self._refused):
            return None
        self._is_tended = True
        now = self._now()
        if self._waited_since() <= now - LONGEST_WAIT:
            with self._turn:
                self._give_back_waiting()
                self._pace.blame(long_running, now)
        if self._leading:
            return COMPANY / 2  # that round does not see what came in since it began
        due_in = COMPANY  # also when processors have taken everything since: what they finish must find us looking
        if self._finished or self._refused:
            due_in = max(0.0, (self._oldest if self._finished else self._refused_until - COMPANY) + COMPANY - now)
        if due_in == 0 or self._returned:
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
            if self._leading or not (self._finished or self._refused or self._returned):
                return
            self._leading = True
            self._due = True  # who handed these in finds nothing left to settle, and must look for work all the same
        self._lead(is_processor=False)

    def ring(self, queue: str | None = None) -> bool:
        """Say that there may be work; return whether somebody will look.

        queue: the one whose bell rang, None for a look at all.
        """
        with self._turn:
            if self._quiet or self._ended or not self._idle or not self._order.serves(queue):
                return False
            self._due = True
            self._turn.notify()
            return True

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
        return len(self._held) - len(self._refused)

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
        outcomes = [*self._on_wire, *self._finished, *self._refused, *interrupted]
        refusals, _ = self._engine.exchange(link, self.member, 0, to_empty or None, outcomes, self._runtime.clock.now())
        for reason in refusals.values():
            self._complain("an outcome", reason)
        self._engine.recover(link, self.member.identity)

    # leading

    def _lead(self, *, is_processor: bool) -> None:
        """Settle what is finished and reserve for everybody idle; afterwards nobody leads."""
        batch: list[Settlement] = []
        try:
            if self._unsure:
                self._resync()
            with self._turn:
                finished = len(self._finished)
                batch = self._take_outcomes()
                now = self._now()
                self._pace.note(finished, now)
                appetite, limits = self._decide(now, is_processor=is_processor)
                self._call += 1
            self._round(batch, appetite, limits)
        except StoreError as error:
            self._outage(error, batch)
        except Exception as error:  # noqa: BLE001  # an outcome that cannot be sent must not take others with it
            self._settle_singly(batch, error)
        finally:
            with self._turn:
                self._leading, self._on_wire = False, []
                self.progress += 1
                self._tell_of_hunger()
                # A leading processor goes on with a unit itself, or leads again; the manager does neither.
                # If there may be more, somebody else leads on: who parked during this round was not counted in it.
                leads_on = not is_processor or (self._due and bool(self._units))
                self._turn.notify(max(0, len(self._units) - is_processor) + leads_on)

    def _take_outcomes(self) -> list[Settlement]:
        """Return what is to be settled now.  Called with the lock."""
        batch = [self._finished.popleft() for _ in range(len(self._finished))]
        if self._refused and self._now() >= self._refused_until:
            batch += self._refused
            self._refused = []
        # Newest first, so that the oldest is fetched next.
        self._returned.sort(key=lambda unit: unit.token, reverse=True)
        batch += [Settlement(unit, Requeue()) for unit in self._returned]
        self._returned = []
        self._on_wire = batch
        return batch

    def _decide(self, now: float, *, is_processor: bool) -> tuple[Appetite, Limits | None]:
        """Return how much to reserve, in all and from each queue.  Called with the lock."""
        if self._quiet or self._ended or not (is_processor or self._few):
            return NOTHING, None
        appetite = self._pace.appetite(self._idle + is_processor, len(self._units))
        limits = self._pace.limits(self._order.draw(MOST_QUEUES if self._few else None), appetite, now)
        self._due = False
        if not limits or appetite == NOTHING:
            self._few = 0
            return NOTHING, None
        return appetite, limits

    def _tell_of_hunger(self) -> None:
        """Have the manager arm the bells: the queues are empty, and somebody is idle.  Called with the lock.

        A leader that finds them empty is not idle yet, and bells are armed for idle processors only: it tells when it
        parks.  And they are armed only while nobody leads: who parks before its round is over leaves the telling to it.
        """
        if self._hungry and self._idle and not self._leading:
            self._hungry = False
            self._poke()

    def _round(self, batch: list[Settlement], appetite: Appetite, limits: Limits | None) -> None:
        if limits is None and not batch:
            return
        refusals, reserved = self._engine.exchange(
            self._link,
            self.member,
            self._call,
            limits,
            batch,
            self._runtime.clock.now(),
            may_suspect=not self._suspect,
        )
        self._release([each for each in batch if each.unit.token not in refusals] if refusals else batch)
        self._back()
        if refusals:
            self._keep_refused(batch, refusals)
        elif not self._refused and not (reserved is not None and reserved.refusal):
            self._complaint = ""
        if reserved is not None:
            self._receive(reserved, appetite)

    def _receive(self, reserved: Reserved, appetite: Appetite) -> None:
        if reserved.fenced:
            self._rejoin()
            return
        if reserved.refusal:
            self._complain("a reserve", reserved.refusal)
        self._is_refused = bool(reserved.refusal) and not reserved.resting
        units, now = reserved.units, self._now()
        with self._turn:
            self._resting = reserved.resting
            for unit in units:
                unit.reserved_at = now
                self._held[unit.token] = unit
            is_alone = bool(units) and units[0].deaths >= ISOLATED  # its batch is short for that
            if is_alone:
                self._suspect = units[0].token
            if self._quiet or self._ended:  # it was on its way when the process became quiet
                self._returned += units
                self._poke()
                return
            self._units.extend(units)
            self._due = self._due or is_alone or len(units) >= appetite.now
            brought_all = len(units) == appetite.in_all > appetite.now
            self._few = len(units) // 2 if brought_all else 0
            self._hungry = len(units) < appetite.now and not is_alone and not self._is_refused

    def _give_back_waiting(self) -> int:
        """Have all units that wait put back; return their number.  Called with the lock."""
        before = len(self._returned)
        while self._units:
            try:
                self._returned.append(self._units.pop())
            except IndexError:  # a processor was faster
                break
        return len(self._returned) - before

    def _release(self, batch: list[Settlement]) -> None:
        for settlement in batch:
            self._held.pop(settlement.unit.token, None)
            if settlement.unit.token == self._suspect:
                self._suspect = ""

    def _keep_refused(self, batch: list[Settlement], refusals: Refusals) -> None:
        """Keep what Redis refused to write: it stays held, and is tried again later."""
        self._complain("an outcome", next(iter(refusals.values())))
        with self._turn:
            self._refused += [each for each in batch if each.unit.token in refusals]
            self._refused_until = self._now() + REFUSED_PAUSE

    def _settle_singly(self, batch: list[Settlement], error: Exception) -> None:
        """Settle one by one what cannot be sent together; what cannot be sent at all stays held."""
        self._complain("a batch", repr(error))
        for settlement in batch:
            try:
                self._engine.settle(self._link, [settlement], self._runtime.clock.now())
                self._release([settlement])
            except Exception as reason:  # noqa: BLE001  # as above
                self._keep_refused([settlement], {settlement.unit.token: repr(reason)})

    def _complain(self, operation: str, reason: str) -> None:
        """Say what Redis refuses; once, until it refuses something else or nothing."""
        if reason != self._complaint:
            self._complaint = reason
            self._runtime.events.emit("redis_refused", operation=operation, error=reason)

    # trouble

    def _resync(self) -> None:
        held = list(self._held)
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
            self._returned.clear()
            self._held.clear()
            self._suspect = ""
            self._unsure, self._due = False, True
        self._runtime.events.emit("worker_fenced", old=old.identity, new=member.identity)

    def _outage(self, error: StoreError, batch: list[Settlement]) -> None:
        """Keep the outcomes, wait a little.  A settle may be sent again; a reserve never is (R3, R4)."""
        with self._turn:
            self._finished.extendleft(reversed(batch))
            self._due = True
            self._unsure = self._unsure or isinstance(error, ReplyLost)
        if isinstance(error, RedisRefused):
            self._complain("a round", str(error))
        elif not self._lost_at:
            self._lost_at = self._runtime.clock.monotonic()
            self._runtime.events.emit("redis_lost", error=str(error))
        self._pause()

    def _pause(self) -> None:
        self._ending.wait(jittered(self._failures, FIRST_PAUSE, LONGEST_PAUSE, self._runtime.rng))
        self._failures += 1

    def _back(self) -> None:
        self._failures = 0
        if self._lost_at:
            self._runtime.events.emit("redis_back", seconds=self._runtime.clock.monotonic() - self._lost_at)
            self._lost_at = 0.0

    @property
    def is_connected(self) -> bool:
        """Whether the last round reached Redis, and was not refused as a whole."""
        return not self._lost_at and not self._is_refused

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
