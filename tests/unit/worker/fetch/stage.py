"""A process that is played step by step: takers, the manager and Redis, without threads and without a server.

Each actor is a generator, which stops wherever a thread could be interrupted; the test chooses the actor that goes on.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum, auto
from random import Random
from typing import cast

from kiqcluster.sidekiq.outcome import Done, Requeue
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store.engine.units import Exchange, Reserved, Settlement, Unit
from kiqcluster.worker.fetch.batch import Batch, BatchState, FetchMode
from kiqcluster.worker.fetch.concurrency_limit import ConcurrencyLimit
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.in_flight import InFlight
from kiqcluster.worker.fetch.queue_order import QueueOrder
from tests.kit import ManualClock

QUEUE = "default"
LONG = b"long"  # a payload that begins so is of a job that runs until the test ends it
SENT = cast(Exchange, object())  # what a batch that was sent carries here


class Fault(Enum):
    """What happens to a round trip."""

    NONE = auto()
    AWAY = auto()  # nothing was sent
    LOST = auto()  # Redis has run it, and the reply was lost


class Pause(Enum):
    """Why an actor stops."""

    INTERRUPTED = auto()  # it can go on
    PARKED = auto()  # a taker waits until it is woken
    BUSY = auto()  # a taker runs a job that ends when the test says so
    LISTENING = auto()  # the manager waits for a wakeup, a push, or the time of its next check


Actor = Iterator[Pause]


class FakeRedis:
    """One queue, and the units that one process holds."""

    def __init__(self) -> None:
        self.queue: deque[bytes] = deque()  # the oldest first
        self.held: dict[str, Unit] = {}
        self.done: Counter[bytes] = Counter()
        self._number = 0

    def run(self, batch: Batch) -> Reserved | None:
        """Settle, then reserve."""
        for settlement in batch.settlements:
            unit = self.held.pop(settlement.unit.token, None)
            if unit is None:
                continue  # settled before, or given back
            if isinstance(settlement.outcome, Requeue):
                self.queue.appendleft(unit.payload)
            else:
                self.done[unit.payload] += 1
        if batch.limits is None:
            return None
        units = [self._reserve() for _ in range(min(batch.limits[QUEUE][1], len(self.queue)))]
        return Reserved(units, frozenset())

    def _reserve(self) -> Unit:
        self._number += 1
        unit = Unit(QUEUE, self.queue.popleft(), f"1.1.{self._number:05d}", "me")
        self.held[unit.token] = unit
        return unit

    def resync(self, tokens: list[str]) -> None:
        """Give back the units that the process does not know."""
        for token in self.held.keys() - set(tokens):
            self.queue.appendleft(self.held.pop(token).payload)


class Stage:
    """A coordinator with its surroundings."""

    def __init__(self, rng: Random | None = None) -> None:
        self.rng = rng or Random(1)
        self.clock = ManualClock()
        self.redis = FakeRedis()
        self.in_flight = InFlight()
        order = QueueOrder(parse_group(QUEUE), [QUEUE], self.rng)
        self.coordinator = FetchCoordinator(order, self.in_flight, self.clock, self._wake_manager)
        self.coordinator._wake_taker = self._wake_taker
        self.is_faulty = False
        self.pushed: list[bytes] = []
        self.runs: Counter[str] = Counter()  # by token
        self.replies: dict[int, Reserved | None] = {}  # by batch
        self.flushers = 0
        self.sent_ahead = 0
        self.parked = 0  # takers that have parked, those that were woken since among them
        self._waiting: deque[int] = deque()  # numbers of takers that are not woken yet
        self._watcher: tuple[int, float] | None = None  # the taker that watches, and until when
        self._woken: set[int] = set()
        self.is_manager_awake = False
        self.is_armed = False
        self.check_at: float | None = None  # when the manager wants to check
        self.takers: list[Actor] = []
        self._paused: dict[int, Pause] = {}
        self.manager: Actor | None = None
        self._manager_pause = Pause.INTERRUPTED

    # what the test does

    def add_takers(self, count: int) -> None:
        for number in range(len(self.takers), len(self.takers) + count):
            self.takers.append(self._taker(number))
            self._paused[number] = Pause.INTERRUPTED
        self.coordinator.supply.limit = ConcurrencyLimit(len(self.takers), self.clock)

    def add_manager(self) -> None:
        self.manager = self._manager()

    def push(self, count: int = 1, kind: bytes = b"job") -> None:
        for _ in range(count):
            self.pushed.append(b"%s-%d" % (kind, len(self.pushed)))
            self.redis.queue.append(self.pushed[-1])

    def enabled(self) -> list[int]:
        """Return the numbers of the takers that can go on, and -1 for the manager."""
        if self._watcher is not None and self.clock.time >= self._watcher[1] and self._watcher[0] in self._waiting:
            self._waiting.remove(self._watcher[0])
            self._woken.add(self._watcher[0])
        takers = [
            number for number, pause in self._paused.items() if pause is Pause.INTERRUPTED or number in self._woken
        ]
        return [*takers, -1] if self._can_manager_go_on() else takers

    def step(self, number: int) -> None:
        """Let one actor go on until it stops again."""
        before = self.coordinator.batches.state
        if number < 0:
            assert self.manager is not None
            self._manager_pause = next(self.manager)
        else:
            self._woken.discard(number)
            try:
                self._paused[number] = next(self.takers[number])
            except StopIteration:
                del self._paused[number]
        self.check(before)

    def pass_time(self) -> bool:
        """Go on to the next check, of the manager or of a watcher; return whether there is one."""
        checks = [] if self._watcher is None or self._watcher[0] not in self._waiting else [self._watcher[1]]
        if self.check_at is not None and self._manager_pause is Pause.LISTENING:
            checks.append(self.check_at)
        if checks:
            self.clock.time = max(self.clock.time, min(checks))
        return bool(checks)

    def run(self, most: int = 100_000) -> None:
        """Let everybody go on, at random, until nobody can and no check is due."""
        for _ in range(most):
            if enabled := self.enabled():
                self.step(self.rng.choice(enabled))
            elif not self.pass_time():
                return
        raise AssertionError(f"no rest after {most} steps: {self.describe()}")

    def is_over(self) -> bool:
        """Return whether every taker has ended."""
        return not self._paused

    def end_long_jobs(self) -> None:
        for number, pause in self._paused.items():
            if pause is Pause.BUSY:
                self._paused[number] = Pause.INTERRUPTED

    def end(self) -> None:
        self.coordinator.end()
        while self._waiting:
            self._wake_taker()

    def check(self, before: BatchState) -> None:
        """Fail if the state is not what it can be at any time."""
        coordinator = self.coordinator
        state = coordinator.batches.state
        assert self.flushers == (state is BatchState.FLUSHING), self.describe()
        assert (coordinator.batches.in_transit is not None) == (state is BatchState.IN_TRANSIT), self.describe()
        assert coordinator.supply.demand == self.parked, self.describe()
        assert (before, state) != (BatchState.NONE, BatchState.IN_TRANSIT), "a batch in transit that nobody claimed"
        assert all(count == 1 for count in self.runs.values()), f"run twice: {self.describe()}"
        places = Counter([*self.redis.queue, *(unit.payload for unit in self.redis.held.values())])
        places.update(self.redis.done)
        assert places == Counter(self.pushed), f"lost or doubled: {self.describe()}"

    def describe(self) -> str:
        coordinator = self.coordinator
        plain = {name: value for name, value in vars(coordinator).items() if not name.startswith("_")}
        return (
            f"queued {list(self.redis.queue)}, held {list(self.redis.held)}, armed {self.is_armed}, "
            f"parked {self.parked}, {plain}"
        )

    # what the coordinator calls

    def _wake_taker(self) -> None:
        if self._waiting:
            self._woken.add(self._waiting.popleft())

    def _wake_manager(self) -> None:
        self.is_manager_awake = True

    # the actors: what fetch.py, `take_or_wait` and manager.py do

    def _taker(self, number: int) -> Actor:
        coordinator = self.coordinator
        finished: Settlement | None = None
        while True:
            unit = coordinator.take_at_hand(finished)
            yield Pause.INTERRUPTED
            while unit is None:
                taken = coordinator.take(1)
                while taken is None and coordinator.mode is not FetchMode.ENDED:
                    self.parked += 1
                    self._waiting.append(number)
                    coordinator.set_demand(self.parked)
                    if (seconds := coordinator.supply.begin_watch()) is not None:
                        self._watcher = number, self.clock.time + seconds
                    yield Pause.PARKED
                    self.parked -= 1
                    coordinator.supply.demand = self.parked
                    if seconds is not None:
                        self._watcher = None
                        coordinator.supply.end_watch(is_flushing=coordinator.batches.state is BatchState.FLUSHING)
                    taken = coordinator.take(1)
                if taken is None:
                    return
                if isinstance(taken, Unit):
                    unit = taken
                    continue
                yield from self._flush(taken, ahead=bool(coordinator.supply.units))
                unit = coordinator.take_at_hand()
            self.runs[unit.token] += 1
            yield Pause.BUSY if unit.payload.startswith(LONG) else Pause.INTERRUPTED
            finished = Settlement(unit, Done())

    def _manager(self) -> Actor:
        coordinator = self.coordinator
        while True:
            self.is_armed = self.is_armed or bool(coordinator.queues_to_arm())
            batch, seconds = coordinator.check_overdue(())
            if batch is not None:
                yield from self._flush(batch, ahead=False)
            self.check_at = None if seconds is None else self.clock.time + seconds
            yield Pause.LISTENING
            self.is_manager_awake = False
            if self.is_armed and self.redis.queue:
                self.is_armed = False
                _, batch = coordinator.on_wakeup(QUEUE)
                if batch is not None:
                    yield from self._flush(batch, ahead=True)

    def _can_manager_go_on(self) -> bool:
        if self.manager is None:
            return False
        is_due = self.check_at is not None and self.clock.time >= self.check_at
        is_pushed = self.is_armed and bool(self.redis.queue)
        return self._manager_pause is Pause.INTERRUPTED or self.is_manager_awake or is_due or is_pushed

    def _flush(self, batch: Batch, *, ahead: bool) -> Actor:
        coordinator = self.coordinator
        self.flushers += 1
        is_left, went_well = False, False
        fault = Fault.NONE
        yield Pause.INTERRUPTED
        if batch.sent is None:
            if coordinator.redis_view.is_uncertain:
                self.redis.resync(self.in_flight.tokens)
                coordinator.on_resynced()
                yield Pause.INTERRUPTED
            if coordinator.build_request(batch, ahead=ahead):
                fault = self._fault(Fault.AWAY, Fault.LOST)
                if fault is not Fault.AWAY:
                    batch.sent = SENT
                    is_left = ahead and fault is Fault.NONE
                    self.replies[id(batch)] = self.redis.run(batch)
            yield Pause.INTERRUPTED
        if fault is Fault.NONE and batch.sent is not None and not is_left:
            fault = self._fault(Fault.LOST)
            if fault is Fault.NONE:
                self._receive(batch)
                yield Pause.INTERRUPTED
        if fault is not Fault.NONE:
            coordinator.on_failure(batch.settlements, is_lost=fault is Fault.LOST)
            yield Pause.INTERRUPTED
        if is_left:
            self.sent_ahead += 1
            self.flushers -= 1
            coordinator.leave_in_transit(batch)
            return
        went_well = fault is Fault.NONE
        following = coordinator.close(batch, went_well=went_well)
        self.flushers -= 1
        if following is not None:
            yield from self._flush(following, ahead=True)

    def _receive(self, batch: Batch) -> None:
        reserved = self.replies.pop(id(batch))
        self.in_flight.remove(batch.settlements)
        self.in_flight.acknowledge()
        if reserved is not None:
            self.coordinator.on_reply(reserved, batch)

    def _fault(self, *possible: Fault) -> Fault:
        return self.rng.choice(possible) if self.is_faulty and self.rng.random() < 0.1 else Fault.NONE
