"""Fetch: the engine's half in the worker, by rules R1 to R7 of docs/engine.md.

Runs in: processor threads (`next`), the manager (`tend`, `ring`, `look`), the main thread (quiet, resume, leave).
1. next       a finished unit's outcome in, the next unit out: no lock while units are at hand
2. lead       one settle + reserve in one round trip, for everybody; at most one is outstanding.  Whoever finds no unit
              leads; under load whoever finds few sends a round and runs on: who finds none then takes in what it brings
3. doubt      after a lost reply: resync first, then go on (R3)
4. fenced     others have recovered this process: it goes on under a new identity (R1)

Whose turn it is to take, to wait or to lead is in coordinator.py, who we are in Redis in membership.py, what is held
until Redis has its outcome in in_flight.py.  No hand-over thread: processors take from a deque, and park on a condition
when there is nothing to do.
Never: takes a lock itself, so none is held over a round trip.  Counterpart: sidekiq fetch.rb, whose BRPOP loses what it
holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kiqcluster.errors import RedisUnavailable, ReplyLost, StoreError
from kiqcluster.ipc.forks import exit_if_other_process
from kiqcluster.process.runtime import Runtime
from kiqcluster.store import Link
from kiqcluster.store.engine import (
    MAX_COMMANDS,
    MAX_QUEUES,
    NO_PERMISSION,
    Engine,
    Exchange,
    Member,
    Refusals,
    Reserved,
    Settlement,
    Unit,
)
from kiqcluster.worker.fetch.coordinator import Round, Turns
from kiqcluster.worker.fetch.in_flight import (
    MAX_SETTLE_BYTES,
    STALE_UNIT_SECONDS,
    InFlight,
    count_fitting,
    payload_bytes,
)
from kiqcluster.worker.fetch.membership import Membership
from kiqcluster.worker.fetch.queue_order import QueueOrder
from kiqcluster.worker.fetch.redis_health import RedisHealth

__all__ = ["ReliableFetch"]

COMPANY = 0.02  # seconds that an outcome may wait for others to share its round trip
FRESH = 0.1  # seconds after a round for which its connection is taken to be open; if it is not, R3 sees to that
MAX_LOOKED_AT = MAX_QUEUES * MAX_COMMANDS  # queues that one look asks, in one round trip
MAX_LIGHT_BYTES = 100_000  # of an outcome that a stop settles before all others, with its like
LONGEST_WAIT = 0.1  # seconds that a unit may wait here behind running jobs; then all that wait are given back


class ReliableFetch:
    """Reserves units and settles them.

    Shared by all threads of a worker.  What they share is in `_turns`, and guarded there; the link, the call and the
    numbers of round trips belong to whoever leads, one thread at a time.
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
        self._link = engine.store.link(trust=FRESH)
        self._in_flight = InFlight(runtime.config.max_retries_after_interruption)
        self._turns = Turns(order, self._in_flight, runtime.clock, poke)
        self._membership = Membership(engine, new_member, on_member, self._turns.ending)
        self._health = RedisHealth(runtime)
        self._pid = os.getpid()
        self._call = 0
        self._late_after = min(STALE_UNIT_SECONDS, runtime.config.recover_after / 2) / 2
        self.round_trips = 0  # rounds whose replies came
        self.round_trip_seconds = 0.0  # that they were waited for
        self.progress = 0  # rounds led, looks that found nothing; stands still only if every processor is busy or stuck

    # processors

    def next(self, finished: Settlement | None = None) -> Unit | None:
        """Take an outcome in and return the next unit; None when the process ends.

        No lock and no round trip while more than a few units are at hand.
        """
        turns = self._turns
        if finished is not None:
            if not turns.finished:
                turns.oldest = self._now()
            turns.finished.append(finished)
        units = turns.units
        while True:
            if len(units) > turns.few or turns.leading:
                try:
                    unit = units.popleft()
                except IndexError:  # others were faster
                    pass
                else:
                    if not turns.is_tended:
                        turns.ask_to_tend()
                    return unit
            taken = turns.wait()
            if not isinstance(taken, Round):
                return taken
            self._lead(taken, ahead=bool(units))

    def hand_in(self, finished: Settlement) -> None:
        """Take an outcome in from a thread that asks for no other unit."""
        self._turns.finished.append(finished)
        self._turns.ask_to_tend()

    # the manager

    def tend(self, long_running: Iterable[str] = ()) -> float | None:
        """Settle what has waited for COMPANY, give back units that have waited for LONGEST_WAIT.

        long_running: queues of units that have run for long.  Returns seconds until the next look, None for a poke.
        """
        turns = self._turns
        if not turns.begin_to_tend():
            return None
        on_air, now = turns.on_air, self._now()
        if turns.waited_since() <= now - LONGEST_WAIT:
            turns.give_back(long_running, now)
        if on_air and (turns.is_quiet or now >= on_air.begun_at + COMPANY):
            self._end_round()
        if turns.leading:
            return COMPANY / 2  # that round does not see what came in since it began
        due_in = COMPANY  # also when processors have taken everything since: what they finish must find us looking
        if turns.finished:
            due_in = max(0.0, turns.oldest + COMPANY - now)
        elif self._in_flight.refused:
            due_in = max(0.0, self._in_flight.refused_until - now)
        if due_in == 0 or self._in_flight.returned:
            self.flush()
            due_in = COMPANY
        return due_in

    def flush(self) -> None:
        """Settle what is finished, if nobody leads."""
        turn = self._turns.lead_to_settle()
        if turn is not None:
            self._lead(turn)

    def _end_round(self) -> None:
        """Take in what a round has brought that nobody was in need of."""
        turn = self._turns.lead_on_air()
        if turn is not None:
            self._lead(turn)

    def ring(self, queue: str | None = None) -> bool:
        """Say that there may be work; return whether somebody will look.

        queue: the one whose bell rang, None for a look at all.  After a bell the round is sent at once, and ended by
        the processor that is woken while Redis runs it.
        """
        is_heard, turn = self._turns.heed(queue)
        if turn is not None:
            self._lead(turn, ahead=True)
        return is_heard

    def look(self) -> None:
        """Ring if any of the queues holds anything, bells included; one command, where a reserve runs a dozen.

        Of many queues only so many are asked, the others by the next looks.  What only a reserve can tell is left to
        one: whether a queue still rests, what Redis still refuses, and how long it is away.
        """
        turns = self._turns
        if not turns.is_look_wanted():
            return
        is_reserve_due = bool(turns.resting or turns.is_refused)
        if not is_reserve_due or len(self._order.weights) > MAX_QUEUES:
            try:
                found = self._engine.find_work(turns.look_at(MAX_LOOKED_AT))
            except StoreError:
                is_reserve_due = True
            else:
                turns.suspect((*found, *islice(turns.resting, MAX_QUEUES)))
                is_reserve_due = is_reserve_due or bool(found)
        if is_reserve_due:
            self.ring()
        else:
            self.progress += 1

    def bells_wanted(self) -> list[str]:
        """Return the queues whose bells should be armed, the preferred first."""
        return self._turns.bells_wanted()

    def bounce(self, queues: Sequence[str]) -> None:
        """Put back what rang bells while nobody was idle; it rings the next process."""
        with self._engine.store.borrowed() as link:
            self._engine.exchange(link, self.member, 0, dict.fromkeys(queues, (0, 0)), [], self._runtime.clock.now())

    # the main thread

    @property
    def member(self) -> Member:
        """Who this process is in Redis now."""
        return self._membership.member

    @property
    def is_connected(self) -> bool:
        """Whether the last round reached Redis, and was not refused as a whole."""
        return self._health.is_reachable and not self._turns.is_refused

    def quiet(self) -> int:
        """Fetch no more; give unstarted units back at once, in order.  Returns their number."""
        return self._turns.quiet()

    def resume(self) -> None:
        """Fetch again."""
        self._turns.resume()

    def doubt(self) -> None:
        """Resync at the next round: what Redis holds for us may not be what we think (a fail-over, a check)."""
        self._turns.doubt()

    def running(self) -> int:
        """Return the number of units that are held: running, or finished and not yet settled.

        Those whose outcome Redis refuses do not count: nobody need wait for them.
        """
        return len(self._in_flight) - len(self._in_flight.refused)

    def prefetched(self) -> int:
        """Return the number of units that wait here for a processor."""
        return len(self._turns.units)

    def is_drained(self) -> bool:
        """Return whether the queues were empty, or at rest, at the last look, and nothing is held."""
        return bool(self._turns.idle) and self.is_sure() and not (self._turns.due or len(self._in_flight))

    def is_sure(self) -> bool:
        """Return whether no unit can be in flight that is not known here: no reserve is out, none was lost."""
        return not (self._turns.leading or self._turns.unsure)

    def end(self) -> None:
        """Let every processor end at its next turn."""
        self._turns.end_all()

    def leave(self, interrupted: list[Settlement], seconds: float, suspects: Sequence[str] = ()) -> None:
        """Settle what is left and end the membership, on a connection of its own and without a lock (R7).

        Wake lists are emptied with it: what has rung since nobody listens must not wait for another kiqcluster.
        interrupted: units that still run; they are put back with their outcome.  What Redis will not settle is put
        back with the rest.  seconds: for each round trip.  suspects: tokens of units that may have caused this.
        Raises StoreError.
        """
        outcomes = [*self._in_flight.unacknowledged(), *interrupted]
        heavy = [each for each in outcomes if payload_bytes(each) > MAX_LIGHT_BYTES]
        link = self._engine.store.link(timeout=seconds)
        self._settle_last(link, [each for each in outcomes if payload_bytes(each) <= MAX_LIGHT_BYTES])
        self._settle_heavy(heavy, seconds)
        self._engine.return_wake_lists(link, list(self._order.weights))
        self._membership.leave(link, suspects)

    def _settle_heavy(self, outcomes: Sequence[Settlement], seconds: float) -> None:
        """Settle those with large payloads one by one, while there is time: on a slow line there is none for all.

        What is not settled goes back as it was, with all that is still held.
        """
        until = self._now() + seconds
        for number, settlement in enumerate(outcomes):
            link = self._engine.store.link(timeout=seconds, total=until - self._now())
            try:
                self._settle_last(link, [settlement])
            except (RedisUnavailable, ReplyLost) as error:
                reason = f"{len(outcomes) - number} large outcomes are not written, their jobs go back ({error})"
                self._health.on_refusal("a stop", reason)
                return
            finally:
                link.close()

    def _settle_last(self, link: Link, outcomes: Sequence[Settlement]) -> None:
        while outcomes:
            count = count_fitting(outcomes, MAX_SETTLE_BYTES)
            now = self._runtime.clock.now()
            refusals, _ = self._engine.exchange(link, self.member, 0, None, outcomes[:count], now)
            for reason in refusals.values():
                self._health.on_refusal("an outcome", reason)
            outcomes = outcomes[count:]

    # leading

    def _lead(self, turn: Round, *, ahead: bool = False) -> None:
        """Settle what is finished and reserve for everybody idle; afterwards nobody leads.

        ahead: there are units at hand, or it is for another to go on.  What the round brings is left on the air then,
        for whoever needs it first.
        """
        exit_if_other_process(self._pid)
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
        except BaseException:  # raised in this thread from outside; whether anything was sent is not known
            self._turns.put_back(turn.batch, is_lost=True)
            raise
        finally:
            if is_left:
                self._turns.leave_on_air(turn)
            else:
                self.progress += 1
                following = self._turns.end(turn, went_well=went_well)
        if following is not None:
            self._lead(following, ahead=True)

    def _begin(self, turn: Round, *, ahead: bool) -> None:
        """Send what is finished, and what is wanted; nothing, if there is neither."""
        if self._turns.unsure:
            self._resync()
        if not self._turns.load(turn, ahead=ahead):
            return
        self._call += 1
        now = self._runtime.clock.now()
        turn.sent = self._engine.begin(
            self._link, self.member, self._call, turn.limits, turn.batch, now, most_deaths=turn.most_deaths
        )

    def _finish(self, turn: Round, sent: Exchange) -> None:
        """Take in what a round has brought."""
        waited_since = self._now()
        refusals, reserved = self._engine.finish(self._link, sent)
        self.round_trips += 1
        self.round_trip_seconds += self._now() - waited_since
        batch = turn.batch
        self._in_flight.remove([each for each in batch if each.unit.token not in refusals] if refusals else batch)
        self._health.on_reply()
        if refusals:
            self._keep_refused(batch, refusals)
        elif not self._in_flight.refused and not (reserved is not None and reserved.refusal):
            self._health.on_nothing_refused()
        if reserved is not None:
            self._receive(reserved, turn)

    def _receive(self, reserved: Reserved, turn: Round) -> None:
        if reserved.fenced:
            self._rejoin()
            return
        if self._now() > turn.begun_at + self._late_after and not self._confirm(reserved.units):
            return
        is_forbidden = reserved.is_refused and reserved.refusal.startswith(NO_PERMISSION)
        if is_forbidden and turn.limits and self._forbid(turn.limits):
            return
        if reserved.refusal:
            self._health.on_refusal("a reserve", reserved.refusal)
        self._turns.take_in(reserved, turn)

    def _confirm(self, units: Iterable[Unit]) -> bool:
        """Ask Redis whether units are ours still whose reply took long; return whether they are.

        A slow line and a freeze of this process look the same, and in a freeze others may have recovered it.
        """
        self._turns.disbelieve()  # until it has answered
        if not self._membership.resync(self._link, [*self._in_flight.tokens, *(unit.token for unit in units)]):
            self._rejoin()
            return False
        self._turns.be_sure()
        return True

    def _forbid(self, queues: Iterable[str]) -> bool:
        """Find out which of these queues Redis forbids, since one refuses a whole reserve; return whether any is."""
        forbidden = self._engine.forbidden_queues(self._link, self.member, queues)
        if forbidden and self._turns.forbid(forbidden):
            self._health.on_refusal("a reserve", "; ".join(forbidden.values()))
        return bool(forbidden)

    # trouble

    def _keep_refused(self, batch: list[Settlement], refusals: Refusals) -> None:
        self._health.on_refusal("an outcome", next(iter(refusals.values())))
        self._turns.refuse(batch, refusals)

    def _settle_singly(self, batch: list[Settlement], error: Exception) -> None:
        """Settle one by one what cannot be sent together; what cannot be sent at all stays held."""
        self._health.on_refusal("a batch", repr(error))
        self._turns.disbelieve()  # what was reserved with them is not known
        for number, settlement in enumerate(batch):
            try:
                self._engine.settle(self._link, [settlement], self._runtime.clock.now())
                self._in_flight.remove([settlement])
            except (RedisUnavailable, ReplyLost) as outage:
                self._outage(outage, batch[number:])
                return
            except Exception as reason:  # noqa: BLE001  # as above
                self._keep_refused([settlement], {settlement.unit.token: repr(reason)})

    def _outage(self, error: StoreError, batch: list[Settlement]) -> None:
        """Keep the outcomes, wait a little.  A settle may be sent again; a reserve never is (R3, R4)."""
        self._turns.put_back(batch, is_lost=isinstance(error, ReplyLost))
        self._health.on_error("a round", error)
        self._health.pause(self._turns.ending)

    def _resync(self) -> None:
        if self._membership.resync(self._link, self._in_flight.tokens):
            self._turns.be_sure()
        else:
            self._rejoin()

    def _rejoin(self) -> None:
        """Go on under a new identity: what was held is others' now, and what still runs settles to nothing."""
        old = self.member
        if self._membership.rejoin(self._link):
            self._turns.start_over()
            self._runtime.events.emit("worker_fenced", old=old.identity, new=self.member.identity)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
