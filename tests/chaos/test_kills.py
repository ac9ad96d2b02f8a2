"""Workers are killed at random while jobs of mixed length run, and their supervisor as well; beside Ruby, too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.chaos.ledger import Audit, Ledger
from tests.chaos.scale import MOST_KILLS, sized
from tests.chaos.stage import ChaosStage
from tests.interop.programs import RubyServer
from tests.kit import PAUSE, Cluster, is_alive, wait_until

JOBS, SHARED_JOBS = sized((600, 300), (20_000, 20_000))
MAX_JOB_MS = 100  # that a job takes
KILL_INTERVAL_SECONDS = 0.3  # between kills
THREADS = 15
TIMEOUT_SECONDS = sized(50, 1_800)
MAX_DEATHS = 3  # max_retries_after_interruption


class Storm:
    """Kills a random worker of a cluster every KILL_INTERVAL_SECONDS."""

    def __init__(self, cluster: Cluster, ledger: Ledger, rng: Random) -> None:
        self.cluster = cluster
        self.kills = 0
        self._ledger = ledger
        self._rng = rng

    def rage(self, until: Callable[[], bool]) -> None:
        """Kill, until something is so; after MOST_KILLS wait for it."""
        last = self.kills + MOST_KILLS

        def struck() -> bool:
            if until():
                return True
            PAUSE.wait(KILL_INTERVAL_SECONDS)
            if self.kills < last:
                self.strike()
            return False

        wait_until(struck, "what the storm waits for", TIMEOUT_SECONDS)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self._ledger.died(pid)
        self.kills += 1

    def strike(self) -> None:
        """Kill one of those that are ready."""
        victims = sorted(pid for pid in self.cluster.pids().values() if is_alive(pid))
        if victims:
            self.kill(self._rng.choice(victims))


def push_work(stage: ChaosStage, count: int) -> list[str]:
    """Enqueue jobs that take from nothing to MAX_JOB_MS."""
    return stage.push_many("Work", [[stage.rng.uniform(0, MAX_JOB_MS)] for _ in range(count)])


def nothing_waits(stage: ChaosStage) -> bool:
    """Return whether no job waits, runs or is due again."""
    return stage.remaining().keys() <= {"dead", "kiq:suspects"}


def buried_in_the_storm(stage: ChaosStage) -> set[str]:
    """Return the jids of jobs that were buried for what they were not: killers of their processes.

    A process that is to bury one may be killed as well: that is one death more.
    """
    buried = stage.dead()
    assert min([entry["interrupted_count"] for entry in buried], default=MAX_DEATHS) >= MAX_DEATHS
    return {entry["jid"] for entry in buried}


def assert_nothing_is_lost(audit: Audit, buried: set[str], ledger: Ledger, kills: int) -> None:
    begun = ledger.begun()
    assert audit.lost == audit.strangers == set()
    assert audit.unexplained == set()
    assert audit.broken_off <= kills * THREADS
    # A death may precede the first line of a run; on a busy machine two of one job may.
    counts = [begun[jid] for jid in buried]
    assert min(counts, default=MAX_DEATHS) >= 1
    assert sum(counts) >= len(counts) * (MAX_DEATHS - 1)


def test_no_job_is_lost_while_workers_are_killed_and_the_supervisor_as_well(stage: ChaosStage) -> None:
    jids = push_work(stage, JOBS)
    first = stage.run_cluster("default", "default", "-c", str(THREADS))
    first.wait_ready(2)
    storm = Storm(first, stage.ledger, stage.rng)
    storm.rage(until=lambda: len(stage.ledger.ended()) >= JOBS / 2)

    os.kill(first.pid, signal.SIGKILL)
    storm.strike()  # nobody is left who knows of it; the other worker finishes its jobs and leaves
    storm.cluster = stage.run_cluster("default", "default", "-c", str(THREADS))
    storm.rage(until=lambda: nothing_waits(stage))

    buried = buried_in_the_storm(stage)
    audit = stage.ledger.audit(jids, buried=buried)
    stage.report({"kills": storm.kills, **audit.counts()})
    assert_nothing_is_lost(audit, buried, stage.ledger, storm.kills)
    assert stage.remaining().keys() <= {"dead"}


@pytest.fixture
def ruby_beside(sidekiq_is_there: None, stage: ChaosStage) -> Iterator[RubyServer]:
    """A Sidekiq server process on the queue `default`."""
    application = Path(__file__).with_name("server.rb")
    server = RubyServer(stage.redis.url, application, queue="default", threads=5, environ=stage.ledger.environ)
    yield server
    server.close()


@pytest.mark.ruby
def test_no_job_is_lost_while_ours_are_killed_beside_ruby(stage: ChaosStage, ruby_beside: RubyServer) -> None:
    jids = push_work(stage, 1)
    wait_until(lambda: stage.ledger.has_ended(jids), "Ruby to serve the queue")
    jids += push_work(stage, SHARED_JOBS)

    cluster = stage.run_cluster("default", "default", "-c", str(THREADS))
    cluster.wait_ready(2)
    storm = Storm(cluster, stage.ledger, stage.rng)
    storm.rage(until=lambda: nothing_waits(stage))
    assert ruby_beside.stop() == 0  # what it runs is nowhere in Redis; a stop lets that end

    buried = buried_in_the_storm(stage)
    audit = stage.ledger.audit(jids, buried=buried)
    ended_in_ruby = {
        entry.jid for entry in stage.ledger.entries() if entry.word == "end" and entry.pid == ruby_beside.pid
    }
    left_suspect = stage.store.call("HLEN", "kiq:suspects")
    stage.report(
        {
            "kills": storm.kills,
            **audit.counts(),
            "ended in Ruby": len(ended_in_ruby),
            "left suspect": left_suspect,
        }
    )
    assert_nothing_is_lost(audit, buried, stage.ledger, storm.kills)
    assert 0 < len(ended_in_ruby) < len(jids)
    assert stage.remaining().keys() <= {"dead", "kiq:suspects"}
    assert left_suspect <= storm.kills * THREADS  # Ruby knows of none: one that ended there is counted until it expires
