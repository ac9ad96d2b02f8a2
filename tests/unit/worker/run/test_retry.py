"""Retry: what a failure writes, and when the next attempt is."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from kiqcluster.errors import CannotRun, Interrupted, RetryError
from kiqcluster.sidekiq import backtraces
from kiqcluster.worker.run.retry import (
    MAX_DELAY_SECONDS,
    MAX_MESSAGE_CHARACTERS,
    Plan,
    backtrace,
    delay,
    describe_error,
    plan,
    trace,
    wanted_backtrace,
    wanted_delay,
    was_interrupted,
)

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
    def stored(self, wanted: Any, error: BaseException | None = None) -> list[str] | None:
        raised_error = raised(error or ValueError("x"))
        stored = backtrace(raised_error, wanted, lambda: trace(raised_error))
        return None if stored is None else backtraces.decode(stored)

    def test_it_is_what_python_prints(self) -> None:
        lines = self.stored(True)

        assert lines is not None
        assert lines[0] == "Traceback (most recent call last):"
        assert [line.split(", in ")[1] for line in lines if line.startswith("  File")] == [
            "raised",
            "outer",
            "innermost",
        ]
        assert "        raise error" not in lines
        assert "    raise error" in lines
        assert lines[-1] == "ValueError: x"

    @pytest.mark.parametrize(("wanted", "count"), [(1, 1), (2, 2), (99, 3), (10**400, 3)])
    def test_a_number_is_so_many_lines_of_sidekiqs_form_innermost_first(self, wanted: int, count: int) -> None:
        lines = self.stored(wanted)

        assert lines is not None
        assert [line.rpartition(":in ")[2] for line in lines] == ["'innermost'", "'outer'", "'raised'"][:count]
        assert all(line.split(":")[1].isdigit() for line in lines)

    @pytest.mark.parametrize("wanted", [False, 0, "", []])
    def test_it_can_be_switched_off(self, wanted: Any) -> None:
        assert self.stored(wanted) is None

    def test_it_has_the_causes(self) -> None:
        def cause() -> None:
            try:
                raise LookupError("cause")
            except LookupError as error:
                raise ValueError("effect") from error

        with pytest.raises(ValueError, match="effect") as caught:
            cause()
        lines = "".join(trace(caught.value)).splitlines()

        assert lines.index("LookupError: cause") < lines.index(
            "The above exception was the direct cause of the following exception:"
        )
        assert lines[-1] == "ValueError: effect"

    def test_it_has_no_values_of_variables(self) -> None:
        def keep(secret: str) -> None:
            raise ValueError("x")

        with pytest.raises(ValueError, match="x") as caught:
            keep("hidden" + "word")
        assert "hiddenword" not in "".join(trace(caught.value))

    def test_a_recursion_without_end_stays_small(self) -> None:
        def one(depth: int) -> None:
            two(depth + 1)

        def two(depth: int) -> None:
            one(depth + 1)

        with pytest.raises(RecursionError) as caught:
            one(0)
        assert len(trace(caught.value)) < 110

    @pytest.mark.parametrize(
        ("payload", "options", "error", "wanted"),
        [
            ({}, {}, ValueError(), True),
            ({"backtrace": None}, {"backtrace": None}, ValueError(), True),
            ({}, {"backtrace": False}, ValueError(), False),
            ({"backtrace": True}, {"backtrace": False}, ValueError(), True),
            ({"backtrace": False}, {"backtrace": 5}, ValueError(), False),
            ({"backtrace": 3}, {}, RetryError("not yet"), 3),
            ({}, {}, RetryError("not yet"), False),
            ({}, {}, CannotRun("no"), False),
        ],
    )
    def test_the_payload_goes_before_the_class(self, payload: Any, options: Any, error: Exception, wanted: Any) -> None:
        assert wanted_backtrace(payload, options, error) == wanted


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError


class TestError:
    def test_an_interruption_is_found_behind_an_error_that_is_empty(self) -> None:
        class Empty(Exception):
            def __len__(self) -> int:
                return 0

        empty, error = Empty(), ValueError()
        empty.__cause__, error.__cause__ = Interrupted(), empty

        assert was_interrupted(error)

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


class Lying(int):
    """A number that fails when somebody compares it, or adds to it."""

    def _fail(self, *_: object) -> Any:
        raise SystemExit

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __float__ = __int__ = __index__ = _fail
    __class__ = property(_fail)  # type: ignore[assignment]


class TestDelay:
    @pytest.mark.parametrize(
        ("answer", "least"),
        [
            (0, 0),
            (0.0, 0),
            (1, 1),
            (60, 60),
            (0.5, 0.5),
            (timedelta(0), 0),
            (timedelta(minutes=1), 60),
            (MAX_DELAY_SECONDS, MAX_DELAY_SECONDS),
        ],
    )
    def test_a_hooks_answer_counts_with_jitter_on_top(self, answer: Any, least: float) -> None:
        delays = {delay(wanted_delay(answer), 0, Random(seed)) for seed in range(100)}

        assert least <= min(delays)
        assert max(delays) <= least + 9
        assert len(delays) > 5

    @pytest.mark.parametrize(
        "answer",
        [
            *(None, -1, -0.001, True, False, "60", Decimal(60), float("nan"), float("inf"), MAX_DELAY_SECONDS + 1),
            *(10**400, timedelta(-1), timedelta.max, [], object()),
        ],
    )
    def test_everything_else_is_sidekiqs_curve(self, answer: Any) -> None:
        assert wanted_delay(answer) is None
        assert 16 <= delay(None, 1, Random(1)) < 36

    def test_a_number_of_a_class_of_its_own_is_read_as_it_is(self) -> None:
        assert [wanted_delay(Lying(60)), wanted_delay(Lying(-1))] == [60, None]


def test_names_in_angle_brackets_are_written_so_that_rubys_pages_show_them() -> None:
    class Local(Exception):
        pass

    error = raised((lambda: Local("x"))())
    lines = backtraces.decode(backtrace(error, 9, list))

    assert str(describe_error(error)["error_class"]).endswith(".(locals).Local")
    assert lines is not None
    assert not any("<" in line for line in lines)
