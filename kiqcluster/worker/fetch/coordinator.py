"""Fetch coordinator: who takes which unit, who waits for one, and who flushes the next batch.

1. take            a unit at hand, or the batch that the caller has to flush
2. build_request   what the batch settles and reserves
3. on_reply        the units that it has brought are at hand
4. close           nobody flushes, and one taker is woken, who wakes the next.  Or the batch is left in transit, and
                   the first one who needs it receives the reply

It has one lock, and the condition on which takers wait; fetch.py has the connection, so nobody holds the lock over a
round trip.  A call never waits, but for `take_or_wait`, so tests drive it step by step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import islice
from typing import Concatenate, ParamSpec, TypeVar

from kiqcluster.process.clock import Clock
from kiqcluster.process.service import snapshot
from kiqcluster.sidekiq.outcome import Done
from kiqcluster.store.engine.reserve_calls import MAX_RESERVE_BYTES
from kiqcluster.store.engine.units import Limits, Refusals, Reserved, Settlement, Unit
from kiqcluster.store.engine.wait_lists import MAX_QUEUES
from kiqcluster.worker.fetch.batch import Batch, Batches, BatchState, FetchMode
from kiqcluster.worker.fetch.concurrency_limit import ConcurrencyLimit
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.prefetch import MAX_QUEUES_AT_FULL_PACE, NO_UNITS, ReserveSize
from kiqcluster.worker.fetch.queue_order import ExcludedQueues, QueueOrder
from kiqcluster.worker.fetch.stalls import StallDetector
from kiqcluster.worker.fetch.supply import RedisView, Supply
from kiqcluster.worker.fetch.wakeups import MAX_ARMED_QUEUES

__all__ = ["BATCH_DELAY_SECONDS", "FetchCoordinator"]

BATCH_DELAY_SECONDS = 0.02  # that an outcome may wait for others to share its batch
UNCERTAIN_CHECK_SECONDS = 0.1  # between checks whether a resync was made that is due
MAX_UNIT_WAIT_SECONDS = 0.1  # that a unit may wait here behind running jobs; then all that wait are put back


P = ParamSpec("P")
R = TypeVar("R")

_NONE = BatchState.NONE  # a global name is read faster than a member: for the code that runs once for each unit


def locked(step: Callable[Concatenate[FetchCoordinator, P], R]) -> Callable[Concatenate[FetchCoordinator, P], R]:
    """Return the step that runs with the coordinator's lock held."""

    @wraps(step)
    def run_locked(self: FetchCoordinator, /, *arguments: P.args, **options: P.kwargs) -> R:
        for _ in iter(self.lock.acquire, None):  # as `with`, see FetchCoordinator
            try:
                return step(self, *arguments, **options)
            finally:
                self.lock.release()
        raise AssertionError("a lock is always acquired")

    return run_locked


class FetchCoordinator:
    """The state that all takers of a process share, and the manager.

    supply: the units at hand, and the takers that wait.  batches: the batch that is open.  redis_view: what is known
    of Redis.  A taker is a processor thread; it might be an event loop.  A taker that gets nothing adds its free places
    to `supply.demand`, and waits for `parked`.

    `lock` guards all of it.  A method that is `locked` takes the lock; whoever calls another one has it, with two
    exceptions.  `take_at_hand`, `hand_in` and `notify_manager` may be called at any time: they take from the left of
    `supply.units` and add to the right of `supply.finished`, which are atomic, and set `supply.oldest_finished_at` and
    `supply.is_manager_notified`.  And any single field may be read at any time.

    wake_manager: has the manager call `check_overdue` and `queues_to_arm`; from any thread.
    """

    def __init__(
        self,
        order: QueueOrder,
        in_flight: InFlight,
        clock: Clock,
        wake_manager: Callable[[], None],
        takers: int = 1,
    ) -> None:
        """takers: units that all takers together can run at once."""
        # A library may raise an exception in this thread from outside: a time limit.  If `for` takes the lock, it is
        # raised before or after that.  From Python 3.14 on, `with` and a call may let it in when the lock is taken and
        # nothing releases it yet.  The lock of a condition would stay locked, too.
        self.lock = threading.Lock()
        self.parked = threading.Condition(self.lock)
        self.ended = threading.Event()  # to wait for
        self._order = order
        self._in_flight = in_flight
        self._now = clock.monotonic
        self._wake_taker: Callable[[], None] = self.parked.notify
        self._wake_manager = wake_manager
        self._stalls = StallDetector(clock)
        self._parked_count = 0
        self.mode = FetchMode.FETCHING
        self.supply = Supply(in_flight.finished, ConcurrencyLimit(takers, clock))
        self.batches = Batches()
        self.redis_view = RedisView(ExcludedQueues(clock))

    # takers

    def take_at_hand(self, finished: Settlement | None = None) -> Unit | None:
        """Hand an outcome in, and take a unit if more than a few are at hand, or if somebody flushes already."""
        supply = self.supply
        if finished is not None:
            if not supply.finished:
                supply.oldest_finished_at = self._now()
            supply.finished.append(finished)
        units = supply.units
        if (len(units) > supply.low_watermark or self.batches.state is not _NONE) and not supply.is_crowded:
            try:
                unit = units.popleft()
            except IndexError:  # others were faster
                return None
            if not supply.is_manager_notified:
                self.notify_manager()
            return unit
        return None

    def hand_in(self, finished: Settlement) -> None:
        """Hand an outcome in, and take no unit: it waits for others to share its batch."""
        if not self.supply.finished:
            self.supply.oldest_finished_at = self._now()
        self.supply.finished.append(finished)
        self.notify_manager()

    def take(self, own_demand: int) -> Unit | Batch | None:
        """Return a unit, or the batch that the caller has to flush; None if there is neither, or when it is ENDED.

        own_demand: units that the caller can take.  After None it adds these to the demand.
        """
        if self.mode is FetchMode.ENDED:
            return None
        if self._should_flush():
            return self._claim(own_demand)
        supply = self.supply
        supply.check_crowd()
        if supply.is_crowded:
            supply.is_crowded = supply.active() > supply.limit.current + own_demand  # the caller takes no more
            self.notify_manager()
            return None
        try:
            unit = supply.units.popleft()
        except IndexError:
            return None
        self.notify_manager()
        if supply.units or self.redis_view.is_reserve_due or self.batches.in_transit:
            self._wake_another()  # each wakes the next: all at once would contend for nothing
        return unit

    def take_or_wait(self) -> Unit | Batch | None:
        """Return what `take` does, as soon as there is anything; None when it is time to end."""
        for _ in iter(self.lock.acquire, None):
            try:
                while True:
                    taken = self.take(1)
                    if taken is not None or self.mode is FetchMode.ENDED:
                        return taken
                    self._park()
            finally:
                self.lock.release()
        raise AssertionError("a lock is always acquired")

    def _park(self) -> None:
        seconds = None
        self._parked_count += 1
        try:
            self.set_demand(self._parked_count)
            seconds = self.supply.begin_watch()
            self.parked.wait(seconds)
        finally:  # a library may raise an exception in this thread that was meant for the job before (a time limit)
            self._parked_count -= 1
            self.supply.demand = self._parked_count
            if seconds is not None:
                self.supply.end_watch(is_flushing=self.batches.state is BatchState.FLUSHING)

    def set_demand(self, units: int) -> None:
        """Set how many units takers wait for."""
        self.supply.demand = units
        self._report_starvation()

    def _wake_another(self) -> None:
        """Wake a taker for the units at hand, unless as many run as should, and one watches them."""
        supply = self.supply
        if not (supply.is_watched and supply.is_limited() and supply.active() >= supply.limit.current):
            self._wake_taker()

    def notify_manager(self) -> None:
        """Have the manager look after everything that waits here: the caller may be busy for long."""
        supply = self.supply
        if not supply.is_manager_notified and (supply.finished or supply.units or self.batches.in_transit):
            supply.is_manager_notified = True
            self._wake_manager()

    def _should_flush(self) -> bool:
        state, supply, redis_view = self.batches.state, self.supply, self.redis_view
        if state is BatchState.FLUSHING:
            return False
        if state is BatchState.IN_TRANSIT:
            return not supply.units
        if len(supply.units) > supply.low_watermark:
            return False
        may_reserve = redis_view.is_reserve_due and self.mode is FetchMode.FETCHING
        return bool(supply.low_watermark or supply.finished or redis_view.is_uncertain or may_reserve)

    def _claim(self, own_demand: int) -> Batch:
        """Return the batch that the caller has to flush: the one in transit, or a new one."""
        return self.batches.claim(own_demand, threading.current_thread().name)

    @locked
    def abandon(self) -> None:
        """End the batch that a crash of the calling service has left open; called when its thread has started again."""
        if self.batches.abandon(threading.current_thread().name):
            self._discard_reply()

    def _report_starvation(self) -> None:
        """Have the manager arm wakeups: the queues are empty, and somebody waits.

        Wakeups are armed only while there is demand and no batch.  A flusher that finds the queues empty does not wait
        yet: it reports when it does.  And who begins to wait before the batch is closed leaves the report to `close`.
        """
        if self.redis_view.is_starved and self.supply.demand and self.batches.state is BatchState.NONE:
            self.redis_view.is_starved = False
            self._wake_manager()

    # the manager

    @locked
    def check_overdue(self, long_running: Iterable[str]) -> tuple[Batch | None, float | None]:
        """Put units back that have waited for MAX_UNIT_WAIT_SECONDS; find the batch that the manager has to flush now.

        long_running: the queues of jobs that have run for long.  Also returns the seconds until the next check; None if
        nothing waits here: when something does, `wake_manager` is called.
        """
        supply, batches, is_uncertain = self.supply, self.batches, self.redis_view.is_uncertain
        supply.is_manager_notified = False  # first: whatever comes later wakes the manager
        if not (supply.units or batches.in_transit or self._in_flight.has_waiting or is_uncertain):
            return None, None
        supply.is_manager_notified = True
        now = self._now()
        self._stalls.check(now)
        if self._has_waited_too_long(now):
            self._in_flight.return_units(supply.units)
            supply.prefetch.penalize(long_running, now)
        batch = batches.in_transit
        if batch and (self.mode is not FetchMode.FETCHING or now >= batch.started_at + BATCH_DELAY_SECONDS):
            return self._claim(0), 0.0
        if is_uncertain:  # all takers may be busy, and what Redis holds for this process waits for the resync
            is_free = batches.state is BatchState.NONE
            return (self._claim(0) if is_free else None), UNCERTAIN_CHECK_SECONDS
        if batches.state is not BatchState.NONE:
            return None, BATCH_DELAY_SECONDS / 2  # that batch does not have what came in since it was built
        seconds = self._seconds_until_overdue(now)
        if seconds == 0 or self._in_flight.returned:
            return self.claim_to_settle(), BATCH_DELAY_SECONDS
        return None, seconds

    @locked
    def return_forgotten(self, running: Iterable[Unit]) -> int:
        """Put back units that crashed threads have left behind; return how many.  See InFlight.return_forgotten."""
        count = self._in_flight.return_forgotten((*snapshot(self.supply.units), *running), self._now())
        if count:
            self._wake_manager()
        return count

    def _has_waited_too_long(self, now: float) -> bool:
        try:
            return max(self.supply.units[0].reserved_at, self._stalls.over_at) <= now - MAX_UNIT_WAIT_SECONDS
        except IndexError:  # processors have taken them meanwhile
            return False

    def _seconds_until_overdue(self, now: float) -> float:
        if self.supply.finished:
            return max(0.0, self.supply.oldest_finished_at + BATCH_DELAY_SECONDS - now)
        if self._in_flight.refused:
            return max(0.0, self._in_flight.refused_until - now)
        return BATCH_DELAY_SECONDS  # processors run units that were at hand, and will hand in their outcomes

    def claim_to_settle(self) -> Batch | None:
        """Return the batch by which the manager settles what is finished; None if another is under way, or nothing is.

        It reserves nothing, unless units are prefetched.
        """
        if self.batches.state is not BatchState.NONE or not self._in_flight.has_waiting:
            return None
        self.redis_view.is_reserve_due = (
            True  # the taker that handed it in must look for work, with nothing left to settle
        )
        return self._claim(0)

    @locked
    def on_wakeup(self, queue: str | None) -> tuple[bool, Batch | None]:
        """Return whether somebody will look for work, and the batch that the caller has to send for that.

        queue: the one with a push; None if any may have work, which is left to the taker that is woken.
        """
        if self.mode is not FetchMode.FETCHING or not self.supply.demand:
            return False, None
        self.redis_view.is_reserve_due = True
        if queue is None or self.batches.state is not BatchState.NONE or self.redis_view.is_uncertain:
            self._wake_taker()
            return True, None
        batch = self._claim(0)
        batch.is_wakeup = True
        return True, batch

    @locked
    def on_push(self, unit: Unit, generation: int) -> bool:
        """Take in a unit that a push has brought; return whether its reply is to be believed.

        generation: when its wait began.  If there was a resync since, or one is due, that puts the unit back.
        A unit goes back at once if nobody is free to run it: all became busy, or quiet, after the wait had begun.
        """
        if self.redis_view.is_uncertain or generation != self.redis_view.generation:
            return False
        self._in_flight.add((unit,), self._now())
        is_anybody_free = len(self.supply.units) < self.supply.demand or self.supply.low_watermark > 0
        if self.mode is not FetchMode.FETCHING or not is_anybody_free:
            self._in_flight.returned.append(unit)
            self._wake_manager()
            return True
        self.supply.received += 1
        self.supply.units.append(unit)
        self._wake_taker()
        return True

    @locked
    def is_sweep_wanted(self) -> bool:
        """Return whether somebody waits, and nobody looks for work already."""
        return self._is_sweep_wanted()

    def _is_sweep_wanted(self) -> bool:
        is_looking = self.redis_view.is_reserve_due or self.batches.state is not BatchState.NONE
        return bool(self.supply.demand) and self.mode is FetchMode.FETCHING and not is_looking

    @locked
    def queues_to_arm(self) -> list[str]:
        """Return the queues whose pushes should wake this process, the preferred first."""
        if self.redis_view.is_refused or self.redis_view.is_uncertain or not self._is_sweep_wanted():
            return []
        excluded = {*self.redis_view.excluded.resting, *self.redis_view.excluded.forbidden()}
        return list(islice((queue for queue in self._order.preferred() if queue not in excluded), MAX_ARMED_QUEUES))

    @locked
    def queues_to_sweep(self, most: int) -> list[str]:
        """Return the queues for the next sweep, without those that are known to be forbidden."""
        forbidden = self.redis_view.excluded.forbidden()
        return [queue for queue in self._order.next_to_sweep(most) if queue not in forbidden]

    # the life of the process

    @property
    def is_quiet(self) -> bool:
        """Whether nothing more is reserved."""
        return self.mode is not FetchMode.FETCHING

    @locked
    def quiet(self) -> int:
        """Reserve no more, and have all units put back that nobody has started; return their number."""
        if self.mode is FetchMode.FETCHING:
            self.mode = FetchMode.QUIET
        self.supply.low_watermark = 0
        returned = self._in_flight.return_units(self.supply.units)
        self.supply.oldest_finished_at = 0.0  # the next check settles at once
        self._wake_manager()
        return returned

    @locked
    def resume(self) -> None:
        """Reserve again."""
        if self.mode is FetchMode.QUIET:
            self.mode = FetchMode.FETCHING
        self.redis_view.is_reserve_due = True
        self._wake_taker()

    @locked
    def end(self) -> None:
        """Let every taker end when it asks for its next unit."""
        self.mode = FetchMode.ENDED
        self.ended.set()
        self.parked.notify_all()

    @locked
    def mark_uncertain(self) -> None:
        """Have the next batch begin with a resync."""
        self.redis_view.is_uncertain = True
        self._wake_taker()
        self._wake_manager()

    def is_certain(self) -> bool:
        """Return whether every unit that Redis holds for this process is known: no batch is open, no reply was lost."""
        return self.batches.state is BatchState.NONE and not self.redis_view.is_uncertain

    def is_drained(self) -> bool:
        """Return whether the last reserve found the queues empty, or at rest, and nothing is held."""
        is_looking = self.redis_view.is_reserve_due or not self.is_certain()
        return bool(self.supply.demand) and not (is_looking or len(self._in_flight))

    # the batch, by its flusher

    @locked
    def build_request(self, batch: Batch, *, ahead: bool) -> bool:
        """Choose what a batch settles and reserves; return whether there is anything to send.

        ahead: nobody needs it yet.  Then it settles nothing unless it also reserves.
        """
        batch.started_at = self._now()
        self._stalls.record(batch.started_at)
        batch.size, batch.limits = self._choose_limits(batch)
        if batch.limits is None and ahead:
            return False
        self.supply.prefetch.record_finished(len(self.supply.finished), batch.started_at)
        batch.settlements = self._in_flight.take_waiting(batch.started_at)
        batch.most_deaths = self._in_flight.most_deaths(batch.settlements, batch.started_at)
        if ahead and self.supply.demand and any(type(each.outcome) is not Done for each in batch.settlements):
            self._wake_taker()  # it sends payloads, which a busy Redis may be slow to read
        return batch.limits is not None or bool(batch.settlements)

    def _choose_limits(self, batch: Batch) -> tuple[ReserveSize, Limits | None]:
        """Return how much to reserve, in all and from each queue."""
        supply, redis_view = self.supply, self.redis_view
        if self.mode is not FetchMode.FETCHING or not (batch.own_demand or batch.is_wakeup or supply.low_watermark):
            return NO_UNITS, None
        size = supply.prefetch.reserve_size(supply.demand + batch.own_demand, len(supply.units))
        if size == NO_UNITS:  # enough is at hand; if a reserve is due, it stays so for the taker of the last unit
            supply.low_watermark = 0
            return NO_UNITS, None
        drawn = self._order.draw(supply.prefetch.max_queues() if supply.low_watermark else MAX_QUEUES)
        redis_view.is_reserve_due = self._order.has_other_candidates(drawn)
        if redis_view.excluded.forbidden_until:
            forbidden = redis_view.excluded.forbidden()
            drawn = {queue: share for queue, share in drawn.items() if queue not in forbidden}
        limits = supply.prefetch.limits(drawn, size, batch.started_at)
        if not limits:
            supply.low_watermark = 0
        return size, limits or None

    @locked
    def leave_in_transit(self, batch: Batch) -> None:
        """Leave a batch that was sent to the first one who needs its reply."""
        self.batches.leave_in_transit(batch)
        if not batch.is_wakeup:
            self.notify_manager()
        self._wake_another()  # a taker that was woken for a unit may flush instead, and then wakes nobody

    @locked
    def on_reply(self, reserved: Reserved, batch: Batch) -> None:
        """Have the units at hand that a batch has brought."""
        units, needed, total = reserved.units, batch.size.needed, batch.size.total
        supply, redis_view = self.supply, self.redis_view
        redis_view.is_refused = reserved.is_refused
        redis_view.excluded.record_resting(batch.limits or (), reserved.resting)
        self._in_flight.add(units, self._now())
        if self.mode is not FetchMode.FETCHING:  # the batch was on its way when the process became quiet
            self._in_flight.returned += units
            self._wake_manager()
            return
        supply.units.extend(units)
        supply.received += len(units)
        self._record_queues(reserved, batch)
        is_suspect = bool(units) and units[0].deaths > 0  # a suspect comes alone: there may be more
        # After a refusal the next sweep tries again: Redis would refuse other queues as well.
        is_due = redis_view.is_reserve_due or is_suspect or len(units) >= needed
        redis_view.is_reserve_due = is_due and not redis_view.is_refused
        supply.low_watermark = supply.prefetch.depth // 2 if len(units) == total > needed else 0
        redis_view.is_starved = len(units) < needed and not is_suspect and not redis_view.is_refused
        if supply.low_watermark:
            supply.limit.lower(supply.taken())
        supply.check_crowd()

    def _record_queues(self, reserved: Reserved, batch: Batch) -> None:
        """Learn which queues may hold more, if they are too many to be asked each time."""
        limits, units, most = batch.limits or {}, reserved.units, batch.size.total
        if self.redis_view.is_refused or len(self._order.weights) <= MAX_QUEUES_AT_FULL_PACE:
            return
        is_suspect, is_filled = bool(units) and units[0].deaths > 0, len(units) >= most
        is_cut_short = is_suspect or is_filled or any(each < most for _, each in limits.values())
        is_whole = not is_cut_short and sum(len(unit.payload) for unit in units) < MAX_RESERVE_BYTES
        self._order.record_reserve(limits, {unit.queue for unit in units}, is_whole=is_whole)

    @locked
    def close(self, batch: Batch, *, went_well: bool) -> Batch | None:
        """End a batch, and see to it that somebody runs the units at hand, or flushes the next one.

        Returns the next batch if the caller has to send it ahead.  That comes before anybody is woken, who would hold
        the interpreter until the units at hand are used up.
        """
        self.batches.close()
        supply, units = self.supply, self.supply.units
        may_follow = went_well and batch.own_demand and batch.sent is not None and not self.redis_view.is_uncertain
        if may_follow and supply.low_watermark and 0 < len(units) <= supply.low_watermark + batch.own_demand:
            return self._claim(batch.own_demand)
        self._report_starvation()
        # A taker goes on with its own units, or flushes again; the manager does neither.
        # If there may be more, another taker flushes: who began to wait during this batch was not counted in it.
        has_more = len(units) > batch.own_demand or (self.redis_view.is_reserve_due and units)
        if has_more or not batch.own_demand:
            self._wake_another()
        return None

    # a batch that failed

    @locked
    def on_refused(self, settlements: Sequence[Settlement], refusals: Refusals) -> None:
        """Keep the outcomes that Redis would not write, and send them again later."""
        self._in_flight.keep_refused(settlements, refusals, self._now())

    @locked
    def on_forbidden(self, queues: Iterable[str]) -> bool:
        """Ask these queues no more for a while, and reserve again; return whether any was not known to be forbidden."""
        is_new = self.redis_view.excluded.forbid(queues)
        self._order.drop_candidates(queues)
        self.redis_view.is_reserve_due = True
        self._wake_taker()
        return is_new

    @locked
    def on_failure(self, settlements: Sequence[Settlement], *, is_lost: bool) -> None:
        """Have the outcomes of a failed batch wait for the next one.  is_lost: Redis may have run it all the same."""
        if settlements:
            self._in_flight.restore(settlements)
            self._in_flight.acknowledge()
        self.redis_view.is_reserve_due, self.supply.low_watermark = True, 0
        self.redis_view.is_uncertain = self.redis_view.is_uncertain or is_lost
        self._wake_taker()  # units at hand run meanwhile

    @locked
    def discard_reply(self) -> None:
        """Treat the units that a batch has reserved as unknown: resync, and reserve again."""
        self._discard_reply()

    def _discard_reply(self) -> None:
        self.redis_view.is_uncertain = self.redis_view.is_reserve_due = True
        self._wake_taker()

    @locked
    def on_resynced(self) -> None:
        """Go on after a resync."""
        self.redis_view.begin_generation()

    @locked
    def reset(self) -> None:
        """Hold nothing, and look for work: others have recovered the units that were here."""
        self.supply.units.clear()
        self._in_flight.clear()
        self.redis_view.begin_generation()
