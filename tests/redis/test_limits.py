"""Concurrency limits: their upkeep in a worker, and what the API, kiqctl and the exporter show of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from math import inf
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kiqcluster import Client, Job, job, limits
from kiqcluster.api import LimitLine, ParkedJobs, concurrency_limits, end_override, override_limit, parked_count
from kiqcluster.application.registry import Definition, Registry
from kiqcluster.ctl.exporter.exporter import Exporter
from kiqcluster.errors import ExitCode, UsageError
from kiqcluster.features.limits.concurrency_limit import FLEET, ConcurrencyLimits
from kiqcluster.features.stacks import Stacks, using_stacks
from kiqcluster.features.strikes import Strike, Strikes
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.runtime import Run, Runtime, Setup
from kiqcluster.sidekiq.outcome import Dead, Deferred, Done, Dropped, Outcome, Parked, Retry
from kiqcluster.sidekiq.payload import new_jid
from kiqcluster.store import Store, scripts
from kiqcluster.store.engine.engine import Engine
from kiqcluster.store.engine.units import Member, Settlement, Unit
from kiqcluster.store.entry_moves import DeadSetLimits
from kiqcluster.store.limits import parking
from kiqcluster.store.limits.parking import send_parked
from kiqcluster.store.limits.places import take_place
from kiqcluster.testing.clock import frozen_clock
from kiqcluster.worker.maintenance.limit_upkeep import LimitUpkeep
from kiqcluster.worker.maintenance.poller import Poller, sidekiq_sources
from tests.in_process_worker import Worker
from tests.kit import ManualClock
from tests.redis.kiqctl import Kiqctl

ME = Member("host:1:aaaaaaaaaaaa", 1, "boot ns 1 2.00")
LIMITS = DeadSetLimits(100, 1_000.0)


class Bench:
    """One worker's engine, which runs jobs of the class `Sync` step by step."""

    def __init__(self, store: Store, setup: Setup) -> None:
        self.store = store
        self.setup = setup
        self.engine = Engine(store, LIMITS)
        self.engine.join(ME)
        self.calls = 0

    def push(self, definition: Definition, *arguments: Any, queue: str = "default") -> str:
        jid = Client(self.store, self.setup).push({"class": definition.name, "args": [*arguments], "queue": queue})
        assert jid is not None
        return jid

    def take(self, definition: Definition, count: int = 1, queue: str = "default") -> list[tuple[Unit, str]]:
        """Reserve jobs and have them begin; return each with what became of it.  What is parked is settled."""
        self.calls += 1
        with self.store.borrowed() as connection:
            _, reserved = self.engine.exchange(connection, ME, self.calls, {queue: (count, count)}, [], 0.0)
        assert reserved is not None
        taken = []
        for unit in reserved.units:
            rows = list(ConcurrencyLimits().on_begin(Run(json.loads(unit.payload), queue, definition, None)))
            action = self.engine.begin_run(unit, rows).action
            if action == "park":
                (row,) = rows
                largest, name, _ = row.arguments
                self.settle(unit, Parked(row.key, int(largest), str(name)))
            taken.append((unit, action))
        return taken

    def settle(self, unit: Unit, outcome: Any = None) -> None:
        with self.store.borrowed() as connection:
            self.engine.settle(connection, [Settlement(unit, outcome or Done())], 0.0)

    def begin(self, definition: Definition, *arguments: tuple[Any, ...]) -> list[tuple[Unit, str]]:
        """Push jobs and have them begin, one after the other."""
        taken = []
        for each in arguments:
            self.push(definition, *each)
            taken += self.take(definition)
        return taken


@pytest.fixture
def bench(store: Store, setup: Setup) -> Bench:
    return Bench(store, setup)


@pytest.fixture
def sync(registry: Registry) -> Definition:
    @job(name="Sync", concurrency_limit=1)
    def sync(word: str) -> None: ...

    return sync.definition


@pytest.fixture
def keyed(registry: Registry) -> Definition:
    @job(name="Keyed", concurrency_limit=1, concurrency_key=lambda account, _: account)
    def keyed(account: str, word: str) -> None: ...

    return keyed.definition


class TestEndWithoutBegin:
    """Jobs that were sent back from their line, and end before they ask for their place."""

    @pytest.fixture
    def worker(self, store: Store, setup: Setup, registry: Registry) -> Worker:
        return Worker(store, setup, registry)

    def wait_behind(self, worker: Worker, definition: Definition, count: int) -> None:
        """Have a job run while the others that were pushed park, and end; the first one of these goes back."""
        others: list[Outcome] = []
        worker.during = lambda *_: others.extend(worker.run() for _ in range(count))
        assert isinstance(worker.run(), Done)
        assert [type(each) for each in others] == [Parked] * count
        worker.ran.clear()
        worker.during = lambda *_: None

    def declare(self, worker: Worker, **options: Any) -> Any:
        class Sync(Job, name="Sync", concurrency_limit=1, **options):
            def perform(self, word: str) -> None:
                worker.perform(word)

        return Sync

    def test_a_line_of_expired_jobs_is_gone_without_a_sweep(self, worker: Worker, store: Store) -> None:
        sync = self.declare(worker, expires_in=60)
        with frozen_clock(SystemClock.now() - 50):
            sync.perform_bulk([[str(number)] for number in range(5)])
        sync.set(expires_in=3600).perform_async("late")
        self.wait_behind(worker, sync.definition, 5)

        with frozen_clock(SystemClock.now() + 20):
            assert [type(worker.run()) for _ in range(5)] == [Dropped] * 4 + [Done]

        assert worker.ran == [("late",)]
        assert store.call("KEYS", "kiq:slots:*") == []

    @pytest.mark.parametrize("way", ["misfit", "struck", "killer"])
    def test_whatever_keeps_them_from_their_begin(
        self, setup: Setup, registry: Registry, store: Store, way: str
    ) -> None:
        strikes = Strikes()
        with using_stacks(Stacks(server=(strikes, ConcurrencyLimits()))) as stacks:
            worker, other = Worker(store, setup, registry), Worker(store, setup, registry, "host:2:bbbbbbbbbbbb")
        sync = self.declare(worker)
        sync.perform_bulk([[word] for word in ("a", "b", "c")])
        self.wait_behind(worker, sync.definition, 2)
        unit, expected = other.take(), {"misfit": Retry, "struck": Dropped, "killer": Dead}[way]
        if way == "misfit":
            unit.payload = unit.payload.replace(b'["b"]', b'["b","b"]')
        elif way == "struck":
            strikes.apply({b"1": Strike("1", "Sync", "drop", 9e9).encoded()})
            stacks.run.ask_again()
        else:
            unit.deaths = 100

        outcome = other.execute(unit)
        assert isinstance(outcome, expected)
        assert other.settle(unit, outcome) == 1

        assert parked_count(store=store) == 0
        assert b'"args":["c"]' in worker.take().payload

    @pytest.mark.parametrize("count", [("SET", "kiq:struck", "no counts"), ("HSET", "kiq:struck", "1", "many")])
    def test_a_count_that_cannot_be_written_keeps_no_job(
        self, setup: Setup, registry: Registry, store: Store, count: tuple[str, ...]
    ) -> None:
        strikes = Strikes()
        with using_stacks(Stacks(server=(strikes,))) as stacks:
            worker = Worker(store, setup, registry)
        self.declare(worker).perform_async("a")
        strikes.apply({b"1": Strike("1", "Sync", "defer", 9e9, 300.0).encoded()})
        stacks.run.ask_again()
        store.call(*count)

        assert isinstance(worker.run(), Deferred)

        assert (store.call("ZCARD", "schedule"), store.call("KEYS", "kiq:inflight:*")) == (1, [])

    def test_a_key_that_cannot_be_told_leaves_it_to_the_sweep(self, worker: Worker, store: Store) -> None:
        keys: list[Any] = ["x"]
        sync = self.declare(worker, concurrency_key=lambda _word: keys[-1])
        sync.perform_bulk([[word] for word in ("a", "b", "c")])
        self.wait_behind(worker, sync.definition, 2)
        keys.append(2.5)

        assert isinstance(worker.run(), Done)

        assert parked_count(store=store) == 1
        for digest in store.call("ZRANGE", "kiq:slots:Sync|x:turns", 0, -1):
            store.call("ZADD", "kiq:slots:Sync|x:turns", 1, digest)
        assert send_parked(store, "kiq:slots:Sync|x") == (1, 0, 0)


class TestUpkeep:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def runtime(self, store: Store, setup: Setup, clock: ManualClock) -> Runtime:
        return Runtime(Config(), store, setup, Events(), clock, Random(1))

    @pytest.fixture
    def upkeep(self, runtime: Runtime, registry: Registry) -> LimitUpkeep:
        return LimitUpkeep(runtime, registry, 5)

    def test_is_needed_only_where_a_class_declares_a_limit(
        self, upkeep: LimitUpkeep, registry: Registry, store: Store
    ) -> None:
        @job
        def free() -> None: ...

        assert not upkeep.is_needed
        store.call("CONFIG", "RESETSTAT")
        upkeep.count_threads()
        assert b"cmdstat_smembers" not in store.call("INFO", "commandstats")

    def test_threads_are_those_of_all_processes_counted_once_a_minute(
        self, upkeep: LimitUpkeep, sync: Definition, store: Store, clock: ManualClock
    ) -> None:
        assert FLEET.count == 5
        for number, threads in enumerate(("10", "7", "many", "", "9" * 5_000)):
            store.call("SADD", "processes", f"host:{number}")
            store.call("HSET", f"host:{number}", "concurrency", threads)
            store.call("EXPIRE", f"host:{number}", 60)
        store.call("SADD", "processes", "gone")

        upkeep.count_threads()
        assert FLEET.count == 17
        store.call("DEL", "processes")
        clock.time += 59
        upkeep.count_threads()
        assert FLEET.count == 17
        clock.time += 2
        upkeep.count_threads()
        assert FLEET.count == 5, "at least its own"

    def test_the_sweep_asks_once_where_nothing_is_parked(self, upkeep: LimitUpkeep, store: Store) -> None:
        store.call("CONFIG", "RESETSTAT")

        upkeep.sweep()

        assert b"cmdstat_exists:calls=1," in store.call("INFO", "commandstats")
        assert b"cmdstat_smembers:" not in store.call("INFO", "commandstats")

    def test_the_sweep_frees_jobs_when_somebody_has_deleted_the_one_on_its_way(
        self, upkeep: LimitUpkeep, bench: Bench, sync: Definition, store: Store
    ) -> None:
        (running, _), *_ = bench.begin(sync, ("a",), ("b",), ("c",))
        bench.settle(running)
        store.call("DEL", "queue:default")
        for digest in store.call("ZRANGE", "kiq:slots:Sync:turns", 0, -1):
            store.call("ZADD", "kiq:slots:Sync:turns", 1, digest)

        upkeep.sweep()

        assert [action for _, action in bench.take(sync)] == ["go"]
        assert parked_count(store=store) == 0

    def test_the_sweep_reads_what_a_function_returns_by_now(
        self, upkeep: LimitUpkeep, bench: Bench, registry: Registry, store: Store
    ) -> None:
        answers: list[Any] = [-1]

        @job(name="Flagged", concurrency_limit=lambda: answers[-1])
        def flagged(word: str) -> None: ...

        assert [action for _, action in bench.begin(flagged.definition, ("a",), ("b",))] == ["park", "park"]
        answers.append("nonsense")
        upkeep.sweep()  # reported, and the limit that was used last stays
        assert parked_count(store=store) == 2
        answers.append(1)
        upkeep.sweep()

        assert [action for _, action in bench.take(flagged.definition, 2)] == ["go"]
        assert parked_count(store=store) == 1

    @pytest.mark.parametrize("limit", [0, 1])
    def test_a_part_of_the_application_is_paused_and_its_jobs_go_on_in_order(
        self, upkeep: LimitUpkeep, bench: Bench, registry: Registry, store: Store, limit: int
    ) -> None:
        """GitLab's pause control: a limit below 0 while a function says so."""
        answers = [-1]

        @job(name="Search", concurrency_limit=lambda: answers[-1])
        def search(number: int) -> None: ...

        assert [action for _, action in bench.begin(search.definition, *((n,) for n in range(25)))] == ["park"] * 25
        upkeep.sweep()
        assert (parked_count(store=store), store.call("LLEN", "queue:default")) == (25, 0)
        answers.append(limit)
        upkeep.sweep()

        begun = []
        while taken := bench.take(search.definition):
            ((unit, action),) = taken
            begun += json.loads(unit.payload)["args"] if action == "go" else []
            bench.settle(unit)
        assert begun == list(range(25))

    def test_a_line_of_a_wrong_type_holds_up_no_other(
        self, upkeep: LimitUpkeep, bench: Bench, sync: Definition, store: Store
    ) -> None:
        (running, _), *_ = bench.begin(sync, ("a",), ("b",))
        store.call("SET", "kiq:slots:Broken:parked", "no line")
        store.call("SADD", "kiq:parked", "kiq:slots:Broken")
        store.call("HSET", "kiq:limits", "Broken", 5)
        override_limit("Sync", 2, store=store)
        assert len(bench.take(sync)) == 1
        bench.settle(running)

        upkeep.sweep()

        assert parked_count(store=store) == 0

    def lines(self, store: Store, count: int, jobs: int, limit: int) -> None:
        """Have jobs wait in many lines of a class that nobody knows here."""
        store.call("HSET", "kiq:limits", "Far", limit)
        for number in range(count):
            slots = f"kiq:slots:Far|{number}"
            store.call("SADD", "kiq:parked", slots)
            for place in range(jobs):
                store.call("ZADD", f"{slots}:parked", place, f"queue:far\0{number} {place}")

    def test_many_lines_are_looked_at_in_few_round_trips(
        self, upkeep: LimitUpkeep, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.lines(store, 250, 1, 1)
        batches: list[int] = []

        def run_scripts_each(connection: Any, calls: Any) -> list[Any]:
            batches.append(len(calls))
            return scripts.run_scripts_each(connection, calls)

        monkeypatch.setattr(parking, "run_scripts_each", run_scripts_each)
        upkeep.sweep()

        assert batches == [100, 100, 50]
        assert store.call("LLEN", "queue:far") == 250

    def test_a_sweep_ends_when_the_worker_stops(
        self, runtime: Runtime, registry: Registry, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.lines(store, 250, 1, 1)

        LimitUpkeep(runtime, registry, 5, lambda: store.call("LLEN", "queue:far") > 0).sweep()

        assert store.call("LLEN", "queue:far") == 100

    def test_the_sweep_goes_on_while_there_is_room(self, upkeep: LimitUpkeep, store: Store) -> None:
        self.lines(store, 1, 60, 50)

        upkeep.sweep()

        assert (store.call("LLEN", "queue:far"), parked_count(store=store)) == (50, 10)

    def test_equal_jobs_go_on_though_the_limits_are_lost(self, upkeep: LimitUpkeep, store: Store) -> None:
        slots = "kiq:slots:Report:while_executing|digest"
        store.call("ZADD", f"{slots}:parked", 1, "queue:far\0a", 2, "queue:far\0b")
        store.call("SADD", "kiq:parked", slots)

        upkeep.sweep()

        assert (store.call("LLEN", "queue:far"), parked_count(store=store)) == (1, 1)

    def park(self, store: Store, slots: str, name: str, *accounts: str) -> None:
        """Have jobs wait as an earlier release has left them: nobody has a place."""
        store.call("HSET", "kiq:limits", slots.removeprefix("kiq:slots:").partition("|")[0], 1)
        store.call("SADD", "kiq:parked", slots)
        for place, account in enumerate(accounts):
            payload = json.dumps({"class": name, "args": [account, "w"], "jid": f"{place}"})
            store.call("ZADD", f"{slots}:parked", place, f"queue:default\0{payload}")

    @pytest.mark.parametrize(
        ("slots", "options", "left"),
        [
            ("kiq:slots:Sync", {}, 0),  # the option is gone
            ("kiq:slots:Sync", {"concurrency_limit": 1}, 11),
            ("kiq:slots:Sync", {"concurrency_limit": 1, "concurrency_key": lambda account, _: account}, 0),
            ("kiq:slots:Sync|a", {"concurrency_limit": 1, "concurrency_key": lambda account, _: account}, 11),
            ("kiq:slots:Sync|a", {"concurrency_limit": 1, "concurrency_key": lambda account, _: f"{account}2"}, 0),
            ("kiq:slots:Sync|a", {"concurrency_limit": 1, "concurrency_key": lambda *_: 1 / 0}, 11),
            ("kiq:slots:Sync|a", {"concurrency_limit": 1}, 0),
            ("kiq:slots:Sync:while_executing|d", {"deduplicate": "until_executed"}, 0),
            ("kiq:slots:Sync:while_executing|d", {"deduplicate": "while_executing"}, 0),
        ],
    )
    def test_a_line_of_an_earlier_release_goes_at_once(
        self, upkeep: LimitUpkeep, registry: Registry, store: Store, slots: str, options: Any, left: int
    ) -> None:
        @job(name="Sync", **options)
        def sync(account: str, word: str) -> None: ...

        self.park(store, slots, "Sync", *["a"] * 12)

        upkeep.sweep()

        assert (store.call("LLEN", "queue:default"), parked_count(store=store)) == (12 - left, left)

    @pytest.mark.parametrize(
        "trace", [("SADD", "kiq:slots:Sync", "host/1"), ("ZADD", "kiq:slots:Sync:turns", 1e14, "d")]
    )
    def test_a_line_that_others_use_is_left_alone(
        self, upkeep: LimitUpkeep, registry: Registry, store: Store, trace: tuple[Any, ...]
    ) -> None:
        @job(name="Sync")
        def sync(account: str, word: str) -> None: ...

        self.park(store, "kiq:slots:Sync", "Sync", *["a"] * 12)
        store.call("HSET", "kiq:members", "host", "1 boot ns 1 2")
        store.call("HSET", "kiq:inflight:host", "1:default", "{}")
        store.call(*trace)

        upkeep.sweep()

        assert parked_count(store=store) == 12

    def test_a_place_that_its_process_no_longer_knows_of_is_free_once_its_job_has_ended(
        self, bench: Bench, sync: Definition, runtime: Runtime, registry: Registry, store: Store
    ) -> None:
        def sweep() -> None:
            store.call("DEL", "kiq:limits:sweep")
            LimitUpkeep(runtime, registry, 1).sweep()

        override_limit("Sync", 1, timedelta(hours=1), store=store)
        (unit, _), _ = bench.begin(sync, ("a",), ("b",))
        (held,) = store.call("KEYS", "kiq:held:*")
        store.call("DEL", held)

        sweep()
        assert bench.take(sync) == [], "it still runs"
        bench.settle(unit)
        sweep()

        assert [action for _, action in bench.take(sync)] == ["go"]

    def test_jobs_of_an_unknown_class_go_on_as_before(self, upkeep: LimitUpkeep, store: Store) -> None:
        self.park(store, "kiq:slots:Gone", "Gone", "a", "a", "a")

        upkeep.sweep()

        assert parked_count(store=store) == 2, "it may be the class of another application"

    def test_the_end_of_an_override_is_due_like_a_job(
        self, upkeep: LimitUpkeep, runtime: Runtime, bench: Bench, sync: Definition, store: Store
    ) -> None:
        override_limit("Sync", -1, timedelta(hours=1), store=store)
        bench.begin(sync, ("a",), ("b",))
        poller = Poller(
            runtime,
            bench.engine,
            lambda name, error: None,
            [*sidekiq_sources(store.keys, runtime.setup), upkeep.source()],
        )
        store.call("ZADD", "kiq:limits:ends", 1, "Sync")

        poller.poll()  # this process' clock is ahead: by Redis' it has not ended
        assert store.call("ZCARD", "kiq:limits:ends") == 1
        assert bench.take(sync) == []

        store.call("HSET", "kiq:limits", "Sync|override", "-1 1")
        store.call("ZADD", "kiq:limits:ends", 1, "Sync")
        poller.poll()

        assert store.call("ZCARD", "kiq:limits:ends") == 0
        assert [action for _, action in bench.take(sync)] == ["go"]


class TestApi:
    def test_shows_who_holds_places_and_how_many_wait(
        self, bench: Bench, sync: Definition, keyed: Definition, store: Store
    ) -> None:
        (unit, _), *_ = bench.begin(sync, ("a",), ("b",), ("c",))
        bench.begin(keyed, ("x", "1"), ("y", "1"), ("y", "2"))

        x, y, plain = concurrency_limits(store=store)

        assert [(each.name, each.key, each.limit, each.parked) for each in (x, y, plain)] == [
            ("Keyed", "x", 1, 0),
            ("Keyed", "y", 1, 1),
            ("Sync", "", 1, 2),
        ]
        (holder,) = plain.holders
        assert (holder.identity, holder.job.name, holder.job.args) == (ME.identity, "Sync", ["a"])
        bench.settle(unit)
        assert concurrency_limits(store=store)[-1].holders == ()

    def test_one_line_is_shown_page_by_page_with_who_holds_places(
        self, bench: Bench, sync: Definition, keyed: Definition, store: Store
    ) -> None:
        bench.begin(sync, *((str(number),) for number in range(6)))
        bench.begin(keyed, ("x", "1"), ("y", "1"), ("y", "2"))
        override_limit("Sync", -1, 60, store=store)
        line = LimitLine("Sync", store=store)

        status, held, jobs = line.look(1, 3, 10)
        keyed_status, _, keyed_jobs = LimitLine("Keyed", "y", store=store).look(0, 10, 10)

        assert (status.limit, status.override, status.parked, held) == (1, -1, 5, 1)
        assert [(each.identity, each.job.args) for each in status.holders] == [(ME.identity, ["0"])]
        assert [each.args for each in jobs] == [["2"], ["3"], ["4"]]
        assert line.at_places([jobs[1].parked_at, inf]) == [jobs[1]]
        assert (keyed_status.parked, [each.args for each in keyed_jobs]) == (1, [["y", "2"]])

    def test_a_line_of_another_type_is_empty(self, store: Store) -> None:
        slots = store.keys.slots("Odd")
        store.pipeline([("SET", slots, "x"), ("SET", store.keys.parked(slots), "x"), ("SET", store.keys.limits, "x")])

        status, held, jobs = LimitLine("Odd", store=store).look(0, 10, 10)

        assert (status.limit, status.parked, status.holders, held, jobs) == (None, 0, (), 0, [])

    def test_places_are_counted_without_reading_all_of_their_jobs(
        self, bench: Bench, sync: Definition, keyed: Definition, store: Store
    ) -> None:
        bench.begin(keyed, ("x", "1"), ("y", "1"))

        counted = concurrency_limits(store=store, most_holders=0)

        assert [len(each.holders) for each in counted] == [1, 1]
        assert [each.holders[0].job.name for each in counted] == ["", ""]

    def test_a_limit_that_is_no_number_hides_no_other(self, bench: Bench, sync: Definition, store: Store) -> None:
        bench.begin(sync, ("a",))
        store.call("HSET", store.keys.limits, "Odd", "many", "Huge", "9" * 5_000)

        assert {each.name: each.limit for each in concurrency_limits(store=store)} == {
            "Huge": None,
            "Odd": None,
            "Sync": 1,
        }

    def test_shows_an_override_until_it_ends(self, bench: Bench, sync: Definition, store: Store) -> None:
        bench.begin(sync, ("a",))

        override_limit("Sync", 5, timedelta(minutes=5), store=store)
        (status,) = concurrency_limits(store=store)
        assert (status.limit, status.override, status.in_force) == (1, 5, 5)
        assert status.override_until is not None
        override_limit("Sync", -1, store=store)
        assert concurrency_limits(store=store)[0].override_until == inf
        assert end_override("Sync", store=store)
        assert concurrency_limits(store=store)[0].override is None

    def test_parked_jobs_can_be_found_and_deleted(self, bench: Bench, keyed: Definition, store: Store) -> None:
        bench.begin(keyed, *((account, str(number)) for number in range(3) for account in "xy"))
        parked = ParkedJobs("Keyed", store=store)

        jobs = list(parked)

        assert len(parked) == 4
        assert [each.args for each in jobs] == [["x", "1"], ["x", "2"], ["y", "1"], ["y", "2"]]
        assert {(each.queue, each.key) for each in jobs} == {("default", "x"), ("default", "y")}
        assert jobs[0].parked_at == pytest.approx(float(store.call("TIME")[0]), abs=60)
        found = parked.find_job(str(jobs[2].jid))
        assert found == jobs[2]
        assert parked.delete(jobs[2])
        assert not parked.delete(jobs[2])
        assert parked.delete_all(jobs) == 3
        assert parked.find_job(str(jobs[0].jid)) is None
        assert parked_count(store=store) == len(parked) == 0

    def test_a_time_in_the_past_is_refused(self, store: Store) -> None:
        with pytest.raises(UsageError, match="longer than"):
            override_limit("Sync", 1, 0, store=store)

    @pytest.mark.parametrize("limit", ["10%", "2", 2.5, 2.0, True, None])
    def test_what_is_no_whole_number_is_refused(self, store: Store, limit: Any) -> None:
        with pytest.raises(UsageError, match="pass a whole number: 0 for none, -1"):
            override_limit("Sync", limit, store=store)

        assert store.call("EXISTS", store.keys.limits, store.keys.limit_ends) == 0

    @pytest.mark.parametrize("last", ["1h", True, inf, float("nan"), -inf])
    def test_what_is_no_duration_is_refused(self, store: Store, last: Any) -> None:
        with pytest.raises(UsageError, match="pass seconds, a timedelta, or None"):
            override_limit("Sync", 1, last, store=store)

        assert store.call("EXISTS", store.keys.limits, store.keys.limit_ends) == 0


class TestKiqctl:
    def test_lists_limits_and_holders(self, bench: Bench, sync: Definition, kiqctl: Kiqctl) -> None:
        assert "no job with a concurrency limit" in kiqctl("limits").stdout
        (unit, _), *_ = bench.begin(sync, ("a",), ("b",))

        lines = kiqctl("limits").stdout.splitlines()

        assert lines[1].split() == ["Sync", "1", "1", "1"]
        assert lines[-1].split() == ["Sync", json.loads(unit.payload)["jid"], ME.identity]
        (row,) = kiqctl.ask("limits", "list")["limits"]
        assert (row["class"], row["held"], row["parked"], row["limit"], row["override"]) == ("Sync", 1, 1, 1, None)

    def test_sets_and_resets_an_override(self, bench: Bench, sync: Definition, kiqctl: Kiqctl) -> None:
        bench.begin(sync, ("a",), ("b",))

        assert "the limit of Sync is 2 for 1h" in kiqctl("limits", "set", "Sync", "2", "--for", "1h").stdout
        assert [action for _, action in bench.take(sync)] == ["go"]
        assert kiqctl.ask("limits")["limits"][0]["override"] == 2
        assert "paused" in kiqctl("limits", "set", "Sync", "-1").stdout
        assert kiqctl.ask("limits", "reset", "Sync")["changed"]
        assert not kiqctl.ask("limits", "reset", "Sync")["changed"]

    @pytest.mark.parametrize("word", ["10%", "2.5", "True", ""])
    def test_refuses_what_is_no_whole_number(self, store: Store, kiqctl: Kiqctl, word: str) -> None:
        result = kiqctl("limits", "set", "Sync", word)

        assert result.exit_code == ExitCode.USAGE
        assert f"'{word}' is not a valid integer" in result.stderr
        assert store.call("EXISTS", store.keys.limits) == 0

    @pytest.mark.parametrize("word", ["0", "-1", "inf", "nan", "soon"])
    def test_refuses_what_is_no_duration(self, store: Store, kiqctl: Kiqctl, word: str) -> None:
        result = kiqctl("limits", "set", "Sync", "2", "--for", word)

        assert (result.exit_code, bool(result.stderr)) == (ExitCode.USAGE, True)
        assert store.call("EXISTS", store.keys.limits) == 0

    def test_says_so_where_nobody_knows_the_class(self, kiqctl: Kiqctl) -> None:
        assert "no job Synk" in kiqctl("limits", "set", "Synk", "2").stderr

    def test_shows_counts_and_deletes_parked_jobs(self, bench: Bench, sync: Definition, kiqctl: Kiqctl) -> None:
        bench.begin(sync, *((word,) for word in "abcd"))

        jobs = kiqctl.ask("limits", "jobs", "Sync")["jobs"]
        assert [each["args"] for each in jobs] == [["b"], ["c"], ["d"]]
        assert "3 of 3 parked jobs of Sync" in kiqctl("limits", "jobs", "Sync").stdout
        assert kiqctl.ask("limits", "jobs", "Sync", "--args-contain", "c", "--count")["count"] == 1
        assert kiqctl.ask("limits", "jobs", "Sync", "--jid", jobs[0]["jid"], "--delete", "--yes")["done"] == 1
        assert kiqctl("limits", "jobs", "Sync", "--jid", jobs[0]["jid"], "--delete", "--yes").exit_code == 1
        assert kiqctl("limits", "jobs", "Sync", "--delete", "--yes").exit_code == ExitCode.USAGE
        assert kiqctl.ask("limits", "jobs", "Sync", "--delete", "--all", "--yes")["done"] == 2

    def test_a_parked_job_is_found_by_its_id_and_counted(self, bench: Bench, sync: Definition, kiqctl: Kiqctl) -> None:
        bench.begin(sync, ("a",), ("b",))
        jid = kiqctl.ask("limits", "jobs", "Sync")["jobs"][0]["jid"]

        assert "parked by the limit of Sync" in kiqctl("retries", "show", jid).stderr
        assert kiqctl.ask("stats")["parked"] == 1
        assert "parked" in kiqctl("stats").stdout


def test_the_exporter_shows_each_class_under_gitlabs_names(
    bench: Bench, sync: Definition, keyed: Definition, store: Store
) -> None:
    clock = ManualClock()
    exporter = Exporter(store, clock, 5.0, lambda error: None)
    page: Callable[[], str] = lambda: exporter.page("", "")[1].decode()  # noqa: E731
    assert "concurrency_limit" not in page()
    bench.begin(sync, ("a",), ("b",), ("c",))
    bench.begin(keyed, ("x", "1"), ("y", "1"), ("y", "2"))
    store.call("SADD", "processes", ME.identity)
    store.call("HSET", ME.identity, "info", '{"concurrency":5}', "busy", 0, "beat", 1)
    override_limit("Keyed", 3, store=store)

    clock.time += 5
    found = {
        (sample.name.removeprefix("sidekiq_concurrency_limit_"), sample.labels["worker"]): sample.value
        for family in text_string_to_metric_families(page())
        for sample in family.samples
        if "concurrency_limit" in sample.name
    }

    assert found == {
        ("queue_jobs", "Sync"): 2,
        ("current_concurrent_jobs", "Sync"): 1,
        ("max_concurrent_jobs", "Sync"): 1,
        ("queue_jobs", "Keyed"): 0,  # the raised limit has sent it on
        ("current_concurrent_jobs", "Keyed"): 2,
        ("max_concurrent_jobs", "Keyed"): 3,
    }


class TestKiqctlOfRates:
    def test_shows_how_much_is_used_and_when_the_next_start_is_allowed(self, store: Store, kiqctl: Kiqctl) -> None:
        for limit, starts in ((limits.sliding_window(2, 600), 5), (limits.leaky_bucket(3, per_second=0.01), 2)):
            for _ in range(starts):
                arguments = (limit.kind, limit.largest, repr(limit.seconds), 0, new_jid())
                scripts.run_script(store, scripts.Call(scripts.RATE, [store.keys.rate(limit.kind)], arguments))

        lines = kiqctl("limits").stdout.splitlines()
        leaky, sliding = kiqctl.ask("limits")["rates"]

        assert lines[0].split() == ["RATE", "KIND", "LIMIT", "USED", "FREE", "IN", "PROMISED"]
        assert lines[1].split() == [
            "leaky_bucket",
            "leaky_bucket",
            "3,",
            "then",
            "0.01",
            "a",
            "second",
            "2",
            "0.0s",
            "0",
        ]
        assert lines[2].split()[:6] == ["sliding_window", "sliding_window", "2", "in", "10m", "2"]
        assert (sliding["name"], sliding["kind"], sliding["limit"], sliding["seconds"]) == (
            *["sliding_window"] * 2,
            2,
            600,
        )
        assert (sliding["used"], sliding["promised"]) == (2, 3)
        assert sliding["free_in"] == pytest.approx(600 + 3 * 300, abs=5)
        assert (leaky["used"], leaky["promised"], leaky["free_in"]) == (2, 0, 0.0)

    def test_shows_who_has_a_place(self, bench: Bench, registry: Registry, kiqctl: Kiqctl) -> None:
        @job(name="Sync", concurrency_limit=0)
        def sync(word: str) -> None: ...

        jid = bench.push(sync.definition, "a")
        ((unit, _),) = bench.take(sync.definition)
        take_place(unit, bench.store, "crm", 1)

        lines = kiqctl("limits").stdout.splitlines()
        (rate,) = kiqctl.ask("limits")["rates"]

        assert ["crm", "concurrent", "1", "at", "once", "1", "0"] in [line.split() for line in lines]
        assert ["crm", jid, ME.identity] in [line.split() for line in lines]
        assert (rate["used"], rate["free_in"], rate["holders"][0]["jid"]) == (1, None, jid)

    def test_a_broken_one_is_left_out(self, store: Store, kiqctl: Kiqctl) -> None:
        store.call("ZADD", store.keys.rates, 9e9, "broken", 9e9, "odd", 9e9, "gone", 9e9, "none", 9e9, "empty")
        store.call("SET", store.keys.rate("broken"), "of a wrong type")
        store.call("HSET", store.keys.rate("odd"), "limit", "of another release")
        store.call("HSET", store.keys.rate("none"), "limit", "leaky_bucket 5 0")
        store.call("HSET", store.keys.rate("empty"), "limit", "fixed_window 0 60")

        assert kiqctl.ask("limits")["rates"] == []
