"""Retry: what a failure writes, and when the next attempt is."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kiqcluster.sidekiq.payload import decode_backtrace
from kiqcluster.worker.run.retry import MAX_DELAY_SECONDS, MAX_MESSAGE_CHARACTERS, Plan, delay, describe_error, plan

NOW = 1_795_168_740.5


def raised(error: BaseException) -> BaseException:
    """Return the error with a traceback of three frames."""

    def innermost() -> None:
        raise error

    def outer() -> None:
        innermost()

    try:
        outer()
    except BaseException as caught:
        return caught


def planned(payload: dict[str, Any], option: Any = True, error: BaseException | None = None, limit: int = 25) -> Plan:
    return plan({"class": "X", **payload}, "default", error or ValueError("x"), option, limit, NOW)


class TestCounting:
    def test_the_first_failure_is_number_zero(self) -> None:
        first = planned({})

        assert (first.count, first.exhausted, first.wanted) == (0, False, True)
        assert first.changes == {
            "queue": "default",
            "error_message": "x",
            "error_class": "ValueError",
            "failed_at": NOW,
            "retry_count": 0,
        }

    def test_the_next_one_counts_on_and_leaves_the_first_time_alone(self) -> None:
        second = planned({"failed_at": NOW - 100, "retry_count": 0})

        assert (second.count, second.changes["retry_count"], second.changes["retried_at"]) == (1, 1, NOW)
        assert "failed_at" not in second.changes

    def test_a_first_failure_that_ruby_sent_back_is_the_first_again(self) -> None:
        """Ruby's `retry now` takes one off the count."""
        again = planned({"failed_at": NOW - 100, "retry_count": -1})

        assert again.count == 0

    @pytest.mark.parametrize("absurd", ["3", None, 1.5, True, [], {}])
    def test_a_count_that_is_none_begins_anew(self, absurd: Any) -> None:
        first = planned({"failed_at": NOW - 100, "retry_count": absurd})

        assert (first.count, first.changes["retry_count"], first.changes["failed_at"]) == (0, 0, NOW)

    @pytest.mark.parametrize("absurd", [-5, -(10**400)])
    def test_a_negative_count_is_zero(self, absurd: int) -> None:
        assert planned({"failed_at": NOW, "retry_count": absurd}).count == 0

    def test_a_count_beyond_all_numbers_is_exhausted(self) -> None:
        assert planned({"failed_at": NOW, "retry_count": 10**400}).exhausted


class TestLimit:
    @pytest.mark.parametrize(
        ("option", "failures", "exhausted"),
        [
            (True, 24, False),
            (True, 25, True),
            (0, 0, True),
            (1, 0, False),
            (1, 1, True),
            (3, 2, False),
            (3, 3, True),
            (-1, 0, True),
            (10**400, 1_000, False),
            ("often", 24, False),
            ("often", 25, True),
            (2.5, 24, False),
            ([], 25, True),
        ],
    )
    def test_retries_end_where_the_option_says_or_at_the_limit(
        self, option: Any, failures: int, exhausted: bool
    ) -> None:
        payload = {"failed_at": NOW, "retry_count": failures - 1} if failures else {}

        assert planned(payload, option).exhausted is exhausted

    @pytest.mark.parametrize(("option", "wanted"), [(False, False), (None, False), (0, True), (True, True), ("", True)])
    def test_only_false_and_nothing_mean_that_no_retry_is_wanted(self, option: Any, wanted: bool) -> None:
        assert planned({}, option).wanted is wanted

    def test_the_limit_is_the_configured_one(self) -> None:
        assert planned({"failed_at": NOW, "retry_count": 1}, True, limit=2).exhausted
        assert planned({}, True, limit=0).exhausted


class TestWindow:
    @pytest.mark.parametrize(
        ("failed_at", "exhausted"),
        [(NOW - 59.5, False), (NOW - 60, False), (NOW - 60.5, True), (int((NOW - 61) * 1_000), True)],
    )
    def test_it_ends_that_many_seconds_after_the_first_failure_whatever_the_count(
        self, failed_at: float, exhausted: bool
    ) -> None:
        assert planned({"retry_for": 60, "failed_at": failed_at, "retry_count": 99}).exhausted is exhausted

    def test_a_first_failure_is_within_it(self) -> None:
        assert not planned({"retry_for": 60}, 0).exhausted

    @pytest.mark.parametrize("absurd", [10**400, float("inf")])
    def test_an_endless_one_never_ends(self, absurd: float) -> None:
        assert not planned({"retry_for": absurd, "failed_at": 1.5, "retry_count": 99}).exhausted

    @pytest.mark.parametrize("absurd", [-5, -(10**400), float("-inf")])
    def test_a_negative_one_is_over(self, absurd: float) -> None:
        assert planned({"retry_for": absurd}).exhausted

    @pytest.mark.parametrize("absurd", ["60", True, None, 0, [60], {}])
    def test_what_is_no_number_of_seconds_is_as_if_it_were_not_there(self, absurd: Any) -> None:
        assert planned({"retry_for": absurd, "failed_at": 1.5, "retry_count": 24}).exhausted
        assert not planned({"retry_for": absurd, "failed_at": 1.5, "retry_count": 23}).exhausted

    @pytest.mark.parametrize("failed_at", ["x", None, [], -1, 10**400])
    def test_a_first_failure_at_no_time_at_all_is_now(self, failed_at: Any) -> None:
        assert not planned({"retry_for": 60, "failed_at": failed_at, "retry_count": 3}).exhausted


class TestQueue:
    @pytest.mark.parametrize(
        ("payload", "queue"),
        [
            ({}, "default"),
            ({"queue": "elsewhere"}, "default"),
            ({"retry_queue": "slow"}, "slow"),
            ({"retry_queue": ""}, "default"),
            ({"retry_queue": 5}, "default"),
            ({"retry_queue": None}, "default"),
        ],
    )
    def test_it_is_the_retry_queue_or_the_one_that_it_came_from(self, payload: dict[str, Any], queue: str) -> None:
        assert planned(payload).changes["queue"] == queue


class TestBacktrace:
    def stored(self, lines: Any) -> list[str] | None:
        changes = planned({"backtrace": lines}, error=raised(ValueError("x"))).changes
        return decode_backtrace(changes["error_backtrace"]) if "error_backtrace" in changes else None

    def test_it_is_stored_innermost_first_as_rubys_pages_show_it(self) -> None:
        lines = self.stored(True)

        assert lines is not None
        assert [line.rpartition(":in ")[2] for line in lines] == ["'innermost'", "'outer'", "'raised'"]
        assert all(line.split(":")[1].isdigit() for line in lines)

    @pytest.mark.parametrize(("lines", "count"), [(1, 1), (2, 2), (99, 3), (10**400, 3), ("all", 3), (2.5, 3)])
    def test_it_has_as_many_lines_as_asked_for(self, lines: Any, count: int) -> None:
        stored = self.stored(lines)

        assert stored is not None
        assert len(stored) == count

    @pytest.mark.parametrize("lines", [False, None, 0, "", []])
    def test_without_being_asked_for_there_is_none(self, lines: Any) -> None:
        assert self.stored(lines) is None


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class TestError:
    @pytest.mark.parametrize(
        ("error", "name"),
        [
            (ValueError("x"), "ValueError"),
            (SystemExit(3), "SystemExit"),
            (Unspeakable(), f"{__name__}.Unspeakable"),
            (type("Local", (Exception,), {"__module__": "app.errors"})(), "app.errors.Local"),
        ],
    )
    def test_its_class_is_named_in_full(self, error: BaseException, name: str) -> None:
        assert describe_error(error)["error_class"] == name

    def test_a_long_message_is_cut(self) -> None:
        assert describe_error(ValueError("é" * 20_000))["error_message"] == "é" * MAX_MESSAGE_CHARACTERS

    def test_a_message_that_cannot_be_shown_says_so(self) -> None:
        assert "ZeroDivisionError" in describe_error(Unspeakable())["error_message"]

    def test_a_message_that_utf8_cannot_hold_is_made_one_that_it_can(self) -> None:
        message = describe_error(ValueError("x\ud800y"))["error_message"]

        assert message == "x?y"


class TestDelay:
    @pytest.mark.parametrize(
        ("answer", "least"), [(1, 1), (60, 60), (0.5, 0.5), (MAX_DELAY_SECONDS, MAX_DELAY_SECONDS)]
    )
    def test_a_hooks_answer_counts_with_jitter_on_top(self, answer: float, least: float) -> None:
        delays = {delay(answer, 0, Random(seed)) for seed in range(100)}

        assert least <= min(delays)
        assert max(delays) <= least + 9
        assert len(delays) > 5

    @pytest.mark.parametrize(
        "answer",
        [None, 0, -1, True, False, "60", float("nan"), float("inf"), MAX_DELAY_SECONDS + 1, 10**400, [], object()],
    )
    def test_everything_else_is_sidekiqs_curve(self, answer: Any) -> None:
        assert 16 <= delay(answer, 1, Random(1)) < 36


def test_names_in_angle_brackets_are_written_so_that_rubys_pages_show_them() -> None:
    class Local(Exception):
        pass

    named = describe_error(Local("x"))["error_class"]
    changes = planned({"backtrace": True}, error=raised((lambda: Local("x"))())).changes

    assert named.endswith(".(locals).Local")
    lines = decode_backtrace(changes["error_backtrace"])
    assert lines is not None
    assert not any("<" in line for line in (*lines, changes["error_class"]))
