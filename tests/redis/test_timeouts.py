"""Timeouts: units of a killed process that ran too long are settled for it, before the others go back."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from kiqcluster import Client, job
from kiqcluster.application.registry import Registry
from kiqcluster.errors import ReplyLost, StoreError
from kiqcluster.ipc.running_jobs import TIMED_OUT
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Runtime, Setup
from kiqcluster.sidekiq.outcome import Effect, Outcome
from kiqcluster.sidekiq.ruby_json import decode
from kiqcluster.store import Store
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.worker.fetch.fencing import Fencing
from kiqcluster.worker.identity import ProcessFingerprint
from kiqcluster.worker.maintenance import recovery as recovery_module
from kiqcluster.worker.maintenance.recovery import Recovery
from kiqcluster.worker.run.execution import Execution
from kiqcluster.worker.run.job_run import JobRun
from kiqcluster.worker.run.timed_out import TimedOutUnits
from tests.kit import TIMEOUT_SECONDS, wait_until

DEAD = Member("host:1:aaaaaaaaaaaa", 1, "boot ns 1 2")
NOW = 1_795_168_740.25


class Table:
    """A dead process with two units, and one that recovers them."""

    def __init__(self, store: Store, setup: Setup, registry: Registry) -> None:
        self.store = store
        self.calls = 0
        self.engine = Engine(store, DeadSetLimits(100, 1_000.0))
        self.engine.join(DEAD)
        runtime = Runtime(Config(), store, setup, Events())
        metrics = JobMetrics(1, list)
        self.timed_out = TimedOutUnits(
            runtime, self.engine, lambda: Execution(runtime, registry, metrics, threading.Event()), lambda *_: None
        )

    def reserve(self, *names: str) -> list[Unit]:
        for name in names:
            Client(self.store).push({"class": name, "args": [], "jid": name * 4})
        return self.take(len(names))

    def take(self, count: int = 1) -> list[Unit]:
        with self.store.borrowed() as connection:
            limits = {"default": (count, count)}
            self.calls += 1
            _, reserved = self.engine.exchange(connection, DEAD, self.calls, limits, [], NOW)
        assert reserved is not None
        return sorted(reserved.units, key=lambda unit: unit.payload)

    def recover(self, *tokens: str) -> None:
        with self.store.borrowed() as connection:
            self.engine.recover(connection, DEAD.identity, tokens)

    def retried(self) -> list[str]:
        return [decode(raw)["jid"] for raw in self.store.call("ZRANGE", "retry", 0, -1)]

    def waiting(self) -> list[str]:
        lists = self.store.pipeline([("LRANGE", key, 0, -1) for key in ("queue:default", "kiq:wake:default")])
        return [decode(raw)["jid"] for each in lists for raw in each]


@pytest.fixture
def table(store: Store, setup: Setup, registry: Registry) -> Iterator[Table]:
    job(name="slow", timeout_hard=60)(lambda: None)
    job(name="quick")(lambda: None)
    table = Table(store, setup, registry)
    yield table
    table.timed_out._calls.stop()


def test_the_one_has_failed_and_the_other_goes_back_without_a_count(table: Table) -> None:
    quick, slow = table.reserve("slow", "quick")

    table.timed_out.settle(DEAD.identity, [slow.token])
    table.recover(slow.token)

    assert (table.retried(), table.waiting()) == (["slow" * 4], ["quick" * 4])
    assert table.store.call("EXISTS", "kiq:suspects") == 0
    assert quick.token != slow.token


def test_settling_again_changes_nothing(table: Table) -> None:
    _, slow = table.reserve("slow", "quick")

    for _ in range(2):
        table.timed_out.settle(DEAD.identity, [slow.token])

    assert table.retried() == ["slow" * 4]


def test_one_that_lies_in_a_hand_list_is_found_there(table: Table) -> None:
    _, slow = table.reserve("slow", "quick")
    keys, field = table.store.keys, f"{DEAD.padded_epoch}.h000000001:default"
    table.store.call("HDEL", keys.inflight(DEAD.identity), slow.field)
    table.store.call("RPUSH", keys.hand(DEAD.identity, field), slow.payload)
    table.store.call("HSET", keys.hands(DEAD.identity), field, "1")

    table.timed_out.settle(DEAD.identity, [field.partition(":")[0]])

    assert table.retried() == ["slow" * 4]
    assert table.store.call("EXISTS", keys.hand(DEAD.identity, field)) == 0


def test_its_places_are_released(table: Table) -> None:
    (slow,) = table.reserve("slow")
    slots = table.store.keys.slots("slow", "")
    assert table.engine.begin_run(slow, [Effect("enter", slots, (1, "slow", "park"))]).action == "go"

    table.timed_out.settle(DEAD.identity, [slow.token])

    assert table.store.call("SCARD", slots) == 0


def test_one_that_cannot_be_settled_goes_back_and_counts_as_a_killer(table: Table) -> None:
    (slow,) = table.reserve("slow")
    table.store.call("SET", "retry", "of a wrong type")

    table.timed_out.settle(DEAD.identity, [slow.token])
    table.recover(slow.token)

    assert table.waiting() == ["slow" * 4]
    assert table.store.call("HVALS", "kiq:suspects") == [b"1"]


def test_a_hook_that_ends_the_process_costs_its_own_job_only(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes back as a killer; the other overdue one has failed."""
    quick, slow = table.reserve("slow", "quick")
    time_out = Execution.time_out

    def leave(execution: Execution, run: JobRun) -> Outcome:
        if run.unit.token == quick.token:
            raise SystemExit(1)
        return time_out(execution, run)

    monkeypatch.setattr(Execution, "time_out", leave)
    told: list[bool] = []
    table.timed_out.settle_soon(DEAD.identity, [quick.token, slow.token], told.append)

    wait_until(lambda: told, "them to be settled")
    table.recover(quick.token, slow.token)
    assert (told, table.retried(), table.waiting()) == ([True], ["slow" * 4], ["quick" * 4])
    assert table.store.call("HVALS", "kiq:suspects") == [b"1"]


def test_an_outage_is_raised_and_leaves_it_in_flight(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    (slow,) = table.reserve("slow")

    def fail(*_: object) -> int:
        raise ReplyLost("gone")

    with monkeypatch.context() as patched, pytest.raises(StoreError):
        patched.setattr(table.engine, "settle", fail)
        table.timed_out.settle(DEAD.identity, [slow.token])

    assert table.store.call("HLEN", table.store.keys.inflight(DEAD.identity)) == 1


class TestRecovery:
    """The thread that recovers is the one that beats; it waits for no hook of a job."""

    @pytest.fixture
    def recovery(self, table: Table, setup: Setup) -> Iterator[Recovery]:
        here = Member("host:2:bbbbbbbbbbbb", 1, "boot ns 1 3")
        table.engine.join(here)
        runtime = Runtime(Config(health_recover_after=2.0), table.store, setup, Events())
        fencing = Fencing(runtime.clock, 2.0)
        fencing.begin(here.identity)
        self.uncertain: list[str] = []
        recovery = Recovery(
            runtime,
            table.engine,
            ProcessFingerprint.of_this_process(),
            lambda: here.identity,
            fencing,
            lambda: self.uncertain.append("lost"),
            lambda identity, units: self.recovered.append((identity, units)),
            table.timed_out.settle_soon,
            lambda *_: None,
        )
        self.recovered: list[tuple[str, int]] = []
        yield recovery
        recovery.stop()
        assert recovery.join(TIMEOUT_SECONDS)

    def beat_of(self, store: Store) -> float:
        return float(store.call("ZSCORE", "kiq:beats", "host:2:bbbbbbbbbbbb"))

    def test_the_others_go_back_once_it_is_settled(self, table: Table, recovery: Recovery) -> None:
        _, slow = table.reserve("slow", "quick")
        recovery.start()

        recovery.recover({DEAD.identity: [slow.token + TIMED_OUT]})

        wait_until(lambda: self.recovered, "the dead process to be recovered")
        assert (table.retried(), table.waiting()) == (["slow" * 4], ["quick" * 4])
        assert table.store.call("EXISTS", "kiq:suspects") == 0

    def test_it_beats_while_a_hook_hangs_and_gives_the_job_back_as_a_killer_in_the_end(
        self, table: Table, setup: Setup, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hangs, release = threading.Event(), threading.Event()

        @setup.death_handler
        def hang(*_: object) -> None:
            hangs.set()
            release.wait(TIMEOUT_SECONDS)

        monkeypatch.setattr(recovery_module, "SETTLE_SECONDS", 1.0)
        Client(table.store).push({"class": "slow", "args": [], "jid": "slow" * 4, "retry": 0})
        (slow,) = table.take()
        table.reserve("quick")
        recovery.start()
        recovery.recover({DEAD.identity: [slow.token + TIMED_OUT]})
        assert hangs.wait(TIMEOUT_SECONDS)
        before = self.beat_of(table.store)

        recovery.recover({DEAD.identity: [slow.token + TIMED_OUT]})  # the supervisor says so again
        wait_until(lambda: self.beat_of(table.store) > before, "a beat")
        wait_until(lambda: self.recovered, "the dead process to be recovered")

        assert self.recovered == [(DEAD.identity, 2)]
        assert sorted(table.waiting()) == ["quick" * 4, "slow" * 4]
        assert table.store.call("HVALS", "kiq:suspects") == [b"1"]
        release.set()
        wait_until(lambda: not table.timed_out._calls._is_calling, "the hook to end")
        assert table.store.call("ZCARD", "dead") == 0, "its late end changes nothing"
        assert self.uncertain == []

    def test_a_process_that_boots_leaves_it_to_that_thread(self, table: Table, recovery: Recovery) -> None:
        """It does not beat yet."""
        _, slow = table.reserve("slow", "quick")

        recovery.catch_up({DEAD.identity: [slow.token + TIMED_OUT]})

        assert self.recovered == []
        recovery.start()
        wait_until(lambda: self.recovered, "the dead process to be recovered")
        assert table.retried() == ["slow" * 4]
