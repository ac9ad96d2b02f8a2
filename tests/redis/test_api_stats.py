"""Stats, history and deploy marks."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone

import pytest

from kiqcluster import Client
from kiqcluster.api import History, Mark, Stats, mark, marks
from kiqcluster.errors import RedisRefused, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from tests.fake_supervisor import publish
from tests.kit import ManualClock

NOW = 1_795_168_740.5  # 2026-11-20 09:59:00 UTC
CLOCK = ManualClock(NOW)


class TestStats:
    def test_an_empty_redis_has_nothing(self, store: Store) -> None:
        stats = Stats(store=store)

        counts = (stats.processed, stats.failed, stats.enqueued, stats.processes_size, stats.workers_size)
        assert counts == (0, 0, 0, 0, 0)
        assert (stats.scheduled_size, stats.retry_size, stats.dead_size, stats.queues) == (0, 0, 0, {})
        assert stats.default_queue_latency == 0.0

    def test_every_figure_is_that_of_its_key(self, store: Store) -> None:
        store.call("MSET", "stat:processed", 12, "stat:failed", 7)
        for size, key in enumerate(("schedule", "retry", "dead"), 1):
            store.call("ZADD", key, *(word for number in range(size) for word in (number, f"{number}")))
        publish(store, "app-1:1:a", busy=3)
        publish(store, "app-1:2:b", busy=1)

        stats = Stats(store=store)

        assert (stats.processed, stats.failed) == (12, 7)
        assert (stats.scheduled_size, stats.retry_size, stats.dead_size) == (1, 2, 3)
        assert (stats.processes_size, stats.workers_size) == (2, 4)

    def test_queues_come_largest_first_and_jobs_in_the_wake_list_wait_too(self, store: Store) -> None:
        store.call("SADD", "queues", "a", "b", "c", "d")
        store.call("LPUSH", "queue:b", "1", "2")
        store.call("LPUSH", "queue:c", "1")
        store.call("LPUSH", "kiq:wake:c", "2", "3")

        stats = Stats(store=store)

        assert list(stats.queues.items()) == [("c", 3), ("b", 2), ("a", 0), ("d", 0)]
        assert stats.enqueued == 5

    @pytest.mark.parametrize("enqueued_at", ["1795168730.5", "1795168730500"], ids=["seconds", "milliseconds of 8"])
    def test_the_latency_is_that_of_the_job_that_is_fetched_next(self, store: Store, enqueued_at: str) -> None:
        store.call("RPUSH", "queue:default", '{"enqueued_at":1795168739.5}', f'{{"enqueued_at":{enqueued_at}}}')
        assert Stats(store=store, clock=CLOCK).default_queue_latency == pytest.approx(10.0)

        store.call("LPUSH", "kiq:wake:default", '{"enqueued_at":1795168700.5}')
        assert Stats(store=store, clock=CLOCK).default_queue_latency == pytest.approx(40.0)

    def test_a_process_that_is_gone_is_none(self, store: Store) -> None:
        publish(store, "app-1:1:a", busy=3)
        store.call("SADD", "processes", "app-1:9:gone")

        assert Stats(store=store).processes_size == 1

    def test_a_broken_key_costs_its_own_figure(self, store: Store) -> None:
        store.call("MSET", "stat:processed", "many", "retry", "x", "queue:a", "y", "stat:failed", 3)
        store.call("SADD", "queues", "a", b"\xff")
        store.call("RPUSH", "queue:default", "no JSON")

        stats = Stats(store=store)

        assert (stats.processed, stats.failed, stats.retry_size, stats.enqueued) == (0, 3, 0, 0)
        assert stats.default_queue_latency == 0.0

    def test_more_queues_than_fit_into_a_round_trip_are_all_there(self, store: Store) -> None:
        for number in range(700):
            store.call("SADD", "queues", f"q{number}")
            store.call("LPUSH", f"queue:q{number}", "x")

        stats = Stats(store=store)

        assert (len(stats.queues), stats.enqueued) == (700, 700)

    def test_without_a_store_it_looks_where_client_via_leads_and_else_at_the_default(
        self, store: Store, setup: Setup
    ) -> None:
        store.call("SET", "stat:processed", 5)
        other = Store(f"{store.address.partition('?')[0]}?db=1")
        other.call("SET", "stat:processed", 9)

        assert Stats().processed == 5
        with Client.via(other):
            assert Stats().processed == 9
            assert Stats(store=store).processed == 5


class TestReset:
    @pytest.mark.parametrize(
        ("names", "left"), [((), (0, 0)), (("failed",), (12, 0)), (("processed", "failed"), (0, 0))]
    )
    def test_the_named_counters_or_both_begin_again(
        self, store: Store, names: tuple[str, ...], left: tuple[int, int]
    ) -> None:
        store.call("MSET", "stat:processed", 12, "stat:failed", 7, "stat:processed:2026-11-20", 12)

        Stats.reset(*names, store=store)

        stats = Stats(store=store)
        assert (stats.processed, stats.failed) == left
        assert store.call("GET", "stat:processed:2026-11-20") == b"12"

    def test_an_unknown_counter_is_refused_and_none_is_touched(self, store: Store) -> None:
        store.call("SET", "stat:failed", 7)

        with pytest.raises(UsageError, match="retries"):
            Stats.reset("failed", "retries", store=store)

        assert Stats(store=store).failed == 7


class TestHistory:
    def test_days_are_newest_first_and_those_without_a_count_zero(self, store: Store) -> None:
        store.call("MSET", "stat:processed:2026-11-20", 5, "stat:processed:2026-11-18", 3, "stat:failed:2026-11-19", 1)

        history = History(3, store=store, clock=CLOCK)

        days = [date(2026, 11, 20), date(2026, 11, 19), date(2026, 11, 18)]
        assert list(history.processed.items()) == list(zip(days, (5, 0, 3), strict=True))
        assert list(history.failed.items()) == list(zip(days, (0, 1, 0), strict=True))

    def test_it_can_end_on_another_day(self, store: Store) -> None:
        store.call("SET", "stat:processed:2024-02-29", 4)

        history = History(2, date(2024, 3, 1), store=store)

        assert history.processed == {date(2024, 3, 1): 0, date(2024, 2, 29): 4}

    def test_it_ends_on_the_day_of_a_datetime_in_utc(self, store: Store) -> None:
        store.call("SET", "stat:processed:2026-11-20", 5)
        evening = datetime(2026, 11, 19, 22, tzinfo=timezone(timedelta(hours=-3)))

        history = History(2, evening, store=store)

        assert history.processed == {date(2026, 11, 20): 5, date(2026, 11, 19): 0}

    @pytest.mark.parametrize("days", [0, -1, 1_826])
    def test_it_is_no_longer_than_counters_are_kept(self, store: Store, days: int) -> None:
        with pytest.raises(UsageError):
            History(days, store=store)
        assert len(History(1_825, store=store).failed) == 1_825


class TestMarks:
    AT = datetime(2026, 11, 20, 9, 59, 0, 500_000, tzinfo=UTC)

    def stored(self, store: Store) -> dict[str, str]:
        flat = [word.decode() for word in store.call("HGETALL", "20261120-marks")]
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def test_of_the_deploys_of_a_minute_the_first_is_marked(self, store: Store) -> None:
        assert mark("v42", self.AT, store=store)
        assert mark("v43", self.AT + timedelta(seconds=59), store=store)
        assert not mark("v43", self.AT + timedelta(seconds=60), store=store)  # its label was used within a minute
        assert mark("v44", self.AT + timedelta(seconds=60), store=store)

        assert self.stored(store) == {"2026-11-20T09:59:00Z": "v42", "2026-11-20T10:00:00Z": "v44"}
        assert store.call("TTL", "20261120-marks") == pytest.approx(7_776_000, abs=5)

    def test_a_mark_is_in_utc_wherever_its_time_is_from(self, store: Store) -> None:
        mark("v1", self.AT.astimezone(timezone(timedelta(hours=5, minutes=30))), store=store)

        assert self.stored(store) == {"2026-11-20T09:59:00Z": "v1"}

    def test_marks_are_read_back_oldest_first(self, store: Store) -> None:
        for days, label in ((0, "today"), (89, "old"), (3, "üß")):
            mark(label, self.AT - timedelta(days=days), store=store)
        store.call("HSET", "20261120-marks", "nonsense", "x")

        minute = self.AT.replace(microsecond=0)
        found = marks(store=store, clock=CLOCK)
        assert found == [
            Mark(minute - timedelta(days=days), label) for days, label in ((89, "old"), (3, "üß"), (0, "today"))
        ]
        assert [each.label for each in marks(self.AT - timedelta(days=5), store=store, clock=CLOCK)] == ["üß", "today"]
        assert [each.label for each in marks(minute, store=store, clock=CLOCK)] == ["today"]
        assert marks(minute + timedelta(minutes=1), store=store, clock=CLOCK) == []

    def test_a_mark_that_redis_did_not_take_can_be_tried_again(self, store: Store) -> None:
        store.call("SET", "20261120-marks", "no hash")
        with pytest.raises(RedisRefused):
            mark("v1", self.AT, store=store)
        store.call("DEL", "20261120-marks")

        assert mark("v1", self.AT, store=store)

    def test_now_is_marked_where_no_time_is_given(self, store: Store) -> None:
        assert mark("v1", store=store)
        assert not mark("v1", store=store)

        (only,) = marks(store=store)
        assert only.label == "v1"
        assert abs(datetime.now(UTC) - only.at) < timedelta(minutes=2)

    def test_a_time_without_a_zone_is_refused(self, store: Store) -> None:
        for wrong in (lambda at: mark("v1", at, store=store), lambda at: marks(at, store=store)):
            with pytest.raises(UsageError, match="time zone"):
                wrong(self.AT.replace(tzinfo=None))
