"""Assertions: they hold for the job that is meant, fail for any other, and their failures say what there is instead."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest

from kiqcluster import Client, Job, job
from kiqcluster.errors import InvalidArguments, UsageError
from kiqcluster.testing import FrozenClock, assert_enqueued, drain, enqueued, fake, frozen_clock, refute_enqueued

pytestmark = pytest.mark.usefixtures("setup", "keep")


@pytest.fixture
def keep(setup: None):
    with fake() as jobs:
        yield jobs


@pytest.fixture
def clock():
    with frozen_clock(datetime(2030, 1, 1, tzinfo=UTC)) as clock:
        yield clock


@pytest.fixture
def welcome(setup: None):
    @job(queue="mailers", tags=["mail"])
    def welcome(user_id: int, greeting: str = "hi") -> None: ...

    return welcome


def message(assertion: Callable[..., Any], *args: Any, **says: Any) -> str:
    """Return what an assertion says when it fails."""
    with pytest.raises(AssertionError) as caught:
        assertion(*args, **says)
    return str(caught.value)


class TestWhatHolds:
    def test_a_job_is_found_by_everything_that_is_said_of_it(self, welcome, clock: FrozenClock) -> None:
        welcome.set(tags=["mail", "new"], retry=3).perform_in(60, 7, greeting="hello")

        found = assert_enqueued(
            welcome,
            7,
            "hello",
            queue="mailers",
            in_=60,
            at=clock.now() + 60,
            count=1,
            tags=["new"],
            payload={"retry": 3},
        )

        assert found.args == [7, "hello"]

    @pytest.mark.parametrize(
        ("args", "says"),
        [
            ((8,), {}),
            ((7, "hello"), {}),
            ((), {"queue": "default"}),
            ((), {"at": 1_893_456_000.0}),
            ((), {"at": None}),
            ((), {"in_": 59 - 1}),
            ((), {"in_": timedelta(hours=1)}),
            ((), {"tags": ["old"]}),
            ((), {"payload": {"retry": 3}}),
            ((), {"payload": {"nothing": None}}),
            ((), {"count": 2}),
        ],
    )
    def test_one_thing_that_is_not_so_is_enough(self, welcome, clock: FrozenClock, args, says) -> None:
        welcome.perform_in(60, 7)

        assert_enqueued(welcome, 7, in_=60)
        assert "welcome" in message(assert_enqueued, welcome, *args, **says)

    def test_a_class_a_function_verbs_with_options_and_a_name_mean_a_job(self, welcome) -> None:
        class Thumbnail(Job, name="Acme::Thumbnail"):
            def perform(self, path: str) -> None: ...

        Thumbnail.perform_async("a.png")
        welcome.perform_async(7)

        assert assert_enqueued(Thumbnail, "a.png") == assert_enqueued("Acme::Thumbnail", "a.png")
        assert_enqueued(welcome.set(queue="x"), 7, queue="mailers")

    def test_a_job_that_is_due_at_once_and_one_that_is_not_are_told_apart(self, welcome) -> None:
        welcome.perform_async(1)
        welcome.perform_in(60, 2)

        assert assert_enqueued(welcome, at=None).args == [1]
        refute_enqueued(welcome, 2, at=None)

    def test_a_delay_is_the_one_with_which_it_was_pushed_however_long_the_test_takes(
        self, welcome, clock: FrozenClock
    ) -> None:
        welcome.perform_in(timedelta(hours=1), 1)
        clock.move(1_000)

        assert_enqueued(welcome, in_=3_600)
        assert_enqueued(welcome, at=datetime(2030, 1, 1, 1, tzinfo=UTC))

    def test_any_stands_for_an_argument(self, welcome) -> None:
        welcome.perform_async(7, "hello")

        assert_enqueued(welcome, ANY, "hello")

    @pytest.mark.parametrize(("pushed", "meant"), [(1, True), (True, 1), ([False], [0]), ({"a": 0}, {"a": False})])
    def test_true_is_not_one(self, pushed, meant) -> None:
        Client().push({"class": "X", "args": [pushed]})

        assert_enqueued("X", pushed)
        refute_enqueued("X", meant)

    def test_a_tuple_is_not_the_list_that_travels(self) -> None:
        Client().push({"class": "X", "args": [[1, 2]]})

        refute_enqueued("X", (1, 2))

    def test_a_job_of_rails_is_known_by_its_own_name_and_arguments(self) -> None:
        ran = []

        @job(name="InvoiceJob", active_job=True)
        def invoice(order_id: int, currency: str) -> None:
            ran.append((order_id, currency))

        invoice.perform_async(7, "CHF")

        assert_enqueued(invoice, 7, "CHF")
        assert_enqueued("InvoiceJob", 7, "CHF", payload={"wrapped": "InvoiceJob"})
        assert_enqueued("ActiveJob::QueueAdapters::SidekiqAdapter::JobWrapper")
        drain(invoice)
        assert ran == [(7, "CHF")]

    def test_arguments_of_a_job_of_rails_are_what_its_code_gets(self) -> None:
        @job(name="ReminderJob", active_job=True)
        def remind(customer: int, *, after: timedelta) -> None: ...

        remind.perform_async(7, after=timedelta(hours=2))
        remind.perform_async({"_aj_globalid": "gid://shop/Customer/7"}, after=1)  # type: ignore[arg-type]

        assert_enqueued(remind, 7, {"after": timedelta(hours=2)}, count=1)
        assert_enqueued(remind, "gid://shop/Customer/7", {"after": 1}, count=1)
        refute_enqueued(remind, 7, {"after": timedelta(hours=3)})

    def test_enqueued_takes_the_same_words(self, welcome) -> None:
        welcome.perform_bulk([[1], [2]])
        Client().push({"class": "X", "args": []})

        assert [each.args for each in enqueued(welcome)] == [[1], [2]]
        assert [each.args for each in enqueued(welcome, 2)] == [[2]]
        assert len(enqueued(queue="mailers")) == 2
        assert len(enqueued()) == 3


class TestWhatAFailureSays:
    def test_what_was_enqueued_instead(self, welcome, clock: FrozenClock) -> None:
        welcome.perform_async(8)
        welcome.perform_in(90, 7, "hello")
        welcome.perform_in(timedelta(days=2), 9)

        assert message(assert_enqueued, welcome, 7, queue="mailers") == (
            "no job welcome(7) was enqueued on mailers; enqueued were:\n"
            "  welcome(8) on mailers\n"
            "  welcome(7, 'hello') on mailers, in 90 s\n"
            "  welcome(9) on mailers, in 2 days, 0:00:00"
        )

    def test_that_there_was_nothing(self, welcome) -> None:
        assert message(assert_enqueued, welcome, in_=60, tags=["x"], payload={"retry": 1}) == (
            "no job welcome was enqueued in 60 s with tags ['x'] with retry = 1; nothing was"
        )

    def test_that_the_count_is_another(self, welcome) -> None:
        welcome.perform_async(1)

        assert message(assert_enqueued, welcome, count=2).startswith("1 jobs, not 2: welcome was enqueued;")

    def test_that_the_job_has_run_already(self, welcome) -> None:
        welcome.perform_async(7)
        drain()

        text = message(assert_enqueued, welcome, 7)

        assert text.endswith("; nothing was\nit has run already, see performed():\n  welcome(7) on mailers")

    def test_what_should_not_be_there(self, welcome) -> None:
        welcome.perform_async(7)

        assert message(refute_enqueued, welcome) == (
            "no job welcome was to be enqueued; these were:\n  welcome(7) on mailers"
        )
        assert message(refute_enqueued).startswith("no job at all was to be enqueued")

    def test_long_lists_and_arguments_are_cut(self, welcome) -> None:
        welcome.perform_bulk([[number, "x" * 1_000] for number in range(100)])

        text = message(refute_enqueued, welcome)

        assert text.endswith("… and 80 more")
        assert len(text) < 6_000


class TestWhatCanNeverBe:
    """An assertion that something was not enqueued must not hold because of a slip of the pen."""

    def test_arguments_that_do_not_fit_the_job_are_refused(self, welcome) -> None:
        with pytest.raises(InvalidArguments, match="no such job can be enqueued"):
            refute_enqueued(welcome, 1, "hi", 3)

    def test_what_is_no_job_is_refused(self) -> None:
        with pytest.raises(UsageError, match="is not a job"):
            refute_enqueued(len)

    def test_a_count_of_none_is_refused(self, welcome) -> None:
        with pytest.raises(UsageError, match="refute_enqueued"):
            assert_enqueued(welcome, count=0)

    def test_a_string_of_tags_is_refused(self, welcome) -> None:
        with pytest.raises(UsageError, match="a list of strings"):
            refute_enqueued(welcome, tags="mail")

    def test_an_unknown_word_is_refused(self, welcome) -> None:
        with pytest.raises(TypeError):
            refute_enqueued(welcome, que="mailers")
