"""A fleet whose processes only beat, and recover whom they are handed, with the real `Recovery` and the real scripts.

Time is the test's.  Processes live for a while, die with their host, or stand still; Redis is away, fails over to a
replica that lags, or has its clock set.

1. Beater         a process
2. RecoveryFleet  the processes and their Redis; what happens to them; who was recovered, and whether that was right
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any

from kiqcluster.errors import RedisUnavailable
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Connection, Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Beat, Member
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.identity import ProcessFingerprint
from kiqcluster.worker.maintenance import failure_detector
from kiqcluster.worker.maintenance.recovery import BEAT_RETRY_SECONDS, Recovery
from tests.kit import ManualClock, RedisServer
from tests.properties.limits import Violation
from tests.server_clock import ServerClock

__all__ = ["RECOVER_AFTER", "Beater", "RecoveryFleet"]

RECOVER_AFTER = 60.0  # seconds
SNAPSHOT_SECONDS = 2.0  # between two states that a replica may have
MAX_LAG_SECONDS = 20.0  # of a replica
BOOT_SECONDS = 1.0


class Link(Engine):
    """An engine whose Redis is that of the fleet."""

    fleet: RecoveryFleet

    def server_of(self, connection: Connection, timeout: float | None = None) -> str:
        return self.fleet.server_id

    def beat(self, *arguments: Any, **options: Any) -> Beat:
        self.fleet.check_link()
        return super().beat(*arguments, **options)

    def recover(
        self, connection: Connection, identity: str, running: Iterable[str] = (), score: int | None = None
    ) -> int | None:
        self.fleet.check_link()
        units = super().recover(connection, identity, running, score)
        if units is not None:
            self.fleet.on_recovered(identity)
        return units


@dataclass
class Beater:
    """A process.  still: seconds that it has stood still since its last beat, before frozen_since."""

    identity: str
    engine: Link
    recovery: Recovery
    is_alive: bool = True
    frozen_since: float | None = None
    still: float = 0.0


@dataclass(order=True)
class Turn:
    at: float
    number: int
    act: Callable[[], None] = field(compare=False)


class RecoveryFleet:
    """processes: those that live.  dead: identity → when it died.  waits: of those recovered, seconds until then."""

    def __init__(self, redis: RedisServer, store: Store, rng: Random) -> None:
        self.store, self.rng = store, rng
        self._links = redis.store()  # the connections of all processes
        self.clock, self.server = ManualClock(), ServerClock(store)
        self.server_id = "server0"
        self.is_away = False
        self.processes: dict[str, Beater] = {}
        self.dead: dict[str, float] = {}
        self.waits: list[float] = []
        self._snapshots: list[tuple[float, list[tuple[bytes, bytes]]]] = []
        self._turns: list[Turn] = []
        self._numbers = count(1)
        self._setup = Setup(store=store)
        self.at(0.0, self._take_snapshot)

    # what happens

    def start(self, processes: int, life: float = inf) -> None:
        """Start processes, each of which is replaced when it has lived for so long, or when it dies."""
        for _ in range(processes):
            self.at(self.rng.uniform(0.0, min(life, 10.0)), lambda: self.boot(life))

    def kill(self, share: float, life: float = inf) -> None:
        """Kill some processes, as when their host ends; others replace them."""
        for process in self._some(share):
            process.is_alive = False
            self.dead[process.identity] = self.clock.time
            del self.processes[process.identity]
            self.at(BOOT_SECONDS, lambda: self.boot(life))

    def stand_still(self, share: float, seconds: float) -> None:
        """Have some processes stand still, as when their host is suspended."""
        for process in self._some(share):
            if process.frozen_since is None:
                process.frozen_since = self.clock.time
                self.at(seconds, lambda process=process: self._go_on(process))  # type: ignore[misc]

    def be_away(self, seconds: float) -> None:
        """Have Redis away for a while."""
        self.is_away = True
        self.at(seconds, self._be_back)

    def fail_over(self, lag: float, downtime: float = 0.0) -> None:
        """Have a replica go on with what it knows."""
        kept = [dumps for at, dumps in self._snapshots if at <= self.clock.time - lag]
        if not kept:
            return
        self.store.call("FLUSHDB")
        self.store.pipeline([("RESTORE", key, 0, dump) for key, dump in kept[-1]])
        self.server_id = f"server{next(self._numbers)}"
        self._links.close()
        if downtime:
            self.be_away(downtime)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen, so many seconds from now."""
        heappush(self._turns, Turn(self.clock.time + seconds, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        """Let time go by.  Raises Violation when a process is recovered that lives."""
        until = self.clock.time + seconds
        while self._turns and self._turns[0].at <= until:
            turn = heappop(self._turns)
            self.clock.time = max(self.clock.time, turn.at)
            self.server.set(self.clock.time)
            turn.act()
        self.clock.time = until

    def left(self) -> list[str]:
        """Return the dead that nobody has recovered.  A fail-over may have lost one that had just joined."""
        return [name for raw in self.store.call("HKEYS", "kiq:members") if (name := raw.decode()) in self.dead]

    # what its Redis does

    def check_link(self) -> None:
        if self.is_away:
            raise RedisUnavailable("away")

    def on_recovered(self, identity: str) -> None:
        """Take note of a recovery.  Raises Violation if that process could have beaten."""
        if identity in self.dead:
            self.waits.append(self.clock.time - self.dead.pop(identity))
        process = self.processes.get(identity)
        if process is not None and self._stood_still(process) < RECOVER_AFTER / 2:
            raise Violation(f"{identity} lives, and was recovered")

    def _take_snapshot(self) -> None:
        keys = [key for key in self.store.call("KEYS", "*") if not key.startswith(b"test:")]
        dumps = self.store.pipeline([("DUMP", key) for key in keys]) if keys else []
        self._snapshots.append((self.clock.time, list(zip(keys, dumps, strict=True))))
        while self._snapshots[0][0] < self.clock.time - MAX_LAG_SECONDS - SNAPSHOT_SECONDS:
            self._snapshots.pop(0)
        self.at(SNAPSHOT_SECONDS, self._take_snapshot)

    def _be_back(self) -> None:
        self.is_away = False

    # processes

    def _some(self, share: float) -> list[Beater]:
        """Return some of those that live, at least one, and not all."""
        number = min(max(1, round(share * len(self.processes))), len(self.processes) - 1)
        return self.rng.sample(list(self.processes.values()), max(0, number))

    def boot(self, life: float = inf) -> None:
        """Have a process join and beat, once Redis is there."""
        if self.is_away:
            self.at(1.0, lambda: self.boot(life))
            return
        number = next(self._numbers)
        identity = f"host:{number}:{number:012x}"
        process = self._make(identity, lambda: self._go_on_as_another(process, life))
        process.engine.join(Member(identity, 1, f"boot ns {number} 1"))
        self.processes[identity] = process
        self._beat(process)
        if life < inf:
            self.at(life, lambda: self._leave(process, life))

    def _go_on_as_another(self, process: Beater, life: float) -> None:
        """Give up an identity that others have recovered."""
        if self.processes.pop(process.identity, None) is not None:
            process.is_alive = False
            self.at(BOOT_SECONDS, lambda: self.boot(life))

    def _make(self, identity: str, on_uncertain: Callable[[], None]) -> Beater:
        engine = Link(self._links, DeadSetLimits(1, 1.0))
        engine.fleet = self
        runtime = Runtime(
            Config(health_recover_after=RECOVER_AFTER),
            engine.store,
            self._setup,
            Events(),
            self.clock,
            Random(self.rng.random()),
        )
        fencing = Fencing(self.clock, RECOVER_AFTER)
        fencing.begin(identity)
        recovery = Recovery(
            runtime,
            engine,
            ProcessFingerprint.of_this_process(),
            lambda: identity,
            fencing,
            on_uncertain,
            lambda *_: None,
            lambda *_: None,
            lambda *_: None,
        )
        return Beater(identity, engine, recovery)

    def _leave(self, process: Beater, life: float) -> None:
        if not process.is_alive or process.identity not in self.processes:
            return
        if self.is_away or process.frozen_since is not None:
            self.at(1.0, lambda: self._leave(process, life))
            return
        del self.processes[process.identity]
        process.is_alive = False
        self.store.call("HDEL", "kiq:members", process.identity)
        self.store.call("ZREM", "kiq:beats", process.identity)
        self.at(BOOT_SECONDS, lambda: self.boot(life))

    def _beat(self, process: Beater) -> None:
        if not process.is_alive:
            return
        if process.frozen_since is not None:
            self.at(0.1, lambda: self._beat(process))
            return
        was_away = self.is_away
        process.recovery._sweep()
        if not was_away:
            process.still = 0.0
        pause = failure_detector.pause(RECOVER_AFTER, self.rng)
        self.at(BEAT_RETRY_SECONDS if was_away else pause, lambda: self._beat(process))

    def _go_on(self, process: Beater) -> None:
        process.still = self._stood_still(process)
        process.frozen_since = None

    def _stood_still(self, process: Beater) -> float:
        since = process.frozen_since
        return process.still + (0.0 if since is None else self.clock.time - since)
