"""What a job's executions add up to."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kiqcluster.api import ExecutionCount, JobExecutions

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def job(*counts: ExecutionCount) -> JobExecutions:
    return JobExecutions("Mail", {NOON + timedelta(minutes=at): count for at, count in enumerate(counts)})


def test_the_totals_are_those_of_all_minutes() -> None:
    whole = job(ExecutionCount(5, 1, 40, (4, *(0,) * 25)), ExecutionCount(2, 0, 60, (1, *(0,) * 24, 1)))

    assert (whole.processed, whole.failed, whole.ms) == (7, 1, 100)
    assert whole.histogram == (5, *(0,) * 24, 1)


def test_the_mean_is_of_runs_that_succeeded() -> None:
    assert job(ExecutionCount(5, 1, 40), ExecutionCount(1, 0, 60)).mean_ms == 20.0
    assert job(ExecutionCount(3, 3)).mean_ms == 0.0
    assert job().mean_ms == 0.0


def test_a_histogram_that_was_not_asked_for_is_empty() -> None:
    assert job(ExecutionCount(5, 1, 40)).histogram == (0,) * 26
