"""The execution metrics as the query reads them: what Ruby 7 and 8 wrote, what we wrote, and both at once."""

from __future__ import annotations

import re
import struct
from datetime import UTC, datetime, timedelta

import pytest

from kiqcluster.api import ExecutionCount, ExecutionMetrics
from kiqcluster.errors import UsageError
from kiqcluster.store import Store
from tests.kit import ManualClock

NOW = datetime(2026, 11, 20, 11, 40, 30, tzinfo=UTC)
THEN = datetime(2026, 11, 20, 11, 39, tzinfo=UTC)
# Fields of Ruby's Sidekiq, written by 7.3.10 and by 8.1.7 after the same jobs.
RUBYS = {
    "Shop::Dies|f": 1,
    "Shop::Dies|p": 1,
    "Shop::Fails|f": 5,
    "Shop::Fails|p": 5,
    "Shop::Ok|ms": 0,
    "Shop::Ok|p": 5,
}
FIVE_QUICK = b"\0\5"


def metrics(store: Store) -> ExecutionMetrics:
    return ExecutionMetrics(store=store, clock=ManualClock(NOW.timestamp()))


def write(store: Store, key: str, fields: dict[str, int]) -> None:
    store.call("HSET", key, *(word for pair in fields.items() for word in pair))


def slots(**counts: int) -> bytes:
    """Return a bitfield: `s3=7` for 7 runs in the fourth bucket."""
    values = [counts.get(f"s{number}", 0) for number in range(26)]
    return struct.pack(">26H", *values)


class TestRubys:
    @pytest.mark.parametrize(
        ("minute", "histogram"),
        [("j|20261120|11:39", "Shop::Ok-20-11:39"), ("j|261120|11:39", "h|Shop::Ok-20-11:39")],
        ids=["7.3.10", "8.1.7"],
    )
    def test_minutes_of_each_version_are_read(self, store: Store, minute: str, histogram: str) -> None:
        write(store, minute, RUBYS)
        store.call("SET", histogram, FIVE_QUICK)

        jobs = metrics(store).top_jobs()
        ok = metrics(store).for_job("Shop::Ok")

        counts = {name: (job.processed, job.failed, job.ms) for name, job in jobs.items()}
        assert counts == {"Shop::Ok": (5, 0, 0), "Shop::Fails": (5, 5, 0), "Shop::Dies": (1, 1, 0)}
        assert list(ok.series) == [THEN]
        assert (ok.processed, ok.histogram) == (5, (5, *(0,) * 25))

    def test_ten_minutes_of_version_8_are_read(self, store: Store) -> None:
        write(store, "j|261120|11:3", RUBYS)

        (at,) = metrics(store).for_job("Shop::Fails", hours=1).series

        assert at == datetime(2026, 11, 20, 11, 30, tzinfo=UTC)
        assert metrics(store).top_jobs(hours=1)["Shop::Fails"].failed == 5

    def test_what_we_have_written_in_both_forms_counts_once(self, store: Store) -> None:
        """Of A, 3 runs are ours, 1 of Ruby 8's and 2 of Ruby 7's; B is Ruby's; of C, each Ruby ran as many."""
        write(store, "j|261120|11:39", {"A|p": 4, "A|ms": 40, "B|p": 1, "C|p": 2, "C|ms": 7})
        write(store, "j|20261120|11:39", {"A|p": 5, "A|f": 1, "A|ms": 50, "B|p": 2, "C|p": 2, "C|ms": 7})
        write(store, "kiq:executed:261120:11:39", {"A|p": 3, "A|ms": 30, "A|0": 3})
        store.call("SET", "h|A-20-11:39", slots(s0=4))
        store.call("SET", "A-20-11:39", slots(s0=3, s25=1))

        top, job = metrics(store).top_jobs(), metrics(store).for_job("A")

        assert {name: (each.processed, each.failed, each.ms) for name, each in top.items()} == {
            "A": (6, 1, 60),
            "B": (3, 0, 0),
            "C": (4, 0, 14),
        }
        assert (job.processed, job.failed, job.ms, job.histogram) == (6, 1, 60, (4, *(0,) * 24, 1))
        assert metrics(store).for_job("C").processed == 4

    def test_a_minute_that_is_all_ours_counts_once(self, store: Store) -> None:
        ours = {"A|p": 3, "A|ms": 30, "B|p": 1, "B|f": 1}
        for key in ("j|261120|11:39", "j|20261120|11:39"):
            write(store, key, ours)
        write(store, "kiq:executed:261120:11:39", {**ours, "A|0": 3})

        counts = {name: (job.processed, job.failed, job.ms) for name, job in metrics(store).top_jobs().items()}

        assert counts == {"A": (3, 0, 30), "B": (1, 1, 0)}

    def test_a_minute_in_which_all_three_ran_as_much_counts_all(self, store: Store) -> None:
        write(store, "j|261120|11:39", {"A|p": 2})
        write(store, "j|20261120|11:39", {"A|p": 2})
        write(store, "kiq:executed:261120:11:39", {"A|p": 1})

        assert metrics(store).top_jobs()["A"].processed == 3  # one of Ruby 8's, one of Ruby 7's, one of ours

    def test_places_of_a_histogram_that_are_full_stay_full(self, store: Store) -> None:
        for key in ("h|A-20-11:39", "A-20-11:39"):
            store.call("SET", key, slots(s0=65_535))
        write(store, "kiq:executed:261120:11:39", {"A|0": 70_000})

        assert metrics(store).for_job("A").histogram[0] == 65_535


class TestTime:
    def test_the_series_goes_from_the_oldest_minute_to_this_one(self, store: Store) -> None:
        for key in ("j|261120|11:40", "j|261120|11:38", "j|261120|10:41", "j|261120|10:40"):
            write(store, key, {"A|p": 1})

        series = metrics(store).for_job("A").series

        this = NOW.replace(second=0)
        assert list(series) == [this - timedelta(minutes=59), this - timedelta(minutes=2), this]
        assert list(metrics(store).top_jobs()["A"].series) == list(series)

    def test_it_goes_over_midnight(self, store: Store) -> None:
        clock = ManualClock(datetime(2027, 1, 1, 0, 1, tzinfo=UTC).timestamp())
        for key in ("j|261231|23:59", "j|270101|0:00"):
            write(store, key, {"A|p": 1})

        job = ExecutionMetrics(store=store, clock=clock).for_job("A", minutes=5)

        assert [f"{at:%y%m%d %H:%M}" for at in job.series] == ["261231 23:59", "270101 00:00"]

    def test_all_that_is_kept_can_be_asked_for(self, store: Store) -> None:
        write(store, "j|261120|3:41", {"A|p": 1})
        write(store, "j|261117|11:5", {"A|p": 1})

        assert metrics(store).for_job("A", minutes=480).processed == 1
        assert metrics(store).top_jobs(minutes=480)["A"].processed == 1
        assert metrics(store).for_job("A", hours=72).processed == 1

    @pytest.mark.parametrize("span", [{"minutes": 481}, {"minutes": 0}, {"hours": 73}, {"minutes": 5, "hours": 1}])
    def test_what_is_not_kept_is_refused(self, store: Store, span: dict[str, int]) -> None:
        with pytest.raises(UsageError):
            metrics(store).top_jobs(**span)


def test_all_classes_together_are_what_each_has(store: Store) -> None:
    write(store, "j|261120|11:40", {"a|p": 9, "a|f": 2, "b|p": 1, "b|ms": 5})
    write(store, "j|20261120|11:38", {"a|p": 4})

    totals = metrics(store).totals()

    this = NOW.replace(second=0)
    assert totals == {this - timedelta(minutes=2): ExecutionCount(4), this: ExecutionCount(10, 2, 5)}
    assert metrics(store).totals(hours=1) == {}


class TestTopJobs:
    def test_those_that_took_the_most_time_come_first(self, store: Store) -> None:
        write(store, "j|261120|11:40", {"a|p": 9, "b|p": 1, "b|ms": 5, "c|p": 3, "c|ms": 50, "d|p": 99})

        assert list(metrics(store).top_jobs()) == ["c", "b", "d", "a"]

    @pytest.mark.parametrize(("wanted", "found"), [("mail", ["MailJob", "email"]), (re.compile("^email$"), ["email"])])
    def test_classes_can_be_chosen(self, store: Store, wanted: str, found: list[str]) -> None:
        write(store, "j|261120|11:40", {"email|p": 1, "MailJob|p": 2, "Other|p": 1})

        assert list(metrics(store).top_jobs(class_filter=wanted)) == found

    def test_the_mean_is_of_runs_that_did_not_fail(self, store: Store) -> None:
        write(store, "j|261120|11:40", {"a|p": 5, "a|f": 1, "a|ms": 40, "b|p": 1, "b|f": 1})

        assert [job.mean_ms for job in metrics(store).top_jobs().values()] == [10.0, 0.0]


def test_nothing_was_run_where_nothing_is_written(store: Store) -> None:
    job = metrics(store).for_job("A")

    assert metrics(store).top_jobs() == {}
    assert (job.processed, job.failed, job.ms, job.mean_ms, job.series) == (0, 0, 0, 0.0, {})
    assert job.histogram == (0,) * 26


def test_keys_that_hold_something_else_count_as_empty(store: Store) -> None:
    write(store, "j|261120|11:40", {"a|p": 1})
    store.call("HSET", "j|261120|11:40", "no separator", "x", b"\xff|p", "1", "a|f", "many")
    store.call("SET", "j|261120|11:39", "text")
    store.call("RPUSH", "h|a-20-11:40", "x")

    store.call("HSET", "j|261120|11:40", "huge|p", "9" * 1_000, "huge|ms", 2**63)

    assert metrics(store).top_jobs()["a"].processed == 1
    assert (metrics(store).top_jobs()["huge"].processed, metrics(store).top_jobs()["huge"].mean_ms) == (0, 0.0)
    assert metrics(store).for_job("a").series[NOW.replace(second=0)].histogram == (0,) * 26
