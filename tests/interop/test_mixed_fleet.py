"""A fleet of Python and Ruby on the same queues, deployed and steered from both sides: every job runs to its end once.

The ledger is a file that no queue can lose (tests/chaos/ledger.py).  Jobs are short and Ruby is stopped politely: a
Ruby process that must stop hard puts back what it runs, and that may have run to its end (its own promise is no more).
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

import pytest

from kiqcluster import Client
from kiqcluster.api import DeadSet, ProcessSet, RetrySet
from kiqcluster.control import process_registry
from kiqcluster.store import Store
from tests.chaos.ledger import Ledger
from tests.interop.programs import FOLDER, RubyClient, RubyServer
from tests.kit import Cluster, RedisServer, wait_until
from tests.stage import Jobs

pytestmark = [pytest.mark.ruby, pytest.mark.usefixtures("setup")]

QUEUES = ("default", "low")
PARTS = 5  # in which jobs are pushed: between two of them something happens to the fleet
ORDINARY, FLAKY, DOOMED = "Work", "Flaky", "Doomed"
OF_TWENTY = {ORDINARY: 17, FLAKY: 2, DOOMED: 1}
RETRY = {ORDINARY: True, FLAKY: 5, DOOMED: 0}
MAX_JOB_MS = 6  # that a job takes
SPREAD_SECONDS = 1.5  # over which scheduled jobs become due


@dataclass
class Fleet:
    """jids: job's name → the jids of all that was pushed."""

    store: Store
    ledger: Ledger
    ours: Cluster
    ruby: RubyServer
    ruby_client: RubyClient
    jids: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in OF_TWENTY})

    def push(self, count: int) -> None:
        """Push so many jobs, half of them from Ruby; a fifth is scheduled.  No name is pushed by one side only."""
        sides = cycle([Client(self.store).push_bulk, self.ruby_client.push_bulk])
        for name, share in OF_TWENTY.items():
            for queue in QUEUES:
                for at in (*[None] * 8, time.time() + SPREAD_SECONDS / 2, time.time() + SPREAD_SECONDS):
                    number = max(1, count * share // 20 // len(QUEUES) // 10)
                    arguments = [[each % MAX_JOB_MS + 1] for each in range(number)]
                    item = {"class": name, "queue": queue, "retry": RETRY[name], "args": arguments}
                    pushed = next(sides)(item if at is None else {**item, "at": at})
                    self.jids[name].update(str(jid) for jid in pushed)

    @property
    def pushed(self) -> set[str]:
        return set().union(*self.jids.values())

    def processes(self, *, ours: bool) -> dict[int, process_registry.RegisteredProcess]:
        return {each.pid: each for each in process_registry.list_processes(self.store) if each.is_ours is ours}

    def hurry(self) -> None:
        """Have what waits for a retry be due; whoever polls moves it.  XX: not what somebody has moved meanwhile."""
        for raw in self.store.call("ZRANGE", "retry", 0, -1):
            self.store.call("ZADD", "retry", "XX", 1, raw)


@pytest.fixture
def start_ruby(
    sidekiq_is_there: None, redis_server: RedisServer, ledger: Ledger
) -> Iterator[Callable[[Store], RubyServer]]:
    """Start a Ruby process on the fleet's queues; return it once it is listed."""
    servers: list[RubyServer] = []

    def start(store: Store) -> RubyServer:
        server = RubyServer(
            redis_server.url, FOLDER / "mixed.rb", queue=",".join(QUEUES), threads=5, environ=ledger.environ
        )
        servers.append(server)
        wait_until(
            lambda: any(each.pid == server.pid for each in process_registry.list_processes(store)),
            "Ruby to be there",
            30,
        )
        return server

    yield start
    for each in servers:
        each.close()


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


@pytest.fixture
def mixed(stage, start_ruby, ruby_client, ledger) -> Fleet:
    os.close(os.open(ledger.path, os.O_CREAT))
    ours = stage.run_cluster(
        ",".join(QUEUES), ",".join(QUEUES), "-c", "5", app="tests.apps.mixed",
        KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL="0.2", **ledger.environ,
    )  # fmt: skip
    ours.wait_ready(2)
    return Fleet(stage.store, ledger, ours, start_ruby(stage.store), ruby_client)


def ruby_stops_one_of_ours(mixed: Fleet, ruby) -> None:
    """Ruby's API quiets one of our processes, then stops it; it is replaced."""
    pid, process = next(iter(mixed.processes(ours=True).items()))
    button = "Sidekiq::ProcessSet.new.find { |each| each.identity == identity }"

    ruby(f"{button}.quiet!", identity=process.identity)
    wait_until(lambda: mixed.processes(ours=True)[pid].is_quiet, "it to be quiet")
    ruby(f"{button}.stop!", identity=process.identity)

    wait_until(lambda: pid not in (found := mixed.processes(ours=True)) and len(found) == 2, "its replacement")


def we_restart_ruby(mixed: Fleet, start_ruby) -> None:
    """Our API quiets Ruby's process, another one is started, and our API stops the first."""
    (process,) = (each for each in ProcessSet() if not each.is_ours)
    before = mixed.ruby

    process.quiet()
    wait_until(lambda: mixed.processes(ours=False)[process.pid].is_quiet, "Ruby to be quiet", 30)
    mixed.ruby = start_ruby(mixed.store)
    process.stop()

    assert before.wait() == 0


def ours_are_rolled(mixed: Fleet) -> None:
    """Each of our processes is replaced by a new one, one after the other."""
    before = set(mixed.processes(ours=True))

    mixed.ours.signal(signal.SIGUSR2)

    wait_until(
        lambda: len(found := set(mixed.processes(ours=True))) == 2 and before.isdisjoint(found), "new processes", 40
    )


def everybody_retries(mixed: Fleet, ruby) -> None:
    """Ruby's API and ours retry all at once, while both pollers move what is due."""
    wait_until(lambda: mixed.store.call("ZCARD", "retry"), "something to retry")
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(RetrySet().retry_all)
        mixed.hurry()
        ruby("Sidekiq::RetrySet.new.retry_all")
        done.result()


def everybody_revives(mixed: Fleet, ruby) -> None:
    """Our API retries a part of the dead, Ruby's the others; and both of them what the other has in hand as well."""
    every = list(DeadSet())
    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(DeadSet().retry, every[: len(every) * 2 // 3])
        ruby("Sidekiq::DeadSet.new.retry_all")
        done.result()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [1_500, pytest.param(20_000, marks=pytest.mark.full)])
def test_python_and_ruby_share_every_job_and_none_is_lost_or_doubled(count, mixed, ruby, start_ruby):
    store, ledger = mixed.store, mixed.ledger
    events = [
        lambda: ruby_stops_one_of_ours(mixed, ruby),
        lambda: we_restart_ruby(mixed, start_ruby),
        lambda: everybody_retries(mixed, ruby),
        lambda: ours_are_rolled(mixed),
        lambda: mixed.hurry(),
    ]
    assert len(events) == PARTS

    for happen in events:
        mixed.push(count // PARTS)
        happen()

    doomed = mixed.jids[DOOMED]
    wait_until(lambda: store.call("ZCARD", "dead") == len(doomed), "all that are doomed to be dead", 60)
    everybody_revives(mixed, ruby)
    wait_until(lambda: mixed.hurry() or ledger.has_ended(mixed.pushed), "every job to end", 90)
    wait_until(lambda: not Jobs(store).remaining(), "nothing to be left in Redis")
    assert mixed.ours.stop() == mixed.ruby.stop() == 0
    audit = ledger.audit(mixed.pushed)
    assert (audit.lost, audit.repeated, audit.strangers) == (frozenset(), {}, frozenset())
    failed_once = mixed.jids[FLAKY] | doomed
    assert ledger.begun() == {jid: 1 + (jid in failed_once) for jid in mixed.pushed}
    assert len(mixed.pushed) >= count * 0.9
    assert Jobs(store).remaining() == {}
    assert int(store.call("GET", "stat:processed")) == len(mixed.pushed) + len(failed_once)
    assert int(store.call("GET", "stat:failed")) == len(failed_once)
    ours = {each["child"] for each in mixed.ours.seen("child_ready")}
    by_side = Counter(entry.pid in ours for entry in ledger.entries() if entry.word == "end")
    assert min(by_side[True], by_side[False]) > len(mixed.pushed) / 20
