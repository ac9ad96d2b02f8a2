"""Fetch: takes units from Redis and brings their outcomes back, by rules R1 to R7 of docs/engine.md.

Runs in: processor threads (`next`), the manager (`flush_overdue`, `on_wakeup`, `sweep`), the main thread (`join`,
`leave`).
1. next        a finished unit's outcome in, the next unit out: no lock while units are at hand
2. flush       one settle + reserve in one round trip, for everybody; at most one is open.  A processor that finds no
               unit flushes.  Under load, the one that finds few sends a batch ahead and runs its unit; the first one
               that finds none receives the reply
3. resync      after a lost reply: first resync, then go on (R3)
4. rejoin      others have recovered this process: it goes on under a new identity (R1)

coordinator.py decides who takes, waits or flushes; membership.py knows who this process is in Redis, in_flight.py which
units it holds.  No thread is there only to fetch: processors take from a deque, and park when there is nothing to do.
Never: takes a lock, so nobody holds one over a round trip.  Counterpart: sidekiq fetch.rb, whose BRPOP loses what it
holds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

from kiqcluster.errors import KiqError, RedisRefused, RedisUnavailable, ReplyLost, StoreError
from kiqcluster.ipc.forks import exit_if_other_process
from kiqcluster.process.runtime import Runtime
from kiqcluster.store import is_outage
from kiqcluster.store.engine.engine import NO_PERMISSION, Engine
from kiqcluster.store.engine.units import Exchange, Member, Refusals, Reserved, Settlement, Unit
from kiqcluster.store.engine.wait_lists import MAX_COMMANDS, MAX_QUEUES, forget_hands
from kiqcluster.worker.fetch.batch import Batch
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.hand_lists import HandList, HandLists
from kiqcluster.worker.fetch.in_flight import (
    STALE_UNIT_SECONDS,
    InFlight,
    lowest_limit,
)
from kiqcluster.worker.fetch.last_settle import LastSettle
from kiqcluster.worker.fetch.membership import Membership
from kiqcluster.worker.fetch.queue_order import QueueOrder
from kiqcluster.worker.fetch.redis_health import RedisHealth

__all__ = ["ReliableFetch"]

TRUSTED_SECONDS = 0.1  # after a batch, for which its connection counts as open; if it is closed, R3 handles that
MAX_SWEPT_QUEUES = MAX_QUEUES * MAX_COMMANDS  # that one sweep asks, in one round trip


class ReliableFetch:
    """Reserves units and settles them.

    All threads of a worker share it.  `coordinator` guards what they share, and they tell and ask it directly where
    there is no round trip to make.  The connection, the call number and the counters of round trips belong to the
    thread that flushes, one at a time.
    on_member: called with a new membership before its first reserve.  wake_manager: from any thread.
    """

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        order: QueueOrder,
        new_member: Callable[[], Member],
        on_member: Callable[[Member], None],
        wake_manager: Callable[[], None],
        processors: int = 1,
        death_limits: Iterable[int | None] = (),
        on_rejoined: Callable[[], None] = lambda: None,
    ) -> None:
        """death_limits: of job classes, `max_retries_after_interruption`.  on_rejoined: it has a new identity."""
        self._runtime = runtime
        self._engine = engine
        self._order = order
        self._connection = engine.store.connection(trust=TRUSTED_SECONDS)
        self._in_flight = InFlight(lowest_limit((runtime.config.max_retries_after_interruption, *death_limits)))
        self.coordinator = FetchCoordinator(order, self._in_flight, runtime.clock, wake_manager, processors)
        self._membership = Membership(engine, new_member, on_member, self.coordinator.ended)
        self._on_rejoined = on_rejoined
        self.hand_lists = HandLists(engine, runtime.clock, runtime.config.health_recover_after)
        self._health = RedisHealth(runtime)
        self._hands_health = RedisHealth(runtime)  # of the manager
        self._pid = os.getpid()
        self._call = 0
        self._max_reply_seconds = min(STALE_UNIT_SECONDS, runtime.config.health_recover_after / 2) / 2
        self.round_trips = 0  # of batches whose replies came
        self.round_trip_seconds = 0.0  # that the replies were waited for
        self.has_crashed = False  # in a batch: units, or outcomes, may have been left behind
        self.progress = 0  # batches and empty sweeps; stands still only if every processor is busy or stuck

    # processors

    def next(self, finished: Settlement | None = None) -> Unit | None:
        """Hand an outcome in and return the next unit; None when the process ends.  Waits.

        No lock and no round trip while more than a few units are at hand.
        """
        unit = self.coordinator.take_at_hand(finished)
        while unit is None:
            taken = self.coordinator.take_or_wait()
            if not isinstance(taken, Batch):
                return taken
            self._flush(taken, ahead=bool(self.coordinator.supply.units))
            unit = self.coordinator.take_at_hand()
        return unit

    # the manager

    def flush_overdue(self, long_running: Iterable[str] = ()) -> float | None:
        """Settle outcomes, and put units back, that have waited for too long.

        long_running: queues of jobs that have run for long.  Returns the seconds until the next check; None if the
        manager need not check before it is woken.
        """
        batch, seconds = self.coordinator.check_overdue(long_running)
        if batch is not None:
            self._flush(batch)
        return seconds

    def on_wakeup(self, queue: str | None = None) -> bool:
        """Say that there may be work; return whether somebody will look.

        queue: the one with a push; None if any may have work.  After a push the batch is sent at once, and the
        processor that is woken receives the reply: it wakes while Redis works.
        """
        is_wanted, batch = self.coordinator.on_wakeup(queue)
        if batch is not None:
            self._flush(batch, ahead=True)
        return is_wanted

    def register_hand_lists(self, waits: Mapping[str, tuple[int, HandList | None]]) -> dict[str, HandList]:
        """Return queue → the hand list for its next push, for the queues where that is allowed.

        waits: see HandLists.register.  None is allowed if Redis refuses our keys.  One round trip.  Raises StoreError.
        """
        generation, member = self.coordinator.redis_view.generation, self.member
        try:
            registered = self.hand_lists.register(member, generation, waits) if waits else {}
        except RedisRefused as error:  # a key of a wrong type, or an ACL: wake lists do without these keys
            if is_outage(error):
                raise
            self._hands_health.on_refusal("a wait for pushes", str(error))
            return {}
        if waits:
            self._hands_health.on_nothing_refused()
        if registered is None:
            self.coordinator.mark_uncertain()  # others have recovered this process
        return registered or {}

    def on_push(self, hand_list: HandList, payload: bytes | None, *, has_ended: bool = False) -> None:
        """Take in the unit that a push has moved to a hand list.

        payload: None if its reply is lost, or too late.  has_ended: whether its wait can bring nothing more.
        """
        if payload is not None:
            unit = Unit(hand_list.queue, payload, hand_list.token, hand_list.identity, is_in_hand=True)
            if self.coordinator.on_push(unit, hand_list.generation):
                return
        self.hand_lists.give_up(hand_list, has_ended=has_ended)
        self.coordinator.mark_uncertain()

    def look_into_hand_lists(self) -> None:
        """Have units put back that a late command has moved to a list that was given up.

        One round trip now and then while there are such lists.
        """
        try:
            if self.hand_lists.look(self.member.identity):
                self.coordinator.mark_uncertain()
        except StoreError:
            return  # it looks again

    def sweep(self) -> None:
        """Look for work without a wakeup, wake lists included; one command, where a reserve runs a dozen.

        It asks MAX_SWEPT_QUEUES queues; the next sweeps ask the others.  Only a reserve can tell whether a queue still
        rests, what Redis still refuses, and for how long it is away.
        """
        if not self.coordinator.is_sweep_wanted():
            return
        coordinator = self.coordinator
        is_reserve_wanted = bool(coordinator.redis_view.excluded.resting or coordinator.redis_view.is_refused)
        if not is_reserve_wanted or len(self._order.weights) > MAX_QUEUES:
            try:
                found = self._engine.find_work(self.coordinator.queues_to_sweep(MAX_SWEPT_QUEUES))
            except StoreError:
                is_reserve_wanted = True
            else:
                self._order.add_candidates((*found, *islice(coordinator.redis_view.excluded.resting, MAX_QUEUES)))
                is_reserve_wanted = is_reserve_wanted or bool(found)
        if is_reserve_wanted:
            self.on_wakeup()
        else:
            self.progress += 1

    def return_forgotten(self, running: Iterable[Unit]) -> None:
        """Put back units that crashed threads have left behind.  running: those that processors have."""
        if count := self.coordinator.return_forgotten(running):
            self._runtime.trouble("units", KiqError(f"{count} units of crashed threads go back to their queues"))

    def return_to_queue(self, queues: Sequence[str]) -> None:
        """Put back the payloads of wakeups that came while nobody waited; this wakes the next process."""
        with self._engine.store.borrowed() as connection:
            self._engine.exchange(
                connection, self.member, 0, dict.fromkeys(queues, (0, 0)), [], self._runtime.clock.now()
            )

    # the main thread

    @property
    def member(self) -> Member:
        """Who this process is in Redis now."""
        return self._membership.member

    def join(self) -> None:
        """Become a member, before the first reserve.  May be called again.  One round trip.  Raises StoreError."""
        self._membership.join()

    @property
    def is_connected(self) -> bool:
        """Whether the last batch reached Redis, and was not refused as a whole."""
        return self._health.is_reachable and not self.coordinator.redis_view.is_refused

    def running(self) -> int:
        """Return the number of units that are held: running, or finished and not yet settled.

        Those whose outcome Redis refuses do not count: nobody need wait for them.
        """
        return len(self._in_flight) - len(self._in_flight.refused)

    def leave(
        self,
        interrupted: list[Settlement],
        seconds: float,
        suspects: Sequence[str] = (),
        *,
        have_waits_ended: bool = False,
    ) -> None:
        """Settle the outcomes that are left and end the membership, on an own connection and without a lock (R7).

        It empties wake lists too: payloads there must not wait for another kiqcluster.
        interrupted: units that still run, with their outcomes.  Units whose outcomes Redis does not take are put back
        with the rest.  seconds: for each round trip.  suspects: tokens of units that may have caused this stop.
        have_waits_ended: whether no push can reach a hand list of this process any more.  Raises StoreError.
        """
        outcomes = [*self._in_flight.unacknowledged(), *interrupted]
        connection = self._engine.store.connection(timeout=seconds)
        LastSettle(self._engine, self.member, self._health, self._runtime.clock).settle(connection, outcomes, seconds)
        self._engine.return_wake_lists(connection, list(self._order.weights))
        self._membership.leave(connection, suspects)
        if have_waits_ended and not self.hand_lists.has_given_up:
            forget_hands(connection, self._engine.store.keys, self.member.identity)

    # the batch

    def _flush(self, batch: Batch, *, ahead: bool = False) -> None:
        """Send a batch that was claimed, unless it is sent; receive its reply, and close it.

        ahead: units are at hand, or another thread goes on.  Then the batch stays in transit once it is sent.
        """
        exit_if_other_process(self._pid)
        is_left, went_well, following = False, False, None
        try:
            if batch.sent is None:
                self._send(batch, ahead=ahead)
                is_left = ahead and batch.sent is not None
            if batch.sent is not None and not is_left:
                self._receive(batch, batch.sent)
            went_well = True
        except StoreError as error:
            self._on_outage(error, batch.settlements)
        except Exception as error:  # noqa: BLE001  # an outcome that cannot be sent must not take others with it
            self.has_crashed = True
            self._settle_one_by_one(batch.settlements, error)
        except BaseException:  # raised in this thread from outside; whether anything was sent is not known
            self.has_crashed = True
            self.coordinator.on_failure(batch.settlements, is_lost=True)
            raise
        finally:
            if is_left:
                self.coordinator.leave_in_transit(batch)
            else:
                self.progress += 1
                following = self.coordinator.close(batch, went_well=went_well)
        if following is not None:
            self._flush(following, ahead=True)

    def _send(self, batch: Batch, *, ahead: bool) -> None:
        """Build a batch and send it, unless it would do nothing."""
        if self.coordinator.redis_view.is_uncertain:
            self._resync()
        if not self.coordinator.build_request(batch, ahead=ahead):
            return
        self._call += 1
        now = self._runtime.clock.now()
        batch.sent = self._engine.begin(
            self._connection,
            self.member,
            self._call,
            batch.limits,
            batch.settlements,
            now,
            most_deaths=batch.most_deaths,
        )

    def _receive(self, batch: Batch, sent: Exchange) -> None:
        """Wait for the reply to a batch, and take it in."""
        waited_since = self._now()
        refusals, reserved = self._engine.finish(self._connection, sent)
        self.round_trips += 1
        self.round_trip_seconds += self._now() - waited_since
        settled = batch.settlements
        self._in_flight.remove([each for each in settled if each.unit.token not in refusals] if refusals else settled)
        self._health.on_reply()
        if refusals:
            self._keep_refused(settled, refusals)
        elif not self._in_flight.refused and not (reserved is not None and reserved.refusal):
            self._health.on_nothing_refused()
        self._in_flight.acknowledge()
        batch.settlements = []  # Redis has answered: a failure from here on must not send them again
        if reserved is not None:
            self._on_reserved(reserved, batch)

    def _on_reserved(self, reserved: Reserved, batch: Batch) -> None:
        if reserved.fenced:
            self._rejoin()
            return
        if self._now() > batch.started_at + self._max_reply_seconds and not self._confirm(reserved.units):
            return
        is_forbidden = reserved.is_refused and reserved.refusal.startswith(NO_PERMISSION)
        if is_forbidden and batch.limits and self._find_forbidden(batch.limits):
            return
        if reserved.refusal:
            self._health.on_refusal("a reserve", reserved.refusal)
        self.coordinator.on_reply(reserved, batch)

    def _confirm(self, units: Iterable[Unit]) -> bool:
        """Ask Redis whether this process still holds units whose reply took long; return whether it does.

        A slow line and a freeze of this process look the same, and in a freeze others may have recovered it.
        """
        self.coordinator.discard_reply()  # until Redis has answered
        asked_at = self._now()
        if not self._membership.resync(self._connection, [*self._in_flight.tokens, *(unit.token for unit in units)]):
            self._rejoin()
            return False
        if self._now() > asked_at + self._max_reply_seconds:  # it may have been recovered after that answer
            return False
        self.coordinator.on_resynced()
        return True

    def _find_forbidden(self, queues: Iterable[str]) -> bool:
        """Find the queues that Redis forbids, since one of them refuses a whole reserve; return whether any is."""
        forbidden = self._engine.forbidden_queues(self._connection, self.member, queues)
        if forbidden and self.coordinator.on_forbidden(forbidden):
            self._health.on_refusal("a reserve", "; ".join(forbidden.values()))
        return bool(forbidden)

    # failures

    def _keep_refused(self, settlements: list[Settlement], refusals: Refusals) -> None:
        self._health.on_refusal("an outcome", next(iter(refusals.values())))
        self.coordinator.on_refused(settlements, refusals)

    def _settle_one_by_one(self, settlements: list[Settlement], error: Exception) -> None:
        """Settle outcomes alone that cannot be sent together; one that cannot be sent at all stays held."""
        self._health.on_refusal("a batch", repr(error))
        self.coordinator.discard_reply()
        for number, settlement in enumerate(settlements):
            try:
                self._engine.settle(self._connection, [settlement], self._runtime.clock.now())
                self._in_flight.remove([settlement])
            except (RedisUnavailable, ReplyLost) as outage:
                self._on_outage(outage, settlements[number:])
                return
            except Exception as reason:  # noqa: BLE001  # as above
                self._keep_refused([settlement], {settlement.unit.token: repr(reason)})
        if settlements:
            self._in_flight.acknowledge()

    def _on_outage(self, error: StoreError, settlements: list[Settlement]) -> None:
        """Keep the outcomes, wait a little.  A settle may be sent again; a reserve never is (R3, R4)."""
        self.coordinator.on_failure(settlements, is_lost=isinstance(error, ReplyLost))
        self._health.on_error("a batch", error)
        self._health.pause(self.coordinator.ended)

    def _resync(self) -> None:
        if self._membership.resync(self._connection, self._in_flight.tokens):
            self.coordinator.on_resynced()
        else:
            self._rejoin()

    def _rejoin(self) -> None:
        """Go on under a new identity: others have the units that were held, and their outcomes change nothing."""
        old = self.member
        if self._membership.rejoin(self._connection):
            self.coordinator.reset()
            self._on_rejoined()
            self._runtime.events.emit("worker_fenced", old=old.identity, new=self.member.identity)

    def _now(self) -> float:
        return self._runtime.clock.monotonic()
