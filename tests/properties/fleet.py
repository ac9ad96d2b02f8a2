"""Workers without threads: each has a real ReliableFetch with its coordinator, prefetch, order and units in flight.

The processors (takers) and the manager are steps that a test chooses; Redis and the network are those of model.py.
While a worker waits for Redis, other steps happen, its own other takers' among them.  So every order of threads and
processes is possible at each round trip, and a failure repeats exactly.

1. Watched    the coordinator; it may change its state only as docs/engine/fetching.md draws it
2. Worker     one process: takers, the manager, its clock, its connections
3. Fleet      several of these, what happens to them, and what must be true of the jobs that they run
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

from kiqcluster.errors import RedisRefused, RedisUnavailable, ReplyLost, StoreError
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Interrupted, Outcome, Requeue
from kiqcluster.sidekiq.queue_groups import parse_group
from kiqcluster.store import Store, is_outage
from kiqcluster.store.connection import Connection
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import ALL_SUSPECT, BeginVerdict, Member, Settlement, Unit
from kiqcluster.store.replies import unwrapped
from kiqcluster.worker.fetch.batch import Batch, Batches, BatchState, FetchMode
from kiqcluster.worker.fetch.coordinator import FetchCoordinator
from kiqcluster.worker.fetch.fetch import ReliableFetch
from kiqcluster.worker.fetch.in_flight import STALE_UNIT_SECONDS
from kiqcluster.worker.fetch.queue_order import FORBIDDEN_RETRY_SECONDS, QueueOrder
from kiqcluster.worker.run.manager import FROZEN_SECONDS, SWEEP_SECONDS
from tests.kit import ManualClock
from tests.properties.limits import CLOSED, PARKED, Violation, begin_rows, is_limited
from tests.properties.model import (
    DEATHS,
    KINDS,
    LIMITS,
    QUEUES,
    SILENCE,
    Command,
    Fault,
    Process,
    World,
    job_of,
    outcome,
    refused_outcome,
)

__all__ = ["MOVES", "Fleet", "Worker"]

GROUPS = ("high,low", "high=2,low=1", "high=1,low=1")  # in order, weighted, random
MAX_DEPTH = 3  # of steps within a round trip that itself is part of such a step
RUNS_AGAIN = ("Retry", "Interrupted", "Deferred")  # outcomes after which a job runs again
MOST_STEPS = 4_000  # until everything must be done once the faults have ended
LONG = b"long"  # a payload that begins so is of a job that runs until the test ends it

none, flushing, in_transit = BatchState
MOVES = {  # docs/engine/fetching.md draws these
    (none, flushing, "take"),
    (none, flushing, "on_wakeup"),
    (none, flushing, "check_overdue"),
    (none, flushing, "close"),
    (flushing, in_transit, "leave_in_transit"),
    (in_transit, flushing, "take"),
    (in_transit, flushing, "check_overdue"),
    (flushing, none, "close"),
}
MODES = {
    (FetchMode.FETCHING, FetchMode.QUIET, "quiet"),
    (FetchMode.QUIET, FetchMode.FETCHING, "resume"),
    (FetchMode.FETCHING, FetchMode.ENDED, "end"),
    (FetchMode.QUIET, FetchMode.ENDED, "end"),
}
PARTS = ("_claim", "claim", "claim_to_settle", "__setattr__")  # of the steps that the diagram names


class Killed(BaseException):
    """A process ends in the middle of a round trip."""


class Watched:
    """A coordinator, or its batches, whose changes of state are looked at."""

    fleet: Fleet

    def __setattr__(self, name: str, value: object) -> None:
        before = self.__dict__.get(name)
        if name in ("state", "mode") and before is not value:
            frame = sys._getframe(1)
            while frame.f_code.co_name in PARTS and frame.f_back is not None:
                frame = frame.f_back
            move = (before, value, frame.f_code.co_name)
            if move not in MOVES | MODES:
                self.fleet.fail(f"not in the diagram: {move}")
            self.fleet.moves.add(move)
        super().__setattr__(name, value)


class WatchedCoordinator(Watched, FetchCoordinator):
    pass


class WatchedBatches(Watched, Batches):
    pass


class Link:
    """A connection of a worker.  Other steps happen before a command is sent, and before its reply is read."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._result: list[Any] | StoreError = []

    def begin(self, commands: Sequence[Command]) -> None:
        worker, world = self._worker, self._worker.world
        worker.let_others_go_on()
        fault = worker.fleet.fault()
        if world.is_away or fault is Fault.AWAY:
            raise RedisUnavailable("away")
        if fault is Fault.LATE:
            world.late.append(list(commands))
            self._result = ReplyLost("late")
            return
        replies = worker.fleet.run(commands[:1] if fault is Fault.CUT else commands)
        self._result = ReplyLost("lost") if fault in (Fault.LOST, Fault.CUT) else replies

    def finish(self, timeout: float | None = None) -> list[Any]:
        self._worker.let_others_go_on()
        if isinstance(self._result, StoreError):
            raise self._result
        return self._result

    def exchange(self, commands: Sequence[Command], timeout: float | None = None) -> list[Any]:
        return unwrapped(commands, self.exchange_each(commands, timeout))

    def exchange_each(self, commands: Sequence[Command], timeout: float | None = None) -> list[Any]:
        self.begin(commands)
        return self.finish(timeout)

    def close(self) -> None:
        pass


class LinkStore(Store):
    """The store of a worker."""

    def __init__(self, worker: Worker) -> None:
        super().__init__("redis://127.0.0.1:1/0")
        self._worker = worker

    def connection(self, *arguments: Any, **options: Any) -> Connection:
        return cast(Connection, Link(self._worker))

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        yield self.connection()


@dataclass
class Taker:
    """A processor, or with more places an event loop.  running: unit → whether it has begun."""

    places: int
    running: list[Unit] = field(default_factory=list)
    finished: Settlement | None = None  # goes in with the next take
    is_parked: bool = False
    is_woken: bool = False
    is_over: bool = False
    is_in_step: bool = False  # it waits for Redis
    has_asked: bool = False  # nothing is at hand: it takes, flushes or parks

    @property
    def free(self) -> int:
        return self.places - len(self.running)

    @property
    def may_ask(self) -> bool:
        return not self.is_over and self.free > 0 and (self.is_woken or not self.is_parked)


class Worker:
    """A process.  Its clock goes on by itself; that of a frozen one leaps when others recover it."""

    stale_seconds = min(STALE_UNIT_SECONDS, SILENCE / 2)

    def __init__(self, fleet: Fleet, number: int, places: Sequence[int]) -> None:
        self.fleet, self.world, self.number = fleet, fleet.world, number
        self.clock = ManualClock()
        self.engine = Engine(LinkStore(self), LIMITS)
        runtime = Runtime(Config(), self.engine.store, Setup(), Events(), self.clock, Random(fleet.rng.random()))
        order = QueueOrder(parse_group(fleet.rng.choice(GROUPS)), QUEUES, runtime.rng)
        self.fetch = ReliableFetch(
            runtime, self.engine, order, self._new_member, lambda member: None, self._wake_manager
        )
        self.coordinator = self.fetch.coordinator
        self.coordinator.__class__ = WatchedCoordinator
        self.coordinator.batches.__class__ = WatchedBatches
        for watched in (self.coordinator, self.coordinator.batches):
            vars(watched)["fleet"] = fleet
        self.coordinator._wake_taker = self._wake_taker
        vars(self.fetch.coordinator.ended)["wait"] = self._pause
        self.takers = [Taker(each) for each in places]
        self.waiting: list[Taker] = []  # parked and not woken, the first come first
        self.is_alive, self.is_frozen, self.has_joined, self.is_quiet = True, False, False, False
        self.is_manager_awake = self.is_manager_in_step = False
        self.check_at: float | None = 0.0  # when the manager wants to look after what waits
        self.sweep_at = 0.0
        self.armed: set[str] = set()
        self.pushed: list[str] = []  # queues whose wakeups have come
        self.begun: set[str] = set()  # "identity/token" of limited jobs that run

    # what the fetch calls

    def _new_member(self) -> Member:
        return Member(f"host:{self.number}:{self.world.number()}", 1, f"boot ns {self.number} 1")

    def _wake_manager(self) -> None:
        self.is_manager_awake = True

    def _wake_taker(self) -> None:
        if self.waiting and not self.fleet.is_wake_lost():
            self.waiting.pop(0).is_woken = True

    def _pause(self, seconds: float) -> None:
        self.clock.time += seconds
        self.let_others_go_on()

    def let_others_go_on(self) -> None:
        """Let other steps happen.  Raises Killed if this process ends meanwhile."""
        if self.fetch.coordinator.lock.locked():
            self.fleet.fail("the lock is held over a round trip")
        self.fleet.interleave()
        self.is_frozen = False
        if not self.is_alive:
            raise Killed(self.number)

    # steps

    def steps(self) -> list[Callable[[], None]]:
        """Return what this process may do now."""
        if not self.is_alive or self.is_frozen:
            return []
        if not self.has_joined:
            return [] if self.is_manager_in_step else [self.join]
        steps: list[Callable[[], None]] = []
        for taker in self.takers:
            if taker.is_in_step:
                continue
            if taker.may_ask:
                steps.append(lambda taker=taker: self.ask(taker))  # type: ignore[misc]
            steps += [
                (lambda taker=taker, unit=unit: self.finish(taker, unit))  # type: ignore[misc]
                for unit in taker.running
                if not unit.payload.startswith(LONG) or self.fleet.are_long_jobs_over
            ]
        is_sweep_due = self.fleet.has_sweeps and self.clock.time >= self.sweep_at
        is_check_due = self.check_at is not None and self.clock.time >= self.check_at
        if not self.is_manager_in_step and (self.is_manager_awake or self.pushed or is_check_due or is_sweep_due):
            steps.append(self.manage)
        return steps

    def step(self, action: Callable[[], None]) -> None:
        """Do one of these."""
        self.clock.time += 0.0005
        try:
            action()
        except Killed as killed:
            if killed.args != (self.number,):
                raise

    def join(self) -> None:
        self.is_manager_in_step = True
        with suppress(StoreError):
            self.engine.join(self.fetch.member)
            self.has_joined = True
        self.is_manager_in_step = False

    def ask(self, taker: Taker) -> None:
        """Do what ReliableFetch.next does, up to the next place where another thread may go on."""
        if taker.is_parked:
            taker.is_parked = taker.is_woken = False
            self.coordinator.supply.demand = self._demand()
        elif not taker.has_asked or taker.finished is not None:
            finished, taker.finished = taker.finished, None
            unit = self.coordinator.take_at_hand(finished)
            taker.has_asked = unit is None
            if unit is not None:
                self.start(taker, unit)
            return
        with self.fetch.coordinator.lock:
            taken = self.coordinator.take(taker.free)
            if taken is None and self.coordinator.mode is not FetchMode.ENDED:
                taker.is_parked = True
                self.waiting.append(taker)
                self.coordinator.set_demand(self._demand())
                return
        taker.has_asked = False
        if taken is None:
            taker.is_over = True
        elif isinstance(taken, Batch):
            taker.is_in_step = True
            self.fetch._flush(taken, ahead=bool(self.coordinator.supply.units))
            taker.is_in_step = False
        else:
            self.start(taker, taken)

    def _demand(self) -> int:
        return sum(taker.free for taker in self.takers if taker.is_parked)

    def start(self, taker: Taker, unit: Unit) -> None:
        """Begin to run a unit, as Execution does."""
        taker.running.append(unit)
        if self._is_stale(unit):
            self._hand_in(taker, unit, Requeue())
        elif unit.deaths >= DEATHS:
            self.world.has_skipped_begin |= is_limited(unit.payload)
            self._hand_in(taker, unit, outcome(unit, "bury"))
        elif rows := begin_rows(unit.payload, self.world.largest):
            self._begin(taker, unit, rows)
        else:
            self.fleet.on_start(unit)

    def _is_stale(self, unit: Unit) -> bool:
        return self.clock.monotonic() > unit.reserved_at + self.stale_seconds

    def _begin(self, taker: Taker, unit: Unit, rows: Sequence[Any]) -> None:
        verdict = None
        taker.is_in_step = True
        try:
            verdict = self.engine.begin_run(unit, rows)
        except StoreError as error:
            verdict = None if is_outage(error) else BeginVerdict("defer", 1.0)
        taker.is_in_step = False
        if self._is_stale(unit):
            self._hand_in(taker, unit, Requeue())
        elif verdict is not None and verdict.action == "go":
            self.begun.add(f"{unit.identity}/{unit.token}")
            self.fleet.on_start(unit)
        else:
            self._hand_in(taker, unit, refused_outcome(unit, verdict))

    def finish(self, taker: Taker, unit: Unit) -> None:
        """End a run."""
        result = outcome(unit, self.fleet.rng.choice(KINDS[:-1]) if self.fleet.is_faulty else "done with effects")
        self.begun.discard(f"{unit.identity}/{unit.token}")
        self.fleet.on_end(unit, result)
        self._hand_in(taker, unit, result)

    def _hand_in(self, taker: Taker, unit: Unit, result: Outcome) -> None:
        taker.running.remove(unit)
        settlement = Settlement(unit, result)
        if taker.places == 1:
            taker.finished = settlement
            return
        if not self.coordinator.supply.finished:
            self.coordinator.supply.oldest_finished_at = self.clock.time
        self.fetch.coordinator.hand_in(settlement)
        if taker.is_parked:
            with self.fetch.coordinator.lock:
                self.coordinator.set_demand(self._demand())

    def manage(self) -> None:
        """Go once around the manager's loop."""
        self.is_manager_in_step, self.is_manager_awake = True, False
        if not self.world.is_away:
            self.armed |= set(self.fetch.coordinator.queues_to_arm())
        seconds = self.fetch.flush_overdue({unit.queue for taker in self.takers for unit in taker.running})
        self.check_at = None if seconds is None else self.clock.time + seconds
        while self.pushed:
            queue = self.pushed.pop()
            if not self.fetch.on_wakeup(queue):
                with suppress(StoreError):
                    self.fetch.return_to_queue([queue])
        late = self.clock.time - self.sweep_at
        if late >= 0 and self.fleet.has_sweeps:
            self.sweep_at = self.clock.time + SWEEP_SECONDS
            if late < FROZEN_SECONDS:
                self.fetch.sweep()
            else:
                self.fetch.on_wakeup()
        self.is_manager_in_step = False

    def stop(self) -> None:
        """Stop hard: put everything back, end the membership."""
        self.fetch.coordinator.quiet()
        self.fetch.coordinator.end()
        running = [unit for taker in self.takers if not taker.is_in_step for unit in taker.running]
        interrupted = [Settlement(unit, Interrupted(unit.payload)) for unit in running]
        for each in interrupted:
            self.fleet.on_end(each.unit, each.outcome)
        with suppress(StoreError):
            self.fetch.leave(interrupted, 1.0)
        self.die()

    def die(self) -> None:
        self.is_alive = False
        self.begun.clear()

    def recover(self, identity: str) -> None:
        with suppress(StoreError), self.engine.store.borrowed() as connection:
            self.engine.recover(connection, identity, ALL_SUSPECT)

    # what is true at any time

    def limited(self) -> set[str]:
        """Return the limited jobs that run here, as holders of places, unless others have recovered them."""
        if not self.is_alive:
            return set()
        return {holder for holder in self.begun if holder.partition("/")[0] not in self.world.recovered}

    def check(self, inflight: dict[str, set[str]]) -> None:
        """Raise Violation if it has a unit twice, or one that is not in flight though nobody has recovered it."""
        if not self.is_alive:
            return
        in_flight, running = self.fetch._in_flight, [unit for taker in self.takers for unit in taker.running]
        ended = [taker.finished for taker in self.takers if taker.finished is not None]
        ended += [*in_flight.finished, *in_flight.refused]
        units = [*self.coordinator.supply.units, *in_flight.returned, *running, *(each.unit for each in ended)]
        places = Counter((unit.identity, unit.token) for unit in units)
        if twice := [place for place, count in places.items() if count > 1]:
            raise Violation(f"twice in one process: {twice}")
        here = [
            unit for unit in (*self.coordinator.supply.units, *running) if unit.identity not in self.world.recovered
        ]
        if len({job_of(unit.payload) for unit in here}) < len(here):
            raise Violation(f"one job twice in one process: {here}")
        if lost := [unit for unit in here if unit.token not in inflight.get(unit.identity, set())]:
            raise Violation(f"held here, and not in flight: {lost}")
        if self.coordinator.supply.demand != self._demand():
            raise Violation(f"a demand of {self.coordinator.supply.demand}, and {self._demand()} free places")

    def describe(self) -> str:
        plain = {name: value for name, value in vars(self.coordinator).items() if not name.startswith("_")}
        return f"{self.number}: {plain}, {self.takers}, armed {self.armed}, check at {self.check_at}"


class Fleet:
    """Several workers on one Redis.

    runs: job → [unit, outcome or None] of each run.  forbidden: queues whose keys an ACL forbids.
    """

    def __init__(self, store: Store, rng: Random, lost_wakes: float = 0.0) -> None:
        self.rng = rng
        self.world = World(store)
        self.world.largest = rng.choice((1, 2))
        self.workers: list[Worker] = []
        self.runs: dict[bytes, list[list[Any]]] = {}
        self.moves: set[tuple[Any, Any, str]] = set()
        self.forbidden: set[str] = set()
        self.is_faulty, self.has_sweeps, self.are_long_jobs_over = True, True, False
        self.lost_wakes = lost_wakes
        self.found: list[str] = []  # violations
        self.helper = Process(self.world, self.world.number())
        self.happen: Callable[[], object] = self.step  # within a round trip
        self._depth = 0
        self.stepped = 0

    # what workers ask

    def fault(self) -> Fault:
        return self.rng.choice(list(Fault)) if self.is_faulty and self.rng.random() < 0.06 else Fault.NONE

    def is_wake_lost(self) -> bool:
        return self.rng.random() < self.lost_wakes

    def run(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands; Redis refuses those with keys of a forbidden queue, and some others."""
        replies: list[Any] = []
        for command in commands:
            if self.forbidden.intersection(map(str, command)):
                replies.append(RedisRefused("NOPERM No permissions to access a key"))
            elif self.is_faulty and self.rng.random() < 0.01:
                replies.append(RedisRefused("OOM command not allowed when used memory > 'maxmemory'"))
            else:
                replies += self.world.run([command])
        return replies

    def interleave(self) -> None:
        """Let some steps happen within a step."""
        if self._depth >= MAX_DEPTH or self.rng.random() < 0.6:
            return
        self._depth += 1
        for _ in range(self.rng.randint(1, 3)):
            self.happen()
        self._depth -= 1

    def fail(self, what: str) -> None:
        """Raise Violation, and remember it: the fetch might take it for an error of Redis."""
        self.found.append(what)
        raise Violation(what)

    def on_start(self, unit: Unit) -> None:
        """Raise Violation if a job starts that somebody else runs, or that has ended."""
        if not self.world.raw(("HEXISTS", f"kiq:inflight:{unit.identity}", unit.field))[0]:
            self.fail(f"started by one who does not hold it any more: {unit}")
        runs = self.runs.setdefault(job_of(unit.payload), [])
        for earlier, result in runs:
            if earlier.identity not in self.world.recovered and type(result).__name__ not in RUNS_AGAIN:
                self.fail(f"run twice: {unit}, after {earlier} with {result}")
        runs.append([unit, None])

    def on_end(self, unit: Unit, result: Outcome) -> None:
        for run in self.runs.get(job_of(unit.payload), ()):  # none where a violation was found at its start
            if run[0] is unit and run[1] is None:  # else a stop has interrupted it, and nobody looks at its end
                run[1] = result

    # steps

    def awake(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.is_alive and not worker.is_frozen]

    def spawn(self) -> None:
        places = self.rng.choice(((1,), (1, 1), (1, 1, 1), (3,), (1, 2)))
        self.workers.append(Worker(self, self.world.number(), places))

    def step(self) -> bool:
        """Have one worker do something; return whether any could."""
        self.stepped += 1
        able = [(worker, steps) for worker in self.workers if (steps := worker.steps())]
        if not able:
            return False
        worker, steps = self.rng.choice(able)
        worker.step(self.rng.choice(steps))
        if self.found:
            raise Violation(self.found[0])
        return True

    def ring(self) -> bool:
        """Let an armed wait at the server move its payload; return whether one did."""
        if not any(worker.armed for worker in self.workers):
            return False
        lengths = dict(zip(QUEUES, self.world.raw(*(("LLEN", f"queue:{queue}") for queue in QUEUES)), strict=True))
        armed = [(worker, queue) for worker in self.workers for queue in QUEUES if queue in worker.armed]
        armed = [(worker, queue) for worker, queue in armed if lengths[queue]]
        if not armed:
            return False
        worker, queue = self.rng.choice(armed)
        self.world.raw(("LMOVE", f"queue:{queue}", f"kiq:wake:{queue}", "RIGHT", "LEFT"))
        worker.armed.discard(queue)
        worker.pushed += [queue] if worker.is_alive else []
        return True

    def pass_time(self, seconds: float) -> None:
        for worker in self.awake():
            worker.clock.time += seconds

    def recover_somebody(self) -> None:
        """Have a worker recover one that is dead, or has been frozen for too long."""
        members = {name.decode() for name in self.world.raw(("HKEYS", "kiq:members"))[0]}
        others = {worker.fetch.member.identity: worker for worker in self.workers if worker.is_alive}
        gone = sorted(name for name in members if name not in others or others[name].is_frozen)
        if gone and (awake := self.awake()):
            identity, by = self.rng.choice(gone), self.rng.choice(awake)
            if identity in others:
                self.recover(others[identity])
            else:
                by.step(lambda: by.recover(identity))

    def recover(self, frozen: Worker) -> None:
        """Recover a worker that has not beaten for SILENCE; when it goes on, its clock tells it so."""
        frozen.clock.time += SILENCE
        self.helper.sweep(frozen.fetch.member.identity)

    def check(self) -> None:
        self.world.others = [worker for worker in self.workers if worker.is_alive]
        self.world.check()
        for worker in self.awake():
            if (
                worker.coordinator.batches.state is BatchState.IN_TRANSIT
                and worker.coordinator.batches.in_transit is None
            ):
                raise Violation("in transit, and there is no batch")

    # the end of all faults

    def calm(self) -> None:
        """End all faults and let everybody go on; raise Violation if anything is left behind."""
        self.is_faulty, self.world.is_away, self.happen = False, False, self.step
        self.forbidden.clear()
        self.world.raw(("DEL", CLOSED))
        while self.world.late:
            self.world.arrive(self.rng.randrange(len(self.world.late)))
        for worker in [worker for worker in self.workers if worker.is_alive]:
            worker.is_frozen = False
            worker.fetch.coordinator.resume()
            worker.fetch.coordinator.mark_uncertain()  # the check that is made once a minute (R3)
        self.pass_time(FORBIDDEN_RETRY_SECONDS)
        for worker in self.workers:
            if not worker.is_alive:  # its connections are closed by now, and its waits with them
                worker.armed.clear()
        while sum(map(len, (worker.takers for worker in self.awake()))) < 2:
            self.spawn()
        # A job whose begin Redis has refused comes back as other bytes: its grant blocks a place until the sweep.
        self.world.has_skipped_begin = True
        self.go_on_until(self.is_done, "every job to end")
        self.world.has_skipped_begin = False
        self.check()
        self.be_idle()
        self.be_busy()

    def be_idle(self) -> None:
        """Push to idle workers, of which none sweeps: only an armed wakeup can tell them."""
        self.go_on_until(self.are_all_idle, "all takers to wait")
        self.has_sweeps = False
        self.world.push(3, self.rng.choice(QUEUES))
        self.go_on_until(self.is_done, "the jobs of a wakeup to end")
        self.has_sweeps = True
        self.check()

    def be_busy(self) -> None:
        """Keep all takers busy but one: other jobs are done by that one, and their outcomes are written."""
        self.go_on_until(self.are_all_idle, "all takers to wait")
        self.are_long_jobs_over = False
        places = sum(taker.places for worker in self.awake() for taker in worker.takers)
        self.world.push(places - 1, QUEUES[0], "long")
        self.world.push(4, QUEUES[0])
        self.go_on_until(lambda: self.count_left() == places - 1, "all jobs to end but the long ones")
        self.are_long_jobs_over = True
        self.go_on_until(self.is_done, "the long jobs to end")
        self.go_on_until(self.are_all_idle, "all takers to wait")
        self.check()
        if not all(worker.fetch.coordinator.is_drained() for worker in self.awake()):
            raise Violation(f"not drained: {self.describe()}")

    def go_on_until(self, is_reached: Callable[[], bool], what: str) -> None:
        """Have everybody work without a fault; raise Violation if that does not lead there."""
        until = self.stepped + MOST_STEPS
        while self.stepped < until:
            if self.step() or self.ring():
                continue
            if is_reached():
                return
            self.pass_time(0.05)
            self.recover_somebody()
            if self.world.has_skipped_begin:
                self.world.sweep_parked()
            self.helper.poll()
        raise Violation(f"stranded, waiting for {what}: {self.describe()}")

    def are_all_idle(self) -> bool:
        takers = [taker for worker in self.awake() for taker in worker.takers]
        return all(taker.is_parked and not taker.is_woken and not taker.running for taker in takers)

    def is_done(self) -> bool:
        return self.count_left() == 0

    def count_left(self) -> int:
        """Return how many jobs have not ended."""
        lists = [f"{kind}:{queue}" for kind in ("queue", "kiq:wake") for queue in QUEUES]
        counts = [("LLEN", key) for key in lists] + [("ZCARD", key) for key in ("retry", "schedule", PARKED)]
        counts += [("HLEN", key) for key in self.world.raw(("KEYS", "kiq:inflight:*"))[0]]
        return sum(self.world.raw(*counts))

    def describe(self) -> str:
        left = dict(self.world.raw(("EVALSHA", self.world.census_digest, 0))[0])
        return f"{left}; {[worker.describe() for worker in self.awake()]}"
