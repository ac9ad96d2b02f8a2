"""Deduplication: which pushes a lock refuses, and when the lock is released, extended or handed on."""

from __future__ import annotations

import json
from hashlib import sha256
from time import monotonic
from typing import Any

import pytest

from kiqcluster import Client, Job, job
from kiqcluster.api import DeadSet, ParkedJobs, Queue, RetrySet, ScheduledSet
from kiqcluster.application.registry import Registry
from kiqcluster.errors import Interrupted, JobDefinitionError, RedisRefused
from kiqcluster.features.deduplication import DEFAULT_TTL_SECONDS, idempotency_key
from kiqcluster.job import DISCARD
from kiqcluster.process.clock import SystemClock
from kiqcluster.process.runtime import Setup
from kiqcluster.sidekiq.outcome import Dead, Deferred, Done, Dropped, Effect, Outcome, Parked, Requeue, Retry
from kiqcluster.store import Store
from kiqcluster.store.engine.units import Unit
from kiqcluster.store.limits.parking import send_parked
from kiqcluster.testing.clock import frozen_clock
from kiqcluster.worker.maintenance.limit_upkeep import LimitUpkeep
from kiqcluster.worker.run.job_run import JobRun
from tests.in_process_worker import Worker
from tests.redis.kiqctl import Kiqctl
from tests.redis.test_client import payloads

pytestmark = pytest.mark.usefixtures("setup")


@pytest.fixture
def worker(store: Store, setup: Setup, registry: Registry) -> Worker:
    return Worker(store, setup, registry)


def declare(worker: Worker, strategy: str, **options: Any) -> Any:
    class Report(Job, name="Report", deduplicate=strategy, **options):
        def perform(self, *args: Any) -> None:
            worker.perform(*args)

    return Report


def locks(store: Store) -> dict[str, str]:
    """Return lock → jid of its holder, without the digest."""
    found = store.call("KEYS", "kiq:lock:*")
    return {key.decode().rpartition(":")[0]: store.call("GET", key).decode() for key in found}


def holder(store: Store) -> str | None:
    """Return the jid that holds the only lock."""
    assert len(locks(store)) <= 1
    return locks(store).get("kiq:lock:Report")


def ttl(store: Store) -> int:
    (key,) = store.call("KEYS", "kiq:lock:*")
    return int(store.call("TTL", key))


def fail(*_: Any) -> None:
    raise ValueError("on purpose")


CLAIMING = ["until_executing", "until_executed", "until_and_while_executing"]


class TestPush:
    @pytest.mark.parametrize("strategy", CLAIMING)
    def test_an_equal_push_is_dropped_and_returns_the_jid_of_the_job_that_waits(
        self, worker: Worker, store: Store, strategy: str
    ) -> None:
        report = declare(worker, strategy)

        jid = report.perform_async(7, {"a": 1, "b": [2.5]})

        assert report.perform_async(7, {"b": [2.5], "a": 1}) == jid
        assert [each["jid"] for each in payloads(store)] == [jid]
        assert (holder(store), ttl(store)) == (jid, DEFAULT_TTL_SECONDS)
        assert store.call("HGETALL", "kiq:deduplicated") == [b"Report", b"1"]

    def test_other_arguments_and_other_classes_are_other_work(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")
        other = job(name="Other", deduplicate="until_executed")(lambda a: None)
        assert (
            len({report.perform_async(1), report.perform_async(2), report.perform_async("1"), other.perform_async(1)})
            == 4
        )

        assert len(store.call("KEYS", "kiq:lock:*")) == 4

    def test_another_queue_is_the_same_work(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")

        assert report.set(queue="low").perform_async(1) == report.perform_async(1)
        assert payloads(store) == []

    def test_the_payload_names_the_lock_under_gitlabs_key(self, worker: Worker, store: Store) -> None:
        declare(worker, "until_executed").perform_async(1)

        (key,) = store.call("KEYS", "kiq:lock:*")
        (payload,) = payloads(store)
        assert key.decode() == f"kiq:lock:{payload['idempotency_key']}"
        assert payload.keys() == {
            "retry",
            "queue",
            "args",
            "class",
            "jid",
            "created_at",
            "enqueued_at",
            "idempotency_key",
        }

    def test_the_key_is_a_sha256_of_class_and_arguments(self, worker: Worker, store: Store) -> None:
        declare(worker, "until_executed").perform_async(7, {"b": 1, "a": [2.5]})

        digest = sha256(b'Report:[7,{"a":[2.5],"b":1}]').hexdigest()
        assert payloads(store)[0]["idempotency_key"] == f"Report:{digest}"

    def test_a_lock_that_ends_at_any_moment_drops_no_push_in_vain(self, worker: Worker, store: Store) -> None:
        """A dropped push returns the jid of a job that is there: nothing ends between the check and the read."""
        report = declare(worker, "until_executed")
        (key,) = [f"kiq:lock:{idempotency_key(report.definition, {'class': 'Report', 'args': [1]})}"]
        jids = []
        for number in range(300):
            jids.append(report.perform_async(1))
            store.call("PEXPIRE", key, 1)  # it may end before, while and after the next push
            until = monotonic() + number % 30 / 10_000  # up to 2.9 ms
            while monotonic() < until:
                store.call("PING")

        assert {each["jid"] for each in payloads(store)} == set(jids)
        assert len(payloads(store)) == len(set(jids)) > 1

    def test_a_push_that_gives_a_default_equals_one_that_leaves_it_out(self, worker: Worker, store: Store) -> None:
        @job(name="Defaults", deduplicate="until_executed")
        def plain(user: int, days: int = 30) -> None: ...

        @job(name="Keyed", deduplicate="until_executed", deduplicate_key=lambda user, days: f"{user} {days}")
        def keyed(user: int, days: int = 30) -> None: ...

        for each in (plain, keyed):
            jids = {each.perform_async(1), each.perform_async(1, 30), each.perform_async(1, days=30)}
            assert jids == set(each.perform_bulk([[1, 30], [1]]))
            assert each.perform_async(1, 31) not in jids
        assert len(payloads(store)) == 4

    def test_a_key_of_its_own_says_which_pushes_are_equal(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_key=lambda user, *_: f"user {user}")

        assert report.perform_async(1, "now") == report.perform_async(1, "later")
        assert report.perform_async(2, "now") != report.perform_async(1, "now")

    def test_a_lock_key_of_another_type_is_an_error_and_no_job_that_runs(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")
        report.perform_async(1)
        (key,) = store.call("KEYS", "kiq:lock:*")
        store.pipeline([("DEL", key, "queue:default"), ("HSET", key, "a", "b")])

        with pytest.raises(RedisRefused, match="WRONGTYPE"):
            report.perform_async(1)

        assert payloads(store) == []
        assert store.call("HGETALL", key) == [b"a", b"b"]

    def test_a_key_that_is_none_is_refused_before_anything_is_written(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_key=lambda user: user)

        with pytest.raises(TypeError, match=r"Report: deduplicate_key returned float 2\.5; it returns text"):
            report.perform_async(2.5)

        assert (payloads(store), locks(store)) == ([], {})

    def test_a_key_may_be_a_number(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_key=lambda user: user)

        assert report.perform_async(7) == report.perform_async(7)
        assert len(payloads(store)) == 1

    @pytest.mark.parametrize("strategy", ["until_executing", "until_executed", "until_and_while_executing"])
    def test_jobs_without_a_key_have_no_equals(self, worker: Worker, store: Store, strategy: str) -> None:
        report = declare(worker, strategy, deduplicate_key=lambda user: None)

        jids = {report.perform_async(7) for _ in range(3)}

        assert len(jids) == len(payloads(store)) == 3
        assert locks(store) == {}

    def test_the_time_to_live_is_an_option(self, worker: Worker, store: Store) -> None:
        declare(worker, "until_executed", deduplicate_ttl=60).perform_async(1)

        assert ttl(store) == 60

    def test_of_a_bulk_push_each_job_stands_for_itself(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")

        first, again, second = report.perform_bulk([[1], [1], [2]])

        assert first == again != second
        assert [each["jid"] for each in payloads(store)] == [first, second]

    def test_an_activejob_is_known_by_its_arguments_not_by_its_envelope(self, worker: Worker, store: Store) -> None:
        @job(name="Rails", active_job=True, deduplicate="until_executed")
        def rails(number: int, *, word: str = "") -> None: ...

        @job(name="Keyed", active_job=True, deduplicate="until_executed", deduplicate_key=lambda number, word: word)
        def keyed(number: int, *, word: str = "") -> None: ...

        assert rails.perform_async(1, word="x") == rails.perform_async(1, word="x")
        assert rails.perform_async(1, word="y") != rails.perform_async(1, word="x")
        assert keyed.perform_async(1, word="x") == keyed.perform_async(2, word="x")

    def test_a_push_by_name_of_a_job_that_is_registered_here_too(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")

        assert Client().push({"class": "Report", "args": [1]}) == report.perform_async(1)

    def test_the_lock_lies_with_the_job_in_the_redis_of_the_client(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")
        shard = Store(store.address, prefix="{shard}:")

        with Client.via(shard):
            jid = report.perform_async(1)

        (key,) = store.call("KEYS", "{shard}:kiq:lock:*")
        assert store.call("GET", key) == jid.encode()

    def test_a_push_that_goes_on_after_a_refusal_by_middleware_claims_nothing(
        self, worker: Worker, store: Store, setup: Setup
    ) -> None:
        report = declare(worker, "until_executed")
        setup.client_middleware.add(lambda push, proceed: None)

        assert report.perform_async(1) is None
        assert locks(store) == {}

    def test_none_ends_an_inherited_strategy(self, worker: Worker, store: Store) -> None:
        class Free(declare(worker, "until_executed", deduplicate_ttl=60), name="Free", deduplicate="none"):  # type: ignore[misc]
            pass

        assert Free.perform_async(1) != Free.perform_async(1)
        assert locks(store) == {}


class TestScheduled:
    def test_scheduled_jobs_are_not_deduplicated_by_default(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")

        assert len({report.perform_in(60, 1), report.perform_in(60, 1), report.perform_async(1)}) == 3
        assert holder(store) == payloads(store)[0]["jid"]

    def test_with_their_option_they_are_for_their_delay_and_the_ttl(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_scheduled=True, deduplicate_ttl=100)

        jid = report.perform_in(3_600, 1)

        assert report.perform_in(60, 1) == report.perform_async(1) == jid
        assert (holder(store), store.call("ZCARD", "schedule")) == (jid, 1)
        assert 3_698 <= ttl(store) <= 3_701

    def test_the_lock_is_still_that_jobs_when_the_poller_has_moved_it(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_scheduled=True)
        jid = report.perform_in(60, 1)

        assert ScheduledSet().add_all_to_queue() == 1
        assert report.perform_async(1) == jid
        worker.run()

        assert holder(store) is None

    def test_middleware_may_give_the_time(self, worker: Worker, store: Store, setup: Setup) -> None:
        report = declare(worker, "until_executed", deduplicate_scheduled=True, deduplicate_ttl=100)

        @setup.client_middleware.add
        def later(push: Any, proceed: Any) -> Any:
            push.at = SystemClock.now() + 1_000
            return proceed()

        report.perform_async(1)

        assert 1_098 <= ttl(store) <= 1_101


class TestUntilExecuting:
    def test_a_push_while_the_job_runs_is_written(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executing")
        first = report.perform_async(1)
        worker.during = lambda *_: report.perform_async(1)

        worker.run()

        assert holder(store) == payloads(store)[0]["jid"] != first

    def test_only_the_begin_of_the_holder_releases_it(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executing")
        report.perform_async(1)
        (key,) = store.call("KEYS", "kiq:lock:*")
        store.call("SET", key, "somebody else")

        worker.run()

        assert store.call("GET", key) == b"somebody else"

    def test_a_retry_holds_no_lock(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executing")
        first = report.perform_async(1)
        worker.during = fail

        assert isinstance(worker.run(), Retry)

        assert holder(store) is None
        second = report.perform_async(1)
        assert second != first
        RetrySet().retry_all()
        store.call("LMOVE", "queue:default", "queue:default", "RIGHT", "LEFT")  # the retry is fetched next
        worker.run()
        assert holder(store) == second, "the retry of the first releases nothing of the second's"

    def test_a_job_that_does_not_begin_keeps_it(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executing", deduplicate_ttl=100)
        first = report.perform_async(1)
        unit = worker.take()
        assert worker.settle(unit, Requeue()) == 1

        assert report.perform_async(1) == first

    def test_a_job_that_is_buried_before_it_can_begin_releases_it(self, worker: Worker, store: Store) -> None:
        class Report(Job, name="Report", deduplicate="until_executing", retry=0):
            def perform(self) -> None: ...

        Report.perform_async()
        (payload,) = payloads(store)
        store.call("LSET", "queue:default", 0, json.dumps({**payload, "args": [1, 2, 3]}))

        assert isinstance(worker.run(), Dead)
        assert holder(store) is None


class TestUntilExecuted:
    def test_a_push_while_the_job_runs_is_dropped_and_one_after_it_is_not(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")
        first = report.perform_async(1)
        dropped: list[str] = []
        worker.during = lambda *_: dropped.append(report.perform_async(1))

        worker.run()

        assert dropped == [first]
        assert holder(store) is None
        assert report.perform_async(1) != first

    def test_no_run_asks_redis_for_it(self, worker: Worker, store: Store) -> None:
        declare(worker, "until_executed").perform_async(1)
        unit = worker.take()

        worker.execute(unit)

        assert not unit.holds, "no begin script was sent"

    @pytest.mark.parametrize("hook", [None, DISCARD])
    def test_a_job_that_fails_for_good_releases_it(self, worker: Worker, store: Store, hook: object) -> None:
        report = declare(worker, "until_executed", retry=0, retries_exhausted=lambda *_: hook)
        report.perform_async(1)
        worker.during = fail

        worker.run()

        assert holder(store) is None

    def test_a_retry_keeps_it_for_as_long_as_it_waits_and_longer(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_ttl=100, retry_in=lambda *_: 5_000)
        first = report.perform_async(1)
        worker.during = fail

        assert isinstance(worker.run(), Retry)

        assert report.perform_async(1) == first
        assert ttl(store) > 5_090
        RetrySet().retry_all()
        worker.during = lambda *_: None
        assert isinstance(worker.run(), Done)
        assert holder(store) is None

    def test_a_job_that_gives_up_its_turn_keeps_it(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_ttl=100)
        first = report.perform_async(1)

        def give_up(*_: Any) -> None:
            raise Interrupted

        worker.during = give_up
        store.call("EXPIRE", store.call("KEYS", "kiq:lock:*")[0], 10)

        assert isinstance(worker.run(), Deferred)
        assert (holder(store), ttl(store) > 90) == (first, True)

    def test_a_forced_stop_keeps_it(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed")
        first = report.perform_async(1)
        unit = worker.take()

        assert worker.settle(unit, worker.execution.interrupt(JobRun(unit, SystemClock.now()))) == 1

        assert report.perform_async(1) == first == payloads(store)[0]["jid"]

    def test_the_recovery_of_a_dead_process_keeps_it_for_the_job_is_back(
        self, worker: Worker, store: Store, setup: Setup, registry: Registry
    ) -> None:
        report = declare(worker, "until_executed")
        first = report.perform_async(1)
        worker.take()

        worker.recover(worker.name)

        assert report.perform_async(1) == first == payloads(store)[0]["jid"]
        Worker(store, setup, registry, "host:2:bbbbbbbbbbbb").run()
        assert holder(store) is None

    def test_a_late_settle_of_a_unit_that_others_have_recovered_releases_nothing(
        self, worker: Worker, store: Store, setup: Setup, registry: Registry
    ) -> None:
        report = declare(worker, "until_executed")
        first = report.perform_async(1)
        unit = worker.take()
        outcome = worker.execute(unit)
        worker.recover(worker.name)

        assert worker.settle(unit, outcome) == 0

        assert holder(store) == first

    def test_the_end_of_a_job_that_has_lost_its_lock_releases_nothing_of_the_next_holder(
        self, worker: Worker, store: Store
    ) -> None:
        report = declare(worker, "until_executed")
        report.perform_async(1)
        unit = worker.take()
        store.call("DEL", *store.call("KEYS", "kiq:lock:*"))
        second = report.perform_async(1)

        worker.settle(unit, worker.execute(unit))

        assert holder(store) == second

    def test_a_class_that_this_worker_does_not_know_keeps_it_until_it_is_buried(
        self, worker: Worker, store: Store, registry: Registry
    ) -> None:
        report = declare(worker, "until_executed")
        first = report.perform_async(1)
        registry._definitions.clear()

        for _ in range(10):
            assert isinstance(worker.run(), Deferred)
            assert holder(store) == first
            ScheduledSet().add_all_to_queue()
        store.call("LSET", "queue:default", 0, json.dumps({**payloads(store)[0], "retry": False}))
        assert isinstance(worker.run(), Dead)
        assert holder(store) is None

    def test_a_job_that_has_waited_for_long_claims_it_again_for_its_run(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_ttl=100)
        with frozen_clock(SystemClock.now() - 200):
            first = report.perform_async(1)
        store.call("DEL", *store.call("KEYS", "kiq:lock:*"))  # as at the end of its time
        dropped: list[str] = []
        worker.during = lambda *_: dropped.append(report.perform_async(1))

        worker.run()

        assert dropped == [first]
        assert holder(store) is None

    def test_one_that_has_waited_for_long_takes_no_lock_from_another(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", deduplicate_ttl=100)
        with frozen_clock(SystemClock.now() - 200):
            report.perform_async(1)
        (key,) = store.call("KEYS", "kiq:lock:*")
        store.call("SET", key, "another")

        worker.run()

        assert (store.call("GET", key), store.call("TTL", key)) == (b"another", -1)

    def test_a_key_of_a_wrong_type_keeps_no_unit(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_executed", reschedule_once=True)
        report.perform_async(1)
        (key,) = store.call("KEYS", "kiq:lock:*")
        store.call("DEL", key)
        store.call("LPUSH", key, "no string")

        assert isinstance(worker.run(), Done)
        assert store.call("HLEN", store.keys.inflight(worker.name)) == 0


class TestRescheduleOnce:
    @pytest.fixture
    def report(self, worker: Worker) -> Any:
        return declare(worker, "until_executed", reschedule_once=True)

    @pytest.mark.parametrize("end", ["done", "dead"])
    def test_pushes_that_are_dropped_while_it_runs_make_it_run_once_more(
        self, worker: Worker, store: Store, report: Any, end: str
    ) -> None:
        first = report.set(retry=0).perform_async(1, 2.50)
        dropped: list[str] = []

        def push_thrice(*_: Any) -> None:
            dropped.extend(report.perform_async(1, 2.50) for _ in range(3))
            if end == "dead":
                fail()

        worker.during = push_thrice

        worker.run()

        assert dropped == [first] * 3
        (payload,) = payloads(store)
        assert payload["rescheduled_once"] is True
        assert payload["jid"] != first
        assert payload["args"] == [1, 2.5]
        assert not payload.keys() & {"retry_count", "error_class", "failed_at"}
        assert holder(store) == payload["jid"] == report.perform_async(1, 2.50)
        worker.during = lambda *_: None
        worker.run()
        assert (payloads(store), holder(store), worker.ran) == ([], None, [(1, 2.5)] * 2)
        assert store.call("KEYS", "kiq:reschedule:*") == []

    def test_a_push_that_was_dropped_before_it_began_does_not(self, worker: Worker, store: Store, report: Any) -> None:
        report.perform_async(1)
        report.perform_async(1)

        worker.run()

        assert (payloads(store), holder(store)) == ([], None)

    def test_nor_one_before_its_retry_which_sees_what_the_push_was_about(
        self, worker: Worker, store: Store, report: Any
    ) -> None:
        report.perform_async(1)

        def push_and_fail(*_: Any) -> None:
            report.perform_async(1)
            fail()

        worker.during = push_and_fail
        assert isinstance(worker.run(), Retry)
        assert payloads(store) == []
        RetrySet().retry_all()
        worker.during = lambda *_: None

        worker.run()

        assert (payloads(store), holder(store), len(worker.ran)) == ([], None, 2)

    def test_a_push_that_is_dropped_while_that_run_runs_makes_one_more(
        self, worker: Worker, store: Store, report: Any
    ) -> None:
        report.perform_async(1)
        worker.during = lambda *_: report.perform_async(1)

        worker.run()
        worker.run()

        (payload,) = payloads(store)
        assert payload["rescheduled_once"] is True

    def test_a_settle_that_is_sent_again_does_not_do_it_again(self, worker: Worker, store: Store, report: Any) -> None:
        report.perform_async(1)
        worker.during = lambda *_: report.perform_async(1)
        unit = worker.take()
        outcome = worker.execute(unit)

        assert [worker.settle(unit, outcome), worker.settle(unit, outcome)] == [1, 0]
        assert len(payloads(store)) == 1

    def test_not_if_another_job_holds_the_lock_by_now_for_it_was_pushed_later(
        self, worker: Worker, store: Store, report: Any
    ) -> None:
        report.perform_async(1)
        others: list[str] = []

        def lose_the_lock(*_: Any) -> None:
            report.perform_async(1)
            store.call("DEL", *store.call("KEYS", "kiq:lock:*"))
            others.append(report.perform_async(1))

        worker.during = lose_the_lock

        worker.run()

        assert [each["jid"] for each in payloads(store)] == others == [holder(store)]

    def test_a_run_that_others_have_recovered_begins_anew(
        self, worker: Worker, store: Store, setup: Setup, registry: Registry, report: Any
    ) -> None:
        first = report.perform_async(1)
        worker.during = lambda *_: report.perform_async(1)
        unit = worker.take()
        outcome = worker.execute(unit)
        worker.recover(worker.name)
        worker.during = lambda *_: None

        assert worker.settle(unit, outcome) == 0
        Worker(store, setup, registry, "host:2:bbbbbbbbbbbb").run()

        assert (payloads(store), holder(store), first) == ([], None, first)

    def test_a_job_that_expires_before_it_begins_hands_on_to_a_push_that_was_dropped_since(
        self, worker: Worker, store: Store
    ) -> None:
        report = declare(worker, "until_executed", reschedule_once=True, expires_in=60)
        with frozen_clock(SystemClock.now() - 61):
            first = report.perform_async(1)
        report.perform_async(1)

        assert isinstance(worker.run(), Dropped)

        (payload,) = payloads(store)
        assert holder(store) == payload["jid"] != first
        assert isinstance(worker.run(), Done)
        assert holder(store) is None

    def test_its_queue_is_that_of_the_run(self, worker: Worker, store: Store, report: Any) -> None:
        report.set(queue="low").perform_async(1)
        worker.during = lambda *_: report.perform_async(1)

        worker.run("low")

        assert len(payloads(store, "low")) == 1
        assert sorted(store.call("SMEMBERS", "queues")) == [b"low"]


class TestWhileExecuting:
    @pytest.fixture
    def other(self, worker: Worker, store: Store, setup: Setup, registry: Registry) -> Worker:
        """Another process."""
        return Worker(store, setup, registry, "host:2:bbbbbbbbbbbb")

    def test_equal_jobs_all_run_one_after_the_other(self, worker: Worker, other: Worker, store: Store) -> None:
        report = declare(worker, "while_executing")
        first, second = report.perform_async(1), report.perform_async(1)
        assert first != second
        seen: list[Outcome] = []
        worker.during = lambda *_: seen.append(other.run()) if not seen else None

        worker.run()

        assert isinstance(seen[0], Parked)
        assert worker.ran == [(1,)]
        assert [each["jid"] for each in payloads(store)] == [second]
        other.run()
        assert worker.ran == [(1,), (1,)]
        assert store.call("KEYS", "kiq:slots:*") == []

    def test_other_arguments_run_beside_it(self, worker: Worker, other: Worker, store: Store) -> None:
        report = declare(worker, "while_executing")
        report.perform_bulk([[1], [2]])
        seen: list[Outcome] = []
        worker.during = lambda number: seen.append(other.run()) if number == 1 else None

        worker.run()

        assert isinstance(seen[0], Done)

    def test_a_job_that_ruby_has_pushed_counts_by_its_arguments(
        self, worker: Worker, other: Worker, store: Store
    ) -> None:
        report = declare(worker, "while_executing")
        report.perform_async(1)
        store.call("LPUSH", "queue:default", '{"class":"Report","args":[1],"jid":"ruby","retry":true}')
        seen: list[Outcome] = []
        worker.during = lambda *_: seen.append(other.run()) if not seen else None

        worker.run()

        assert isinstance(seen[0], Parked)

    def test_a_dead_holder_leaves_the_place_in_the_script_that_recovers_it(
        self, worker: Worker, other: Worker, store: Store
    ) -> None:
        report = declare(worker, "while_executing")
        report.perform_bulk([[1], [1]])
        unit = worker.take()
        worker.engine.begin_run(unit, _exclusive(store, unit))
        assert isinstance(other.run(), Parked)

        other.recover(worker.name)

        assert store.call("EXISTS", _exclusive(store, unit)[0].key) == 0
        assert len(payloads(store)) == 2

    def test_the_sweep_finds_a_parked_job_that_nobody_sends_on(
        self, worker: Worker, other: Worker, store: Store, registry: Registry
    ) -> None:
        report = declare(worker, "while_executing")
        report.perform_bulk([[1], [1], [1]])
        unit = worker.take()
        row = _exclusive(store, unit)[0]
        worker.engine.begin_run(unit, [row])
        for _ in range(2):
            assert isinstance(other.run(), Parked)
        worker.settle(unit, Done())
        Queue("default").clear()  # the one that was sent back
        store.call("DEL", store.keys.grants(row.key))  # as after a while

        assert LimitUpkeep(worker.runtime, registry, 1).is_needed
        assert send_parked(store, row.key) == (1, 0, 0)
        assert isinstance(worker.run(), Done)

    def test_a_parked_job_that_has_expired_sends_the_next_one_on(
        self, worker: Worker, other: Worker, store: Store
    ) -> None:
        report = declare(worker, "while_executing", expires_in=60)
        with frozen_clock(SystemClock.now() - 50):
            report.perform_bulk([[1], [1], [1]])
        report.set(expires_in=3600).perform_async(1)
        seen: list[Outcome] = []
        worker.during = lambda *_: seen.extend(other.run() for _ in range(3)) if not seen else None
        worker.run()
        assert [type(each) for each in seen] == [Parked] * 3

        with frozen_clock(SystemClock.now() + 20):
            assert [type(other.run()) for _ in range(3)] == [Dropped, Dropped, Done]

        assert store.call("KEYS", "kiq:slots:*") == []

    def test_together_with_until_executing_one_runs_and_one_waits(
        self, worker: Worker, other: Worker, store: Store
    ) -> None:
        report = declare(worker, "until_and_while_executing")
        first = report.perform_async(1)
        pushed: list[str] = []
        seen: list[Outcome] = []

        def push_twice(*_: Any) -> None:
            pushed.extend((report.perform_async(1), report.perform_async(1)))
            seen.append(other.run())

        worker.during = push_twice

        worker.run()

        assert pushed[0] == pushed[1] != first
        assert isinstance(seen[0], Parked)
        assert holder(store) == pushed[0], "a job that is parked holds its lock still"

    def test_a_parked_job_that_is_sent_on_is_not_dropped_by_its_own_lock(
        self, worker: Worker, other: Worker, store: Store
    ) -> None:
        report = declare(worker, "until_executed", concurrency_limit=1)
        first, second = report.perform_async(1), report.perform_async(2)
        seen: list[Outcome] = []
        worker.during = lambda *_: seen.append(other.run()) if not seen else None

        worker.run()
        assert isinstance(seen[0], Parked)
        assert set(locks_of(store).values()) == {second}, "that of the first has ended with it"
        assert report.perform_async(2) == second, "an equal push is dropped meanwhile"

        assert isinstance(worker.run(), Done)
        assert worker.ran == [(1,), (2,)]
        assert (locks_of(store), first != second) == ({}, True)


def locks_of(store: Store) -> dict[str, str]:
    """Return lock → jid of its holder."""
    return {key.decode(): store.call("GET", key).decode() for key in store.call("KEYS", "kiq:lock:*")}


def _exclusive(store: Store, unit: Unit) -> list[Effect]:
    name, _, digest = json.loads(unit.payload)["idempotency_key"].rpartition(":")
    limit = f"{name}:while_executing"
    return [Effect("enter", store.keys.slots(limit, digest), (1, limit, "park"))]


class TestByHand:
    """What is deleted or buried by hand never runs, so it releases its lock in the same step."""

    @pytest.fixture
    def report(self, worker: Worker) -> Any:
        return declare(worker, "until_executed", deduplicate_scheduled=True)

    def test_a_job_that_is_deleted_from_its_queue(self, store: Store, report: Any) -> None:
        report.perform_bulk([[1], [2]])
        kept, deleted = Queue("default")

        assert Queue("default").delete(deleted)

        assert holder(store) == kept.jid

    @pytest.mark.parametrize("verb", ["delete", "kill"])
    def test_an_entry_that_is_deleted_or_killed(self, store: Store, report: Any, verb: str) -> None:
        report.perform_in(60, 1)
        kept = report.perform_in(120, 2)

        assert getattr(next(reversed(ScheduledSet())), verb)()

        assert holder(store) == kept
        if verb == "kill":
            assert DeadSet().retry_all() == 1
            assert holder(store) == kept, "a job from the dead set holds no lock"

    def test_an_entry_that_client_middleware_stops(self, store: Store, report: Any, setup: Setup) -> None:
        report.perform_in(60, 1)
        setup.client_middleware.add(lambda push, proceed: None)

        ScheduledSet().add_all_to_queue()

        assert holder(store) is None

    def test_a_deleted_duplicate_of_another_time_releases_nothing(self, store: Store, report: Any) -> None:
        report.perform_in(60, 1)
        (key,) = store.call("KEYS", "kiq:lock:*")
        store.call("SET", key, "another")

        assert ScheduledSet().delete(ScheduledSet()) == 1

        assert holder(store) == "another"

    def test_a_parked_job_that_is_deleted(self, worker: Worker, store: Store) -> None:
        report = declare(worker, "until_and_while_executing")
        report.perform_async(1)
        parked: list[Outcome] = []

        def push_another(*_: Any) -> None:
            report.perform_async(1)
            parked.append(worker.run())

        worker.during = push_another
        worker.run()
        line = store.keys.slots("Report:while_executing", payloads(store)[0]["idempotency_key"].rpartition(":")[2])
        (raw,) = store.call("LRANGE", "queue:default", 0, -1)
        store.call("DEL", "queue:default")
        store.call("ZADD", store.keys.parked(line), 1, b"queue:default\0" + raw)  # as if it were parked still
        store.call("SADD", store.keys.parked_sets, line)
        assert holder(store) is not None

        jobs = ParkedJobs("Report:while_executing")

        assert jobs.delete_all(list(jobs)) == 1
        assert holder(store) is None

    @pytest.mark.parametrize("words", [("--all",), ("--jid", "JID"), ("--args-contain", "1")])
    def test_a_parked_job_that_kiqctl_deletes(
        self, worker: Worker, store: Store, kiqctl: Kiqctl, words: tuple[str, ...]
    ) -> None:
        declare(worker, "until_and_while_executing").perform_async(1)
        (payload,), (raw,) = payloads(store), store.call("LRANGE", "queue:default", 0, -1)
        store.call("DEL", "queue:default")
        line = store.keys.slots("Report:while_executing", payload["idempotency_key"].rpartition(":")[2])
        store.call("ZADD", store.keys.parked(line), 1, b"queue:default\0" + raw)
        store.call("SADD", store.keys.parked_sets, line)
        filters = [payload["jid"] if word == "JID" else word for word in words]

        result = kiqctl.ask("limits", "jobs", "Report:while_executing", *filters, "--delete", "--yes")

        assert result["done"] == 1
        assert holder(store) is None

    @pytest.mark.parametrize(
        "changes",
        [{"args": ["x"], "compressed": True}, {"args": {"not": "a list"}}, {"class": ""}],
        ids=["compressed", "args", "class"],
    )
    def test_a_job_that_cannot_be_read(self, worker: Worker, store: Store, report: Any, changes: Any) -> None:
        report.perform_async(1)
        (payload,) = payloads(store)
        store.call("DEL", "queue:default")
        store.call("LPUSH", "queue:default", json.dumps({**payload, **changes}))

        assert isinstance(worker.run(), Dead)

        assert holder(store) is None
        assert len(DeadSet()) == 1

    def test_one_that_cannot_be_read_and_lost_its_lock_leaves_it_to_the_next(
        self, worker: Worker, store: Store, report: Any
    ) -> None:
        report.perform_async(1)
        (payload,) = payloads(store)
        store.call("DEL", "queue:default")
        store.call("LPUSH", "queue:default", json.dumps({**payload, "args": 7}))
        (key,) = store.call("KEYS", "kiq:lock:*")
        store.call("SET", key, "another")

        assert isinstance(worker.run(), Dead)

        assert holder(store) == "another"

    def test_a_job_that_is_moved_keeps_it(self, worker: Worker, store: Store, report: Any) -> None:
        jid = report.perform_async(1)

        Queue("default").move(Queue("default"), "low")

        assert (holder(store), payloads(store, "low")[0]["jid"]) == (jid, jid)
        worker.run("low")
        assert holder(store) is None

    def test_many_deleted_at_once_are_counted_right(self, store: Store, report: Any) -> None:
        for number in range(3):
            report.perform_in(60, number)
        Client().push({"class": "Other", "args": [], "at": SystemClock.now() + 60})
        report.perform_bulk([[10], [11]])
        Client().push({"class": "Other", "args": []})

        assert ScheduledSet().delete(list(ScheduledSet())) == 4
        assert Queue("default").delete_all(list(Queue("default"))) == 3

        assert locks(store) == {}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deduplicate": "until_eaten"}, "it takes none, until_executing"),
        ({"deduplicate_ttl": 5}, "deduplicate_ttl has no effect with deduplicate = None"),
        ({"deduplicate": "while_executing", "deduplicate_scheduled": True}, "it needs until_executing or"),
        ({"deduplicate": "until_executing", "reschedule_once": True}, "it needs until_executed"),
        ({"deduplicate": "until_executed", "deduplicate_ttl": 0}, "whole seconds"),
        ({"deduplicate": "until_executed", "deduplicate_ttl": 1.5}, "whole seconds"),
        ({"deduplicate": "until_executed", "deduplicate_key": "user"}, "a function"),
    ],
)
def test_options_that_cannot_work_are_refused_at_import(registry: Registry, options: Any, words: str) -> None:
    with pytest.raises(JobDefinitionError, match=words):
        job(name="X", **options)(lambda: None)


def test_a_class_without_it_costs_nothing(worker: Worker, store: Store) -> None:
    job(name="Plain")(lambda: None).perform_async()
    assert payloads(store)[0].keys() == {"retry", "queue", "args", "class", "jid", "created_at", "enqueued_at"}
    unit = worker.take()

    outcome = worker.execute(unit)

    assert (outcome.effects, unit.holds) == ((), False)
