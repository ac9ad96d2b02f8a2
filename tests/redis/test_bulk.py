"""Bulk actions: what they mean is counted and done exactly, whoever works on them, and however a run ends."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from kiqcluster.api import DeadSet, RetrySet, ScheduledSet
from kiqcluster.api.bulk import (
    BulkAction,
    BulkRunner,
    Selection,
    ask,
    bulk_actions,
    cancel,
    look,
    read_bulk,
    resume,
    start,
    walk,
)
from kiqcluster.api.bulk import runner as runner_module
from kiqcluster.api.bulk import sources as sources_module
from kiqcluster.api.bulk.look import Budget
from kiqcluster.api.bulk.runner import BulkRun
from kiqcluster.api.bulk.state import change
from kiqcluster.api.bulk.verbs import Target
from kiqcluster.errors import UsageError
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.config import Config
from kiqcluster.process.runtime import Setup, using_setup
from kiqcluster.sidekiq.compression import compressed
from kiqcluster.store import Store, entry_moves
from tests.kit import ManualClock, RedisServer, wait_until
from tests.proxy import Proxy
from tests.stored_jobs import add_entries, entries, entry_numbers, fill_set, job, queued_numbers

SECONDS = 30.0  # within which a run ends


@pytest.fixture(autouse=True)
def _own_setup(setup: Setup) -> None:
    """Have middleware and limits of a test's own."""


def run(store: Store, identifier: str, runner: BulkRunner | None = None) -> BulkAction:
    """Work on it until nobody does any more."""
    runner = runner or BulkRunner()
    runner.run(store, identifier)
    assert runner.wait(SECONDS)
    return found(store, identifier)


def found(store: Store, identifier: str) -> BulkAction:
    action = read_bulk(store, identifier)
    assert action is not None
    return action


def counts(action: BulkAction) -> tuple[int, int, int, int]:
    """Return found, done, gone and failed."""
    told = action.counts
    assert told.found == told.done + told.gone + told.failed
    return told.found, told.done, told.gone, told.failed


def kinds(store: Store, key: str, count: int, **more: Any) -> None:
    """Add jobs of two classes, in turn."""
    pairs = [(float(at), job(at, **{"class": "Red" if at % 2 else "Blue", **more})) for at in range(count)]
    add_entries(store, key, *pairs)


class TestCourse:
    def test_what_matches_is_counted_first_and_done_when_somebody_begins_it(self, store: Store) -> None:
        kinds(store, "dead", 1_200)
        identifier = ask(store, DeadSet, "retry", Selection(name="Red"), by="ada")

        counted = run(store, identifier)
        assert (counted.state, counted.counts.count, len(DeadSet(store=store))) == ("counted", 600, 1_200)
        assert start(store, identifier)
        done = run(store, identifier)

        assert (done.state, counts(done)) == ("done", (600, 600, 0, 0))
        assert done.counts.looked == 1_200
        assert sorted(queued_numbers(store)) == list(range(1, 1_200, 2))
        assert entry_numbers(store, "dead") == list(range(0, 1_200, 2))

    def test_all_of_a_set_need_no_counting(self, store: Store) -> None:
        fill_set(store, "retry", range(10))

        action = found(store, ask(store, RetrySet, "delete", Selection()))

        assert (action.state, action.counts.count) == ("counted", 10)

    def test_nothing_is_done_before_it_begins_and_it_begins_once(self, store: Store) -> None:
        kinds(store, "dead", 4)
        identifier = ask(store, DeadSet, "delete", Selection(name="Red"))

        assert not start(store, identifier)
        run(store, identifier)
        assert start(store, identifier)
        assert not start(store, identifier)
        assert len(DeadSet(store=store)) == 4

    def test_entries_that_came_later_are_left_alone(self, store: Store) -> None:
        now = SystemClock.now()
        add_entries(store, "dead", (now - 5, job(1)), (now + 60, job(2)))

        identifier = ask(store, DeadSet, "delete", Selection())
        start(store, identifier)

        assert counts(run(store, identifier)) == (1, 1, 0, 0)
        assert entry_numbers(store, "dead") == [2]

    def test_the_latest_are_listed_first_and_hostile_states_are_left_out(self, store: Store) -> None:
        first, second = (ask(store, DeadSet, "retry", Selection(), by=name) for name in ("a", "b"))
        store.call("ZADD", store.keys.bulks, 1, "strange")
        store.call("HSET", store.keys.bulk("strange"), "set", "nonsense", "state", "running")

        assert [each.id for each in bulk_actions(store)] == [second, first]

    def test_only_what_there_is_can_be_asked_for(self, store: Store) -> None:
        with pytest.raises(UsageError):
            ask(store, DeadSet, "nonsense", Selection())
        assert store.call("DBSIZE") == 0


class TestVerbs:
    def test_each_is_rescheduled_once_though_it_is_met_again(self, store: Store) -> None:
        fill_set(store, "schedule", range(600))
        identifier = ask(store, ScheduledSet, "reschedule", Selection(), Target(at=1_000.0))

        run(store, identifier)
        start(store, identifier)

        assert counts(run(store, identifier)) == (600, 600, 0, 0)
        assert set(entries(store, "schedule").values()) == {1_000.0}

    def test_each_gets_another_queue_once(self, store: Store) -> None:
        fill_set(store, "schedule", range(600), score=1e9)
        identifier = ask(store, ScheduledSet, "move", Selection(), Target(queue="low"))

        run(store, identifier)
        start(store, identifier)

        assert counts(run(store, identifier)) == (600, 600, 0, 0)
        assert {json.loads(raw)["queue"] for raw in entries(store, "schedule")} == {"low"}

    def test_killing_tells_the_death_handlers_of_each_and_keeps_the_limit_of_the_dead_set(self, store: Store) -> None:
        told: list[Any] = []
        setup = Setup(store=store, config=Config(dead_max_jobs=100))
        setup.death_handlers.append(lambda payload, _: told.append(payload["args"][0]))
        fill_set(store, "retry", range(300))
        with using_setup(setup):
            identifier = ask(store, RetrySet, "kill", Selection())
            start(store, identifier)
            done = run(store, identifier)

        assert counts(done) == (300, 300, 0, 0)
        assert sorted(told) == list(range(300))
        assert done.counts.dropped == 300 - len(DeadSet(store=store))
        assert len(DeadSet(store=store)) <= 100

    def test_entries_on_which_middleware_fails_stay_with_a_reason(self, store: Store, setup: Setup) -> None:
        class Picky:
            def __call__(self, push: Any, proceed: Any) -> Any:
                if push.payload["args"][0] % 3 == 0:
                    raise ValueError("not this one")
                return proceed()

        setup.client_middleware.add(Picky())
        fill_set(store, "dead", range(30))
        identifier = ask(store, DeadSet, "retry", Selection(), clock=after())
        start(store, identifier)

        done = run(store, identifier)

        assert (done.state, counts(done)) == ("done", (30, 20, 0, 10))
        assert done.reasons == {"ValueError: not this one": 10}
        assert entry_numbers(store, "dead") == list(range(0, 30, 3))

    def test_a_queue_that_is_none_keeps_its_jobs_and_is_named(self, store: Store) -> None:
        add_entries(store, "dead", (1.0, job(1)), (2.0, job(2, queue="broken")))
        store.call("SET", "queue:broken", "no list")
        identifier = ask(store, DeadSet, "retry", Selection())
        start(store, identifier)

        done = run(store, identifier)

        assert counts(done) == (2, 1, 0, 1)
        assert any("queue:broken" in reason for reason in done.reasons)


def after() -> ManualClock:
    """Return a clock that is ahead of all scores of these tests."""
    clock = ManualClock()
    clock.time = 3e9
    return clock


class TestEnds:
    def test_another_runner_goes_on_behind_the_last_slice(self, store: Store) -> None:
        kinds(store, "dead", 2_000)
        identifier = ask(store, DeadSet, "delete", Selection(name="Red"))
        run(store, identifier)
        start(store, identifier)
        first = Stopping(store, identifier, slices=2)
        first.run()  # in this thread, and it is never heard of again
        halfway = found(store, identifier)
        assert halfway.state == "running"
        assert 0 < halfway.counts.done < 1_000
        assert halfway.is_held  # for the first one has a lease
        assert run(store, identifier).counts == halfway.counts

        store.call("HSET", store.keys.bulk(identifier), "until", 1)  # the lease is over
        assert found(store, identifier).is_left
        done = run(store, identifier)

        assert (done.state, counts(done)) == ("done", (1_000, 1_000, 0, 0))
        assert entry_numbers(store, "dead") == list(range(0, 2_000, 2))

    def test_two_runners_never_work_on_one(self, store: Store) -> None:
        kinds(store, "dead", 3_000)
        identifier = ask(store, DeadSet, "retry", Selection())
        start(store, identifier)
        runs = [BulkRun(store, identifier, SystemClock(), None, are_arguments_json=True) for _ in range(4)]

        for each in runs:
            each.start()
        for each in runs:
            assert each.join(SECONDS)

        done = found(store, identifier)
        assert (done.state, counts(done)) == ("done", (3_000, 3_000, 0, 0))
        assert sorted(queued_numbers(store)) == list(range(3_000))

    def test_nothing_more_is_done_once_it_is_cancelled(self, store: Store) -> None:
        kinds(store, "dead", 2_000)
        identifier = ask(store, DeadSet, "delete", Selection())
        start(store, identifier)
        Stopping(store, identifier, slices=1).run()

        assert cancel(store, identifier)
        left = len(DeadSet(store=store))
        store.call("HSET", store.keys.bulk(identifier), "until", 1)
        done = run(store, identifier)

        assert done.state == "cancelled"
        assert len(DeadSet(store=store)) == left == 2_000 - done.counts.done
        assert not cancel(store, identifier)
        assert not start(store, identifier)

    def test_jobs_that_others_take_meanwhile_are_counted_as_gone(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kinds(store, "dead", 500)
        identifier = ask(store, DeadSet, "delete", Selection())
        start(store, identifier)
        plain = entry_moves.move_bulk

        def taken(*arguments: Any) -> Any:
            store.call("ZPOPMAX", "dead", 3)  # of those that were just found
            return plain(*arguments)

        monkeypatch.setattr(sources_module, "move_bulk", taken)
        done = run(store, identifier)

        total, deleted, gone, failed = counts(done)
        assert done.state == "done"
        assert failed == 0
        assert gone > 0
        assert total == deleted + gone == 500
        assert len(DeadSet(store=store)) == 0

    def test_a_lost_reply_is_looked_up_and_nothing_counts_twice(
        self, store: Store, setup: Setup, redis_server: RedisServer
    ) -> None:
        kinds(store, "dead", 1_000)
        identifier = ask(store, DeadSet, "retry", Selection())
        start(store, identifier)
        with Proxy(("127.0.0.1", redis_server.port)) as proxy:
            far = Store(proxy.url, timeout=1.0)
            runner = BulkRunner()
            proxy.lose_replies(b"push", times=2)
            runner.run(far, identifier)
            assert runner.wait(SECONDS)
            far.close()

        done = found(store, identifier)
        assert (done.state, counts(done)) == ("done", (1_000, 1_000, 0, 0))
        assert sorted(queued_numbers(store)) == list(range(1_000))

    def test_it_goes_on_after_an_outage(self, setup: Setup, durable_server: RedisServer) -> None:
        store = durable_server.store()
        kinds(store, "dead", 5_000)
        identifier = ask(store, DeadSet, "delete", Selection())
        start(store, identifier)
        runner = BulkRunner()
        runner.run(store, identifier)
        wait_until(lambda: found(store, identifier).counts.done > 0, "a slice")

        durable_server.kill()
        durable_server.start()
        assert runner.wait(SECONDS)

        done = found(store, identifier)
        assert (done.state, counts(done)) == ("done", (5_000, 5_000, 0, 0))

    def test_a_set_that_is_none_fails_it_with_the_reason_and_it_can_go_on(self, store: Store) -> None:
        kinds(store, "dead", 10)
        identifier = ask(store, DeadSet, "delete", Selection(name="Red"))
        store.call("RENAME", "dead", "aside")
        store.call("SET", "dead", "no set")

        failed = run(store, identifier)
        assert failed.state == "failed"
        assert "WRONGTYPE" in failed.error
        store.call("RENAME", "aside", "dead")
        assert resume(store, identifier)

        assert run(store, identifier).counts.count == 5

    def test_a_process_has_so_many_at_a_time(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(runner_module, "MAX_RUNS", 1)
        kinds(store, "dead", 2)
        first, second = (ask(store, DeadSet, "delete", Selection(name="Red")) for _ in range(2))
        gate, runner = threading.Event(), BulkRunner()
        monkeypatch.setattr(BulkRun, "run", lambda _: gate.wait(SECONDS))
        runner.run(store, first)

        with pytest.raises(UsageError):
            runner.run(store, second)
        gate.set()
        assert runner.wait(SECONDS)


class Stopping(BulkRun):
    """A run whose process is gone after so many slices with moves."""

    def __init__(self, store: Store, identifier: str, slices: int) -> None:
        super().__init__(store, identifier, SystemClock(), None, are_arguments_json=True)
        self._left = slices

    def _fit_batch(self, seconds: float) -> None:
        super()._fit_batch(seconds)
        self._left -= 1
        if not self._left:
            self.stopping.set()


class TestLook:
    def test_a_rare_filter_says_how_far_it_has_looked_and_goes_on(self, store: Store) -> None:
        kinds(store, "dead", 7_000)
        add_entries(store, "dead", (3.5, job(9, **{"class": "Rare"})))
        job_set, place, looks = DeadSet(store=store), None, []
        while True:
            seen = look(
                job_set, store, Selection(name="Rare"), after=place, most=25, budget=Budget(trips=2, seconds=SECONDS)
            )
            looks.append(seen)
            place = seen.last
            if not seen.has_more:
                break

        assert [each.looked for each in looks] == [2_000, 2_000, 2_000, 1_001]
        assert [each.entry.args[0] for seen in looks for each in seen.found] == [9]

    def test_a_page_behind_an_entry_is_the_same_while_others_come_and_go(self, store: Store) -> None:
        fill_set(store, "dead", range(100), score=5.0)
        job_set = DeadSet(store=store)
        everything = [each.raw for each in job_set]
        first = look(job_set, store, most=10)
        fill_set(store, "dead", range(200, 230), score=9.0)
        store.call("ZREM", "dead", *everything[5:10])

        second = look(job_set, store, after=first.last, most=10)

        assert [each.entry.raw for each in second.found] == everything[10:20]

    @pytest.mark.parametrize(
        ("selection", "count"),
        [
            (Selection(name="Mailer#hello"), 1),
            (Selection(name='Odd "name" é'), 1),
            (Selection(error="Timeout: after 5"), 1),
            (Selection(error="é/x"), 1),
            (Selection(tag="vip"), 2),
            (Selection(queue="low", tag="vip"), 1),
            (Selection(arguments="needle"), 1),
            (Selection(arguments="packed apart"), 1),
            (Selection(queue="none"), 0),
        ],
    )
    def test_redis_leaves_out_nothing_that_matches(self, store: Store, selection: Selection, count: int) -> None:
        plain_job = {"class": "Large", "args": ["packed apart" * 100], "jid": "c"}
        packed, _ = compressed(json.dumps(plain_job).encode(), json.dumps(plain_job["args"]).encode())
        mail = {"job_class": "ActionMailer::MailDeliveryJob", "arguments": ["Mailer", "hello", "deliver_now", 1]}
        jobs = [
            job(1, **{"class": 'Odd "name" é'}),
            job(2, error_class="Timeout", error_message="after 5 s"),
            job(3, error_class="X", error_message="é/x"),
            job(4, tags=["vip"], queue="low"),
            job(5, tags=["a", "vip"]),
            json.dumps({"class": "Find", "args": [{"a": "the needle"}], "jid": "n"}).encode(),
            json.dumps(
                {
                    "class": "ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper",
                    "wrapped": "ActionMailer::MailDeliveryJob",
                    "args": [mail],
                    "jid": "m",
                }
            ).encode(),
            packed,
            *(job(number) for number in range(10, 30)),
        ]
        add_entries(store, "dead", *[(float(at), raw) for at, raw in enumerate(jobs)])

        matching = list(walk(DeadSet(store=store), store, selection))
        plain = [each for each in DeadSet(store=store) if selection.matches(each, 0.0)]

        assert [each.raw for each in matching] == [each.raw for each in plain]
        assert len(matching) == count

    def test_times_are_ranges_of_scores_that_redis_finds(self, store: Store) -> None:
        fill_set(store, "dead", range(0))
        add_entries(store, "dead", *[(float(number), job(number)) for number in range(50)])

        got = list(walk(DeadSet(store=store), store, Selection(lowest=10.0, highest=12.0)))
        seen = look(DeadSet(store=store), store, Selection(lowest=10.0, highest=12.0), most=10, newest_first=False)

        assert [each.args[0] for each in got] == [12, 11, 10]
        assert (seen.looked, [each.entry.args[0] for each in seen.found]) == (3, [10, 11, 12])


@pytest.fixture
def counted(store: Store) -> str:
    fill_set(store, "dead", range(3))
    return ask(store, DeadSet, "retry", Selection())


def test_a_lease_is_by_the_clock_of_redis(store: Store, counted: str) -> None:
    start(store, counted)
    assert change(store, counted, ("running",), runner="a", lease=10.0)

    assert found(store, counted).is_held
    assert not change(store, counted, ("running",), runner="b", lease=10.0)
