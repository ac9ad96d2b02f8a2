"""Cron on a real Redis: what is declared, which process takes a tick, and what becomes of its job."""

from __future__ import annotations

import json
from collections.abc import Callable
from threading import Barrier, Thread

import pytest

from kiqcluster.api import CronSet
from kiqcluster.application.registry import Registry
from kiqcluster.client.cron_jobs import resolved
from kiqcluster.features.cron import CronRun
from kiqcluster.job import Job, job
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.sidekiq.cron_entries import CronEntry, parse_entries
from kiqcluster.store import Store
from kiqcluster.store.cron import CronRow, read_entries, write
from kiqcluster.worker.maintenance.cron_sync import CronSync
from kiqcluster.worker.maintenance.cron_ticks import CronTicks
from tests.kit import ManualClock, RedisServer
from tests.redis.kiqctl import Kiqctl

Make = Callable[..., CronTicks]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def now(store: Store) -> float:
    """The time of Redis, in which ticks are due."""
    seconds, micros = store.call("TIME")
    return int(seconds) + int(micros) / 1e6


def runtime_of(store: Store, setup: Setup, clock: ManualClock, **settings: object) -> Runtime:
    setup.config = Config(require=("app",), **settings)  # type: ignore[arg-type]
    return Runtime(setup.config, store, setup, Events(), clock)


@pytest.fixture
def ticks(store: Store, setup: Setup, registry: Registry, clock: ManualClock) -> CronTicks:
    @job(name="Report")
    def report(*args: object) -> None: ...

    return CronTicks(runtime_of(store, setup, clock), registry, JobMetrics(1, list))


def put(store: Store, table: dict[str, object], awaited: float, name: str = "e") -> CronEntry:
    """Add an entry by hand, which awaits this tick."""
    (entry,) = parse_entries({name: {"schedule": "* * * * *", "job": "Report", "queue": "q", **table}})
    assert write(store, [CronRow("put", name, entry.encoded(), 1)]) == ["DONE"]
    store.call("ZADD", store.keys.cron_ticks, repr(awaited), name)
    return entry


def jobs(store: Store, queue: str = "q") -> list[dict[str, object]]:
    return [json.loads(raw) for raw in reversed(store.call("LRANGE", store.keys.queue(queue), 0, -1))]


def awaited(store: Store, name: str = "e") -> float | None:
    score = store.call("ZSCORE", store.keys.cron_ticks, name)
    return None if score is None else float(score)


def history(store: Store, name: str = "e") -> list[CronRun | None]:
    return [CronRun.read(raw) for raw in store.call("LRANGE", store.keys.cron_history(name), 0, -1)]


class TestTicks:
    def test_a_tick_enqueues_its_job_and_the_next_one_is_awaited(
        self, ticks: CronTicks, store: Store, now: float
    ) -> None:
        minute = now // 60 * 60
        put(store, {"args": ["all", 7], "retry": 3}, minute)

        moved = ticks.move(now)

        (payload,) = jobs(store)
        assert (payload["class"], payload["args"], payload["retry"]) == ("Report", ["all", 7], 3)
        assert (payload["cron"], payload["cron_at"]) == ("e", minute)
        assert payload["meta.caller_id"] == "cron/e"
        assert (moved.entries, moved.next_at) == (1, minute + 60)
        assert awaited(store) == minute + 60
        (run,) = history(store)
        assert run is not None
        assert (run.jid, run.tick, run.refused_for) == (payload["jid"], minute, None)
        assert store.call("SISMEMBER", "queues", "q")

    def test_nothing_is_due_before_its_tick(self, ticks: CronTicks, store: Store, now: float) -> None:
        put(store, {}, now + 30)

        assert ticks.move(now) == (0, now, now + 30)
        assert jobs(store) == []

    def test_a_clock_that_is_ahead_enqueues_nothing_early(self, ticks: CronTicks, store: Store, now: float) -> None:
        put(store, {}, now + 120)

        assert ticks.move(now + 300).entries == 0
        assert jobs(store) == []

    def test_processes_at_the_same_time_take_each_tick_once(
        self, redis_server: RedisServer, setup: Setup, registry: Registry, clock: ManualClock, store: Store, now: float
    ) -> None:
        second = now // 1
        for number in range(20):
            put(store, {"schedule": "* * * * * *", "args": [number]}, second - 20, f"e{number}")
        stores = [redis_server.store() for _ in range(4)]
        barrier, taken = Barrier(4), []

        def run(own: Store) -> None:
            ticks = CronTicks(runtime_of(own, setup, clock), registry, JobMetrics(1, list))
            barrier.wait(5)
            taken.append(ticks.move(now).entries)

        threads = [Thread(target=run, args=(own,)) for own in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        pushed = [(payload["cron"], payload["cron_at"]) for payload in jobs(store)]
        wanted = {(f"e{number}", second - 20 + at) for number in range(20) for at in range(21)}
        assert len(pushed) == len(set(pushed))
        assert set(pushed) == wanted
        assert sum(taken) == len(wanted)
        for own in stores:
            own.close()

    def test_guarantees_of_the_class_hold(self, ticks: CronTicks, store: Store, registry: Registry, now: float) -> None:
        @job(queue="q", deduplicate="until_executed")
        def report() -> None: ...

        minute = now // 60 * 60
        put(store, {"job": "report", "grace": 130}, minute - 60)
        first = ticks.move(now)
        holder = jobs(store)[0]["jid"]

        assert first.entries == 2, "the second tick is over as well, whose job an equal one keeps out"
        assert len(jobs(store)) == 1
        assert awaited(store) == minute + 60
        assert [(run.tick, run.refused_for) for run in history(store) if run is not None] == [
            (minute, holder),
            (minute - 60, None),
        ]

    def test_client_middleware_sees_the_job_and_may_stop_it(
        self, ticks: CronTicks, store: Store, setup: Setup, now: float
    ) -> None:
        minute = now // 60 * 60
        put(store, {}, minute)

        @setup.client_middleware.add
        def stop(push: Push, call_next: Callable[[], Push | None]) -> Push | None:
            return None

        assert ticks.move(now).entries == 1
        assert jobs(store) == []
        assert awaited(store) == minute + 60

    def test_an_error_of_middleware_keeps_the_tick_for_a_later_try(
        self, ticks: CronTicks, store: Store, setup: Setup, clock: ManualClock, now: float
    ) -> None:
        minute, errors = now // 60 * 60, []
        setup.error_handlers.append(lambda error, context: errors.append((str(error), context)))
        put(store, {}, minute)
        put(store, {"args": [2]}, minute, "other")

        @setup.client_middleware.add
        def fail(push: Push, call_next: Callable[[], Push | None]) -> Push | None:
            if push.payload["args"] == [] and not errors:
                raise RuntimeError("no")
            return call_next()

        moved = ticks.move(now)
        assert [payload["args"] for payload in jobs(store)] == [[2]], "the other entry is not held up"
        assert awaited(store) == minute
        assert errors == [("no", {"context": "cron", "entry": "e"})]
        assert moved.next_at == pytest.approx(now + 60, abs=60)

        assert ticks.move(now).entries == 0, "not at once"
        clock.time += 61
        assert ticks.move(now).entries == 1
        assert jobs(store)[-1]["cron_at"] == minute

    def test_what_redis_refuses_keeps_its_tick_and_holds_up_no_other(
        self, ticks: CronTicks, store: Store, clock: ManualClock, now: float
    ) -> None:
        minute = now // 60 * 60
        store.call("SET", "queue:broken", "x")
        put(store, {"queue": "broken"}, minute)
        put(store, {}, minute, "other")

        assert ticks.move(now).entries == 1
        assert len(jobs(store)) == 1
        assert (awaited(store), awaited(store, "other")) == (minute, minute + 60)

        store.call("DEL", "queue:broken")
        clock.time += 61
        assert ticks.move(now).entries == 1
        assert len(jobs(store, "broken")) == 1

    def test_a_tick_without_an_entry_goes(self, ticks: CronTicks, store: Store, now: float) -> None:
        store.call("ZADD", store.keys.cron_ticks, now - 5, "gone")
        store.call("ZADD", store.keys.cron_ticks, now - 5, "broken")
        store.call("HSET", store.keys.cron, "broken", "{")

        ticks.move(now)

        assert store.call("ZCARD", store.keys.cron_ticks) == 0
        assert store.call("HGET", store.keys.cron, "broken") == b"{", "it stays, for kiqctl to show"

    def test_who_does_not_know_the_class_leaves_it_to_others_for_a_while(
        self, ticks: CronTicks, store: Store, now: float
    ) -> None:
        second = now // 1
        put(store, {"schedule": "* * * * * *", "job": "Stranger"}, second)
        put(store, {"schedule": "@daily", "job": "Stranger"}, second - 5, "late")

        moved = ticks.move(now)

        assert [payload["cron"] for payload in jobs(store)] == ["late"]
        assert (moved.entries, moved.next_at) == (1, pytest.approx(second + 5))
        assert awaited(store) == second


class TestSync:
    def sync(self, store: Store, setup: Setup, registry: Registry, clock: ManualClock, **tables: object) -> CronSync:
        runtime = runtime_of(store, setup, clock, cron=parse_entries(tables))
        return CronSync(runtime, registry, "", lambda key, at: None)

    def names(self, store: Store) -> dict[str, float | None]:
        return {each.name: each.next_at for each in read_entries(store)}

    def test_what_is_declared_is_written_once_and_removed_when_it_is_gone(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock, now: float
    ) -> None:
        @job
        def report() -> None: ...

        daily = {"schedule": "@daily", "job": "report"}
        self.sync(store, setup, registry, clock, a=daily, b=daily).keep()
        put(store, {}, now + 60, "by hand")

        (a, b, _) = read_entries(store)
        assert CronEntry.read("a", a.raw).queue == "cronjob:report"
        assert CronEntry.read("a", a.raw).options["retry"] == 0
        assert a.next_at == b.next_at == (now // 86_400 + 1) * 86_400
        store.call("CONFIG", "RESETSTAT")
        self.sync(store, setup, registry, clock, a=daily, b=daily).keep()
        assert b"cmdstat_hset" not in store.call("INFO", "commandstats")

        self.sync(store, setup, registry, clock, b=daily).keep()
        assert set(self.names(store)) == {"b", "by hand"}
        self.sync(store, setup, registry, clock).keep()
        assert set(self.names(store)) == {"by hand"}

    def test_removed_entries_are_named_for_two_applications_may_have_one_name(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        @job
        def report() -> None: ...

        daily = {"schedule": "@daily", "job": "report"}
        told: list[dict[str, object]] = []
        for entries in ({"shared": daily, "nightly": daily}, {"billing": daily}, {"billing": daily}):
            runtime = runtime_of(store, setup, clock, cron=parse_entries(entries))
            runtime.events.listen(lambda event, fields: told.append({"event": event, **fields}))
            CronSync(runtime, registry, "", lambda key, at: None).keep()

        removed = [each for each in told if each["event"] == "cron_entries_removed"]
        assert [(each["names"], each["application"]) for each in removed] == [("nightly, shared", "app")]
        assert set(self.names(store)) == {"billing"}

    def test_an_entry_that_is_the_same_keeps_the_tick_that_it_awaits(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock, now: float
    ) -> None:
        @job
        def report(number: int = 0) -> None: ...

        daily = {"schedule": "@daily", "job": "report"}
        self.sync(store, setup, registry, clock, a=daily, b=daily).keep()
        for name in ("a", "b"):
            store.call("ZADD", store.keys.cron_ticks, now - 30, name)

        changed = {"schedule": "@hourly", "job": "report"}
        self.sync(store, setup, registry, clock, a={**daily, "args": [1]}, b=changed).keep()

        assert awaited(store, "a") == pytest.approx(now - 30), "a tick that is due is not lost by a deploy"
        assert awaited(store, "b") == (now // 3_600 + 1) * 3_600

    def test_a_disabled_entry_stays_disabled_unless_the_declaration_says_otherwise(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        @job
        def report() -> None: ...

        daily = {"schedule": "@daily", "job": "report"}
        self.sync(store, setup, registry, clock, a=daily).keep()
        assert write(store, [CronRow("disable", "a")]) == ["DONE"]

        self.sync(store, setup, registry, clock, a={**daily, "retry": 2}).keep()
        assert self.names(store) == {"a": None}
        self.sync(store, setup, registry, clock, a={**daily, "enabled": True}).keep()
        assert self.names(store)["a"] is not None

    def test_applications_do_not_remove_each_others_entries(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        @job
        def report() -> None: ...

        daily = {"schedule": "@daily", "job": "report"}
        for name in ("a", "b"):
            runtime = runtime_of(store, setup, clock, cron=parse_entries({name: daily}), cron_application=name)
            CronSync(runtime, registry, "", lambda key, at: None).keep()

        assert set(self.names(store)) == {"a", "b"}

    def test_an_entry_that_is_declared_is_not_changed_by_hand(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        @job
        def report() -> None: ...

        self.sync(store, setup, registry, clock, a={"schedule": "@daily", "job": "report"}).keep()

        rows = [CronRow("put", "a", "{}", 5), CronRow("remove", "a"), CronRow("disable", "a"), CronRow("remove", "no")]
        assert write(store, rows) == ["DECLARED", "DECLARED", "DONE", "ABSENT"]

    def test_only_the_process_that_began_last_writes(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        store.call("HSET", store.keys.cron_applications, "app", "writing other")

        assert write(store, [CronRow("put", "a", "{}", 5)], "app", "mine") is None
        assert read_entries(store) == []

    def test_entries_that_are_gone_are_written_again(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        @job
        def report() -> None: ...

        sync = self.sync(store, setup, registry, clock, a={"schedule": "@daily", "job": "report"})
        sync.keep()
        store.call("FLUSHDB")

        clock.time += 100
        sync.keep()
        assert set(self.names(store)) == {"a"}

        store.call("HSET", store.keys.cron_applications, "app", "digest of a newer release")
        store.call("DEL", store.keys.cron)
        clock.time += 100
        sync.keep()
        assert self.names(store) == {}, "an old process does not write over a newer release"

    def test_what_another_process_has_not_finished_is_finished(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        @job
        def report() -> None: ...

        sync = self.sync(store, setup, registry, clock, a={"schedule": "@daily", "job": "report"})
        sync.keep()
        store.call("DEL", store.keys.cron)
        store.call("HSET", store.keys.cron_applications, "app", "writing other")
        clock.time += 100
        for expected in (set(), {"a"}):
            sync.keep()
            assert set(self.names(store)) == expected
            clock.time += 100

    def test_a_forbidden_key_keeps_no_worker_from_starting(
        self, store: Store, setup: Setup, registry: Registry, clock: ManualClock
    ) -> None:
        errors: list[str] = []
        setup.error_handlers.append(lambda error, context: errors.append(str(context["context"])))
        store.call("SET", store.keys.cron, "x")

        @job
        def report() -> None: ...

        self.sync(store, setup, registry, clock, a={"schedule": "@daily", "job": "report"}).keep()
        assert errors == ["cron"]


class TestRetries:
    def test_retries_that_a_class_declares_hold_also_where_they_are_the_default(
        self, setup: Setup, registry: Registry
    ) -> None:
        setup.config = Config(require=("app",))

        class Retried(Job, cron="@daily", retry=True):
            def perform(self) -> None: ...

        @job(retry=True)
        def declared() -> None: ...

        @job
        def plain() -> None: ...

        tables = {name: {"schedule": "@daily", "job": name} for name in ("Retried", "declared", "plain")}
        found = {
            each.name: resolved(setup, registry.get(each.job), each)[0].options["retry"]
            for each in parse_entries(tables)
        }
        assert found == {"Retried": True, "declared": True, "plain": 0}


def test_enqueue_now_says_which_job_holds_the_lock(store: Store, setup: Setup, kiqctl: Kiqctl) -> None:
    @job(queue="reports", deduplicate="until_executed")
    def report(number: int) -> None: ...

    entries = CronSet(store=store)
    entries.add("nightly", "0 9 * * *", report, [1])

    first = entries.push("nightly")
    second = entries.push("nightly")

    assert first.jid is not None
    assert (second.jid, second.holder, entries.enqueue("nightly")) == (None, first.jid, first.jid)
    assert [run.jid for run in entries.history("nightly")] == [first.jid]
    asked = kiqctl("cron", "enqueue", "nightly")
    assert asked.stdout == f"nothing was enqueued: the job {first.jid} holds the lock of nightly\n"
    document = kiqctl.ask("cron", "enqueue", "nightly")
    assert (document["jid"], document["lock_held_by"]) == (None, first.jid)
    assert store.call("LLEN", "queue:reports") == 1
