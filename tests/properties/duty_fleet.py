"""A fleet that has nothing to do but its duties: each process looks when `Duties` says so, on the real script.

Time is the test's, for the processes and for Redis.  Processes boot, live for a while, are stopped or killed; Redis
is away, loses everything, or has its clock set.

1. Process   one thread's duties
2. DutyFleet the processes, when each looks, and what happens to them
3. Report    how late a job would have been, and how often somebody looked
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count, pairwise
from math import inf
from random import Random

from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.store import Store
from kiqcluster.worker.maintenance.duties import Duties
from kiqcluster.worker.maintenance.poller import OUTAGE_PAUSE_SECONDS
from tests.kit import ManualClock
from tests.server_clock import ServerClock

__all__ = ["BOOT_SECONDS", "POLL", "DutyFleet", "Report"]

POLL = "schedule"
INTERVALS = {POLL: 5.0, "retry": 5.0, "processes": 60.0, "hands": 30.0, "limits": 30.0}
BOOT_SECONDS = 1.0  # of a process: from its start to its first look
START_SECONDS = 10.0  # in which the first looks of a fleet that was started at once are not counted
JOBS_PER_SECOND = 20  # that become due


@dataclass
class Report:
    """begin, end: of the run.  looks: since all have started.  begun: duty → when somebody has begun it.

    away: from when to when no process could begin it, since none was there or Redis was away.
    """

    begin: float
    end: float
    looks: int
    begun: dict[str, list[float]]
    away: list[tuple[float, float]]

    @property
    def looks_per_second(self) -> float:
        return self.looks / (self.end - self.begin - START_SECONDS)

    def gap(self, duty: str) -> float:
        """Return the longest time in which a duty could have begun, and has not."""
        moments = [self.begin, *self.begun[duty], self.end]
        return max(self._able(before, after) for before, after in pairwise(moments))

    def late(self) -> list[float]:
        """Return how late each job moves, in order, if only polls move jobs: those that know its time do not count."""
        polls, found = [*self.begun[POLL], self.end], []
        for number in range(int((self.end - self.begin) * JOBS_PER_SECOND)):
            due = self.begin + number / JOBS_PER_SECOND
            found.append(self._able(due, polls[bisect_left(polls, due)]))
        return sorted(found)

    def _able(self, begin: float, end: float) -> float:
        """Return the seconds between two moments in which a poll was possible."""
        unable = sum(max(0.0, min(end, until) - max(begin, since)) for since, until in self.away)
        return end - begin - unable


@dataclass(order=True)
class Turn:
    at: float
    number: int
    act: Callable[[], None] = field(compare=False)


class DutyFleet:
    """alive: numbers of the processes that are there.  next_looks: when each looks."""

    def __init__(self, store: Store, rng: Random) -> None:
        self.store, self.rng = store, rng
        self.clock = ManualClock()
        self.server = ServerClock(store)
        self.alive: set[int] = set()
        self.begun: dict[str, list[float]] = {name: [] for name in INTERVALS}
        self.looks = 0
        self.next_looks: dict[int, float] = {}
        self.is_away = False
        self._away: list[tuple[float, float]] = []
        self._unable_since: float | None = None
        self._turns: list[Turn] = []
        self._numbers = count(1)
        self._setup = Setup(store=store)
        self._began = self.clock.time
        self._mark()

    # what happens

    def start(self, processes: int, life: float = inf) -> list[int]:
        """Start processes, each of which is replaced when it has lived for so long."""
        return [self._start(life) for _ in range(processes)]

    def stop(self, number: int) -> None:
        """Have a process leave."""
        self._end(number)
        self.store.call("HDEL", "kiq:members", str(number))

    def kill(self, number: int) -> None:
        """End a process; it stays a member, as nobody recovers it here."""
        self._end(number)

    def lose_everything(self) -> None:
        """Have Redis come back empty."""
        self.store.call("FLUSHDB")
        for number in self.alive:
            self.store.call("HSET", "kiq:members", str(number), "1 boot ns 1 1")

    def be_away(self, seconds: float) -> None:
        """Have Redis away for a while."""
        self.is_away = True
        self._mark()
        self.at(seconds, self._be_back)

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen, so many seconds from now."""
        heappush(self._turns, Turn(self.clock.time + seconds, next(self._numbers), act))

    def run(self, seconds: float) -> None:
        """Let time go by."""
        until = self.clock.time + seconds
        while self._turns and self._turns[0].at <= until:
            turn = heappop(self._turns)
            self.clock.time = max(self.clock.time, turn.at)
            turn.act()
        self.clock.time = until

    def report(self) -> Report:
        self._close()
        return Report(self._began, self.clock.time, self.looks, self.begun, self._away)

    # processes

    def _start(self, life: float) -> int:
        number = next(self._numbers)
        self.at(BOOT_SECONDS, lambda: self._boot(number, life))
        return number

    def _boot(self, number: int, life: float) -> None:
        self.alive.add(number)
        self._mark()
        self.store.call("HSET", "kiq:members", str(number), "1 boot ns 1 1")
        runtime = Runtime(Config(), self.store, self._setup, Events(), self.clock, Random(self.rng.random()))
        duties = Duties(runtime, "poller", INTERVALS)
        self._look(number, duties)
        if life < inf:
            self.at(life, lambda: self._replace(number, life))

    def _replace(self, number: int, life: float) -> None:
        if number in self.alive:
            self.stop(number)
            self._start(life)

    def _look(self, number: int, duties: Duties) -> None:
        if number not in self.alive:
            return
        if self.is_away:
            self.at(OUTAGE_PAUSE_SECONDS, lambda: self._look(number, duties))
            return
        self.server.set(self.clock.time)
        self.looks += self.clock.time >= self._began + START_SECONDS
        for name, left in duties.claim().left.items():
            if not left:
                self.begun[name].append(self.clock.time)
        self.next_looks[number] = duties.next_look
        self.at(duties.next_look - self.clock.time, lambda: self._look(number, duties))

    def _end(self, number: int) -> None:
        self.alive.discard(number)
        self._mark()

    # when nobody can

    def _be_back(self) -> None:
        self.is_away = False
        self._mark()

    def _mark(self) -> None:
        """Take note of whether any process could poll from now on."""
        is_able = bool(self.alive) and not self.is_away
        if is_able:
            self._close()
        elif self._unable_since is None:
            self._unable_since = self.clock.time

    def _close(self) -> None:
        if self._unable_since is not None:
            self._away.append((self._unable_since, self.clock.time))
            self._unable_since = None
