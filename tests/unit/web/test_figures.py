"""Figures of pages: what is kept for all who watch, how they are summed, and what they look like."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kiqcluster.api import ExecutionCount
from kiqcluster.batches.records import read_status
from kiqcluster.web.context import MAX_KEPT, Shelf
from kiqcluster.web.formats import compact, milliseconds
from kiqcluster.web.views.batches import progress
from kiqcluster.web.views.classes import heat, spark_points, summed
from kiqcluster.web.views.cron import lateness

START = datetime(2026, 11, 25, 9, 0, tzinfo=UTC)


class TestShelf:
    def test_a_value_is_made_once_until_its_time_is_over(self) -> None:
        shelf, made = Shelf(), iter(range(10))

        seen = [shelf.get("a", now, 30.0, lambda: next(made)) for now in (0.0, 29.9, 30.0, 59.0)]

        assert seen == [0, 0, 1, 1]

    def test_it_never_grows(self) -> None:
        shelf = Shelf()
        for number in range(100):
            shelf.get(number, 0.0, 1_000.0, lambda number=number: number)  # type: ignore[misc]

        assert len(shelf._values) == MAX_KEPT
        assert shelf.get(99, 1.0, 1.0, lambda: -1) == 99
        assert shelf.get(0, 1.0, 1.0, lambda: -1) == -1

    def test_nothing_is_kept_after_an_error(self) -> None:
        shelf = Shelf()

        with pytest.raises(ZeroDivisionError):
            shelf.get("a", 0.0, 30.0, lambda: 1 // 0)

        assert shelf.get("a", 0.0, 30.0, lambda: 7) == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.42, "0.4 ms"),
        (12.4, "12 ms"),
        (999.4, "999 ms"),
        (1_250, "1.25 s"),
        (898_000, "14m 58s"),
        (1e300, "–"),
        (float("nan"), "–"),
        (-1, "–"),
    ],
)
def test_milliseconds_have_a_unit_that_fits(value: float | None, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(999, "999"), (1_234, "1.2k"), (34_567, "34k"), (5_600_000, "5.6M"), (10**30, "999G")]
)
def test_a_count_fits_into_a_small_place(value: int, text: str) -> None:
    assert compact(value) == text


def test_neighbouring_moments_are_summed() -> None:
    moments = [START + timedelta(minutes=number) for number in range(6)]
    one, other = ExecutionCount(3, 1, 20, (1, 1)), ExecutionCount(2, 0, 5, (2, 0))

    columns = summed({moments[2]: one, moments[3]: other, START - timedelta(hours=1): one}, moments, 3)

    assert columns == [ExecutionCount(), ExecutionCount(5, 1, 25, (3, 1)), ExecutionCount()]


def test_the_table_of_times_has_the_rows_between_the_shortest_and_the_longest() -> None:
    buckets = [0] * 26
    buckets[1], buckets[3] = 6, 1

    table = heat([ExecutionCount(7, 0, 1, tuple(buckets)), ExecutionCount()])

    assert table is not None
    assert [(row["label"], row["total"], row["cells"]) for row in table["rows"]] == [
        ("≤ 65 ms", 1, [(1, 1), (0, 0)]),
        ("≤ 45 ms", 0, [(0, 0), (0, 0)]),
        ("≤ 30 ms", 6, [(6, 6), (0, 0)]),
    ]
    assert heat([ExecutionCount()]) is None


def test_the_longest_runs_have_a_row_of_their_own() -> None:
    table = heat([ExecutionCount(1, 0, 1, (*(0,) * 25, 1))])

    assert table is not None
    assert [row["label"] for row in table["rows"]] == ["> 5m 35s"]


def test_a_line_stays_in_its_box() -> None:
    assert spark_points([0, 5, 10], 10) == "0.0,19 50.0,10 100.0,1"
    assert spark_points([-5, 10**30], 10) == "0.0,19 100.0,1"
    assert spark_points([0, 0], 0) == ""


def test_a_bar_never_leaves_its_place() -> None:
    fields = {"created_at": "1", "total": "4", "finish": "2", "failed": "1", "working": "9"}

    assert list(progress(read_status("a", fields))) == [("good", 0.0, 50.0), ("warn", 50.0, 25.0), ("a", 75.0, 25.0)]
    assert list(progress(read_status("a", {"created_at": "1"}))) == []


def test_a_job_by_hand_is_never_late() -> None:
    assert (lateness(5.0, 5.0), lateness(5.0, 7.5), lateness(7.0, 5.0)) == (None, 2.5, 0.0)
