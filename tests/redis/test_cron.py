"""Cron on a real Redis: which process takes a tick, and what becomes of its job (declared: test_cron_sync)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from threading import Barrier, Thread

import pytest

from kiqcluster.api import CronSet
from kiqcluster.application.registry import Registry
from kiqcluster.client.cron_jobs import resolved
from kiqcluster.job import Job, job
from kiqcluster.process.config import Config
from kiqcluster.process.events import Events
from kiqcluster.process.metrics import JobMetrics
from kiqcluster.process.runtime import Push, Runtime, Setup
from kiqcluster.sidekiq.cron_entries import CronEntry, CronRun, parse_entries
from kiqcluster.store import Store
from kiqcluster.store.cron import CronRow, write
from kiqcluster.worker.maintenance.cron_ticks import RETRY_SECONDS, CronTicks
from tests.kit import TIMEOUT_SECONDS, ManualClock, RedisServer
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
            barrier.wait(TIMEOUT_SECONDS)
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

        ticks.move(now)

        assert store.call("ZCARD", store.keys.cron_ticks) == 0

    @pytest.mark.parametrize("change", [{"jitter": 5}, {"tz": "Europe/Nowhere"}, {"schedule": "every day"}, None])
    def test_an_entry_that_cannot_be_read_here_keeps_its_tick_for_others(
        self,
        ticks: CronTicks,
        store: Store,
        setup: Setup,
        clock: ManualClock,
        now: float,
        change: dict[str, object] | None,
    ) -> None:
        """A newer release may have written it, or this host lacks its time zone."""
        errors: list[dict[str, object]] = []
        setup.error_handlers.append(lambda error, context: errors.append(context))
        minute = now // 60 * 60
        entry = put(store, {}, minute)
        put(store, {"args": [2]}, minute, "other")
        raw = b"{" if change is None else json.dumps({**json.loads(entry.encoded()), **change})
        store.call("HSET", store.keys.cron, "e", raw)

        for _ in range(3):
            ticks.move(now)
            clock.time += RETRY_SECONDS + 1

        assert awaited(store) == minute
        assert [payload["args"] for payload in jobs(store)] == [[2]], "the other entry is not held up"
        assert errors == [{"context": "cron", "entry": "e"}], "said once"

        store.call("HSET", store.keys.cron, "e", entry.encoded())
        ticks.move(now)
        assert jobs(store)[-1]["cron_at"] == minute, "who can read it takes the tick"

    def test_an_entry_of_another_application_has_a_class_of_that_name_there(
        self, ticks: CronTicks, store: Store, now: float
    ) -> None:
        second = now // 1
        for application, awaited_at in (("app", second), ("blog", second), ("shop", second - 5)):
            (entry,) = parse_entries({"e": {"schedule": "* * * * * *", "job": "Report", "queue": application}})
            entry = replace(entry, application=application)
            assert write(store, [CronRow("put", entry.id, entry.encoded(), 1)], application) == ["DONE"]
            store.call("ZADD", store.keys.cron_ticks, repr(awaited_at), entry.id)

        ticks.move(now)

        assert len(jobs(store, "app")) == 1, "its own"
        assert (jobs(store, "blog"), len(jobs(store, "shop"))) == ([], 6), "others have 5 s for theirs"
        assert {payload["cron"] for payload in jobs(store, "shop")} == {"e"}
        assert awaited(store, "e@blog") == second

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


def test_a_refusal_of_redis_is_reported_once_and_the_tick_waits(
    store: Store, setup: Setup, registry: Registry, clock: ManualClock, now: float
) -> None:
    said: list[str] = []
    errors: list[Exception] = []
    setup.error_handlers.append(lambda error, context: errors.append(error))
    runtime = runtime_of(store, setup, clock)
    runtime.events.listen(lambda event, fields: said.append(event))
    ticks = CronTicks(runtime, registry, JobMetrics(1, list))
    for name in ("a", "b"):
        put(store, {"schedule": "0 0 1 1 *"}, now - 10, name)  # a younger tick may be left to another process
    store.call("SET", store.keys.queue("q"), "no list")

    for _ in range(3):
        ticks.move(now)
        clock.time += RETRY_SECONDS + 1

    assert said.count("redis_refused") == 1
    assert errors == []
    store.call("DEL", store.keys.queue("q"))
    ticks.move(now)
    assert len(jobs(store)) == 2
