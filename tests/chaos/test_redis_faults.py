"""Redis is far, stalls, loses connections, replies and commands: every job runs once, and counts once.

No process dies here, so nothing has an excuse for running twice.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from random import Random

import pytest

from kiqcluster.store import Store
from kiqcluster.store.scripts import RESERVE, RESYNC, SETTLE, Script
from tests.chaos.pusher import Pusher
from tests.chaos.scale import FULL, sized
from tests.chaos.stage import ChaosStage
from tests.kit import PAUSE, RedisServer, wait_until
from tests.proxy import Fault, Proxy

LINK_CHANGES = sized(20, 1_500)  # changes of the weather
MAX_STALL_SECONDS = sized(0.3, 12.0)  # a call to Redis gives up after 5
OFTEN = {"KIQ_AVERAGE_SCHEDULED_POLL_INTERVAL": "0.5"}
JOBS = 20
ROUNDS, TIMES_IN_A_ROW = sized(1, 30), 3  # how often each fault hits a script, in a row because the pauses grow


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", redis_server.port)) as proxy:
        yield proxy


def digest(script: Script) -> bytes:
    return script.digest.encode()


def processed(store: Store) -> int:
    return int(store.call("GET", "stat:processed") or 0)


class Storm:
    """Injects one fault of connections after the other."""

    def __init__(self, proxy: Proxy, store: Store, rng: Random) -> None:
        self._proxy = proxy
        self._store = store
        self._rng = rng
        self._held: list[Fault] = []
        self.seen: dict[str, int] = {}

    def change(self) -> None:
        kinds = [self.cut, self.kill_clients, self.stall, self.delay, self.lose, self.hold, self.halve, self.release]
        kind = self._rng.choice(kinds)
        self.seen[kind.__name__] = self.seen.get(kind.__name__, 0) + 1
        kind()
        PAUSE.wait(self._rng.uniform(0.01, 0.12))

    def pass_by(self) -> None:
        """Fine weather again; what was held back arrives, late."""
        self.release()
        self._proxy.forget()
        self._proxy.delay(0.0, 0.0)

    def cut(self) -> None:
        self._proxy.cut()

    def kill_clients(self) -> None:
        self._store.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    def stall(self) -> None:
        both = self._rng.random() < 0.5
        # Long ones are for the long form: there a quarter outlasts every time limit.
        longest = MAX_STALL_SECONDS if self._rng.random() < 0.25 else 0.3
        with self._proxy.stalled(up=both, down=True):
            PAUSE.wait(self._rng.uniform(0.05, longest))

    def delay(self) -> None:
        self._proxy.delay(self._rng.choice((0.0, 0.0005, 0.01)), self._rng.choice((0.0, 0.0005, 0.01)))

    def lose(self) -> None:
        self._proxy.lose_replies(self._drawn(), times=self._rng.randint(1, 3))

    def hold(self) -> None:
        self._held.append(self._proxy.hold(self._drawn(), times=self._rng.randint(1, 3)))

    def halve(self) -> None:
        self._proxy.halve(self._drawn())

    def release(self) -> None:
        for fault in self._held:
            self._proxy.release(fault)
        self._held.clear()

    def _drawn(self) -> bytes:
        return self._rng.choice((digest(RESERVE), digest(SETTLE), digest(RESYNC), b"LPUSH", b"BLMOVE"))


def test_each_job_runs_once_whatever_happens_to_the_connections(stage: ChaosStage, proxy: Proxy) -> None:
    cluster = stage.run_cluster("default", "default", "-c", "4", "--redis", proxy.url, **OFTEN)
    cluster.wait_ready(2)
    storm = Storm(proxy, stage.store, stage.rng)

    with Pusher(Store(proxy.url, timeout=5.0 if FULL else 0.5), stage.rng) as pusher:
        for _ in range(LINK_CHANGES):
            storm.change()
        storm.pass_by()
    wait_until(lambda: stage.ledger.has_ended(pusher.certain), "all jobs to end", 60)
    wait_until(lambda: stage.remaining() == {}, "all to be settled", 60)

    stage.report({**storm.seen, **pusher.check(stage.ledger)})
    assert processed(stage.store) == len(stage.ledger.ended())
    assert cluster.stop() == 0


@pytest.mark.parametrize("script", [RESERVE, SETTLE], ids=lambda script: script.name)
def test_a_round_of_which_nobody_knows_whether_it_ran_is_cleared_up(
    stage: ChaosStage, proxy: Proxy, script: Script
) -> None:
    """Its reply is lost; half of it arrives; or all, when its caller has given it up and gone on."""
    cluster = stage.run_cluster("default", "-c", "2", "--redis", proxy.url)
    cluster.wait_ready()
    jids: list[str] = []
    held: list[Fault] = []

    for inject in ROUNDS * (proxy.lose_replies, proxy.halve, proxy.hold):
        fault = inject(digest(script), times=TIMES_IN_A_ROW)
        held.append(fault)
        while fault.hits < TIMES_IN_A_ROW:
            more = stage.push_many("Work", [[1]] * JOBS)
            wait_until(lambda jids=more: stage.ledger.has_ended(jids), "the jobs to end")
            jids += more

    # Those that were held arrive now, when there is something for them to take.
    cluster.signal(signal.SIGTSTP)
    cluster.wait_for("worker_quiet")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")
    jids += stage.push_many("Work", [[1]] * JOBS)
    for fault in held:
        proxy.release(fault)
    stage.store.call("PING")  # whatever has arrived before it has run
    # A wait from before the quiet phase may have one job in its hand list; a late reserve takes none.
    assert stage.store.call("KEYS", "kiq:inflight:*") == []
    wait_until(lambda: stage.remaining() == {"queue:default": JOBS}, "the job of the wakeup to be back in its queue")
    cluster.signal(signal.SIGCONT)
    wait_until(lambda: stage.ledger.has_ended(jids), "the last jobs to end")
    wait_until(lambda: stage.remaining() == {}, "all to be settled")

    audit = stage.ledger.audit(jids)
    stage.report({"faults": len(held) * TIMES_IN_A_ROW, **audit.counts()})
    assert (audit.lost, audit.repeated, audit.strangers) == (set(), {}, set())
    assert stage.ledger.begun() == dict.fromkeys(jids, 1)
    assert processed(stage.store) == len(jids)
