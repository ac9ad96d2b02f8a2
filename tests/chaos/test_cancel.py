"""Jobs are cancelled from several processes at random moments, while workers are killed, frozen and quieted.

Connections break as well, on both sides.

Jobs wait in queues, in the schedule, for a retry and for places; they run in threads and on the event loop.
What may still begin once a cancel has returned:
- a job that a process held at that moment (`running`), but only soon: the process may not have read the mark yet.  It
  is told then.
- a job that was found nowhere: it has ended, or has died.
A job that was removed never begins.  It may still *end* in a process that stood still until others recovered its jobs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest

from kiqcluster.api import LockSet
from kiqcluster.control.cancellation import MAX_MARKS
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import DROPPED_BY_CANCEL
from kiqcluster.store.scripts import BEGIN, MARK_CANCELLED, MOVE_ENTRIES, PUBLISH, RECORD_JOB, SETTLE
from tests.apps import chaos_cancelled as app
from tests.chaos.ledger import MAX_UNSETTLED_SECONDS
from tests.chaos.places import jobs_in, twice
from tests.chaos.scale import sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, ROOT, Cluster, freeze, is_alive, wait_until
from tests.proxy import Proxy
from tests.stage import pid_of

# In the short form: process/test_cancel.py, redis/test_cancellation.py, redis/test_heartbeat.py.
pytestmark = pytest.mark.full

JOBS, JOBS_OF_A_STEP = sized((400, 30), (8_000, 40))
CANCELLED_SHARE = 0.4
CANCELLERS = sized(2, 3)  # processes, each with two threads
THREADS, ASYNC_PLACES = 4, 20  # of each worker
MAX_JOB_MS = 60
MAX_DELAY_SECONDS = 1.5  # of scheduled jobs
STEP_SECONDS = 0.3  # from one fault to the next
SHORT_FREEZE_SECONDS = 0.3
RECOVER_AFTER_SECONDS = 2.0  # health.silence_timeout is off, for a supervisor would kill what is frozen
LONG_FREEZE_EVERY = sized(8, 40)  # steps
MAX_LOST_REPLIES = 3  # of one script, one after the other; after each a heartbeat pauses for a second
# In which each process has read a mark: a long freeze, a connection that broke, replies that were lost.  Less than the
# ten seconds from one beat to the next: a process is told, and does not find out.
TOLD_SECONDS = 3.0 + MAX_LOST_REPLIES + 1
TIMEOUT_SECONDS = sized(60, 900)
ENVIRON = {
    "KIQ_HEALTH_RECOVER_AFTER": str(RECOVER_AFTER_SECONDS),
    "KIQ_HEALTH_SILENCE_TIMEOUT": "0",
    "KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.3",
    "KIQ_HEALTH_RESPAWN_BURST": "100000",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a canceller was told of a job.

    began, ended: of the call, monotonic seconds.  errors: calls before it that failed.
    """

    jid: str
    removed: int
    running: int
    errors: int
    began: float
    ended: float


class Cancellers:
    """The processes that cancel."""

    def __init__(self, stage: ChaosStage, url: str) -> None:
        self._path = stage.folder / "cancelled"
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.apps.canceller", url]
        self._processes = [
            subprocess.Popen(
                [*command, str(stage.rng.random()), str(self._path)], stdin=subprocess.PIPE, env=environ, text=True
            )
            for _ in range(CANCELLERS)
        ]
        self._sent = 0

    def send(self, jid: str) -> None:
        """Have one of them cancel a job soon."""
        self._sent += 1
        stdin = self._processes[self._sent % CANCELLERS].stdin
        assert stdin is not None
        stdin.write(f"{jid}\n")
        stdin.flush()

    def finish(self) -> dict[str, Answer]:
        """Wait for their end; return the answers by jid."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        assert [process.wait(TIMEOUT_SECONDS) for process in self._processes] == [0] * CANCELLERS
        lines = map(json.loads, self._path.read_text().splitlines())
        answers = {each["jid"]: Answer(**each) for each in lines}
        assert len(answers) == self._sent
        return answers

    def close(self) -> None:
        """Kill those that still run."""
        for process in self._processes:
            process.kill()
            process.wait()


@dataclass
class Fleet:
    """Workers behind a proxy, and what was done to them.

    names: class of each job by jid.  waiting: jids that are to be cancelled, and were not sent yet.
    frozen: jids that a process held when it stood still for so long that others have recovered it.
    """

    stage: ChaosStage
    cluster: Cluster
    proxy: Proxy
    cancellers: Cancellers
    names: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    frozen: set[str] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)

    def push_some(self) -> None:
        """Push jobs of all kinds; some of those that are to be cancelled are sent to the cancellers."""
        rng = self.stage.rng
        for _ in range(JOBS_OF_A_STEP):
            kind = rng.choice(
                (app.plain, app.plain, app.deaf, app.asynchronous, app.limited, app.locked, app.flaky, app.doomed)
            )
            arguments: list[Any] = [round(rng.uniform(0, MAX_JOB_MS))]
            if kind is app.locked:
                arguments.insert(0, str(len(self.names)))
            if rng.random() < 0.25:
                jid = kind.perform_in(rng.uniform(0, MAX_DELAY_SECONDS), *arguments)
            else:
                jid = kind.perform_async(*arguments)
            assert jid is not None
            self.names[jid] = kind.__name__
            if rng.random() < CANCELLED_SHARE:
                self.waiting.append(jid)
        rng.shuffle(self.waiting)
        self.cancel(len(self.waiting) * 2 // 3)

    def cancel(self, count: int) -> None:
        for _ in range(count):
            self.cancellers.send(self.waiting.pop())

    # faults

    def victim(self) -> int:
        """Return the pid of a worker."""

        def alive() -> list[int]:
            return sorted(pid for pid in self.cluster.pids().values() if is_alive(pid))

        return self.stage.rng.choice(wait_until(alive, "a worker"))

    def kill(self) -> None:
        pid = self.victim()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.stage.ledger.died(pid)

    def stop_shortly(self) -> None:
        with self.stopped():
            self.cancel(len(self.waiting) // 2)
            PAUSE.wait(SHORT_FREEZE_SECONDS)

    def stop_for_long(self) -> None:
        """Freeze a worker until others have recovered it, while its jobs are cancelled."""
        store = self.stage.store
        with self.stopped() as pid:
            names = {name for name in self.stage.members() if pid_of(name) == pid}
            for name in names:
                self.frozen |= {str(ruby_json.decode(raw)["jid"]) for raw in self.stage.held(name)}
            self.push_some()
            self.cancel(len(self.waiting))
            wait_until(
                lambda: not names & {each.decode() for each in store.call("HKEYS", "kiq:members")}, "its recovery"
            )

    @contextmanager
    def stopped(self) -> Iterator[int]:
        pid = self.victim()
        with suppress(ProcessLookupError, FileNotFoundError):  # it has died meanwhile
            freeze(pid)
        try:
            yield pid
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def quiet(self) -> None:
        """Have a worker take nothing new for a moment."""
        pid = self.victim()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTSTP)
            PAUSE.wait(SHORT_FREEZE_SECONDS)
            os.kill(pid, signal.SIGCONT)

    def cut(self) -> None:
        """End all connections, or lose the replies to some scripts."""
        if self.stage.rng.random() < 0.5:
            self.proxy.cut()
            return
        script = self.stage.rng.choice((SETTLE, BEGIN, MARK_CANCELLED, MOVE_ENTRIES, RECORD_JOB, PUBLISH))
        self.proxy.forget()
        self.proxy.lose_replies(script.digest.encode(), times=self.stage.rng.randint(1, MAX_LOST_REPLIES))

    def strike(self, number: int) -> None:
        """Let something happen to it."""
        if number % LONG_FREEZE_EVERY == LONG_FREEZE_EVERY - 1:
            fault = self.stop_for_long
        else:
            fault = self.stage.rng.choice((self.kill, self.kill, self.stop_shortly, self.quiet, self.cut))
        self.faults[fault.__name__] += 1
        PAUSE.wait(STEP_SECONDS)
        fault()


@pytest.fixture
def fleet(stage: ChaosStage) -> Iterator[Fleet]:
    with Proxy(("127.0.0.1", stage.redis.port)) as proxy:
        groups = ("default", "default", "-c", str(THREADS), "--async-concurrency", str(ASYNC_PLACES))
        cluster = stage.run_cluster(*groups, "--redis", proxy.url, app=app.__name__, **ENVIRON)
        cluster.wait_ready(2)
        cancellers = Cancellers(stage, proxy.url)
        with using_setup(Setup(store=stage.store, config=Config())):
            yield Fleet(stage, cluster, proxy, cancellers)
        cancellers.close()


@pytest.mark.timeout(sized(180, 3_600))
def test_a_cancelled_job_ends_once_in_one_way_whatever_happens_to_its_process(stage: ChaosStage, fleet: Fleet) -> None:
    number = 0
    while len(fleet.names) < JOBS:
        fleet.push_some()
        fleet.strike(number)
        number += 1
    fleet.cancel(len(fleet.waiting))
    answers = fleet.cancellers.finish()
    fleet.proxy.forget()
    wait_until(lambda: stage.remaining().keys() <= {"dead", "kiq:suspects"}, "all jobs to end", TIMEOUT_SECONDS)

    fates = Fates(stage, fleet, answers)
    fates.report()
    assert twice(fates.places) == {}
    assert fates.lost() == set()
    assert fates.in_two_ways() == {}
    assert fates.begun_after(removed=True) == {}
    assert max(fates.begun_after(removed=False).values(), default=0.0) <= TOLD_SECONDS
    assert fates.unexplained_ends() == set()
    assert fates.stray_marks() == set()
    check_released(stage)
    assert fleet.cluster.stop() == 0


@dataclass
class Fates:
    """What became of each job, by the ledger and by Redis."""

    stage: ChaosStage
    fleet: Fleet
    answers: Mapping[str, Answer]

    def __post_init__(self) -> None:
        self.places = jobs_in(self.stage.store)
        self.dead = {place.jid for place in self.places if place.key == "dead"}
        self.dropped = {place.jid for place in self.places if place.payload.get("dropped_by") == DROPPED_BY_CANCEL}
        self.ended = self.stage.ledger.ended()
        self.audit = self.stage.ledger.audit(
            self.fleet.names, recovered=self.fleet.frozen, buried=self.dead | self.dropped
        )
        # Ended, and the process died before it could tell Redis: such a job may have another fate, too.
        self.unsettled = {
            entry.jid
            for entry in self.stage.ledger.entries()
            if entry.word == "end" and self.stage.ledger.deaths.get(entry.pid, inf) - entry.at <= MAX_UNSETTLED_SECONDS
        }

    def report(self) -> None:
        found = [answer for answer in self.answers.values() if answer.removed or answer.running]
        removed = sum(bool(answer.removed) for answer in found)
        self.stage.report({**self.fleet.faults, **self.audit.counts(), "cancelled": len(self.answers)})
        self.stage.report({"found": len(found), "removed": removed, "dropped": len(self.dropped)})
        self.stage.report({"errors": sum(answer.errors for answer in self.answers.values())})
        late = self.begun_after(removed=False).values()
        self.stage.report({"begun while held": len(late), "seconds at most": round(max(late, default=0.0), 3)})
        self.stage.report({"marks": self.stage.store.call("ZCARD", self.stage.store.keys.cancelled)})

    def lost(self) -> set[str]:
        """Return the jobs that have not ended and lie nowhere, and those that were dropped and not cancelled."""
        kept = self.dead | (self.dropped & self.answers.keys())
        return self.fleet.names.keys() - self.ended.keys() - kept | (self.dropped - self.answers.keys())

    def in_two_ways(self) -> dict[str, list[str]]:
        """Return the jobs with more than one fate, but those whose end Redis was not told of."""
        excused = self.unsettled | self.fleet.frozen
        ways = {"done": self.ended.keys() - excused, "dropped": self.dropped, "dead": self.dead}
        found = {jid: [way for way, jids in ways.items() if jid in jids] for jid in self.fleet.names}
        return {jid: each for jid, each in found.items() if len(each) > 1}

    def begun_after(self, *, removed: bool) -> dict[str, float]:
        """Return jobs that began after a cancel had found them, and by how many seconds.

        removed: those that it removed, else those that a process held.
        """
        found = {}
        for entry in self.stage.ledger.entries():
            answer = self.answers.get(entry.jid)
            if entry.word != "begin" or answer is None or entry.at <= answer.ended:
                continue
            if removed if answer.removed and not answer.running else answer.running and not removed:
                found[entry.jid] = entry.at - answer.ended
        return found

    def unexplained_ends(self) -> set[str]:
        """Return the jobs that ended twice without a kill or a long freeze."""
        return set(self.audit.unexplained)

    def stray_marks(self) -> set[str]:
        """Return the jobs that were dropped, and whose marks are still there; all marks, if these are too many.

        A caller whose first call has failed may have removed the job by it: the next call finds it nowhere.
        """
        marks = {jid.decode() for jid in self.stage.store.call("ZRANGE", self.stage.store.keys.cancelled, 0, -1)}
        told_of_errors = {jid for jid, answer in self.answers.items() if answer.errors}
        return marks & self.dropped - told_of_errors if len(marks) <= MAX_MARKS else marks


def check_released(stage: ChaosStage) -> None:
    """Assert that no lock and no place is held, and that nobody waits for one."""
    assert list(LockSet(store=stage.store)) == []
    held = [key for name in ("held", "inflight", "slots", "hand") for key in stage.store.call("KEYS", f"kiq:{name}:*")]
    assert held == []
