"""The client, up to the point where it writes; tests/redis has what it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from kiqcluster import Client, Job, job
from kiqcluster.application.registry import Definition
from kiqcluster.client.draft import Draft
from kiqcluster.client.preparation import push_of
from kiqcluster.client.sending import send
from kiqcluster.errors import InvalidArguments, InvalidPush, UsageError
from kiqcluster.features.stacks import Stacks, using_stacks
from kiqcluster.process.config import Config
from kiqcluster.process.durations import due_at
from kiqcluster.process.runtime import Push, Setup, current_setup
from kiqcluster.store import Store

NOW = 1_795_168_740.5


class TestDueAt:
    @pytest.mark.parametrize(
        ("when", "expected"),
        [
            (timedelta(seconds=60), NOW + 60),
            (timedelta(days=1, microseconds=500_000), NOW + 86_400.5),
            (timedelta(seconds=-5), NOW - 5),
            (1_795_000_000, 1_795_000_000.0),
            (1_795_000_000.25, 1_795_000_000.25),
            (0, 0.0),
            (-1, -1.0),
            (datetime(2026, 11, 20, 12, tzinfo=UTC), 1_795_176_000.0),
            (datetime(2026, 11, 20, 12, tzinfo=timezone(timedelta(hours=2))), 1_795_168_800.0),
        ],
    )
    def test_every_form_of_a_time_is_epoch_seconds(self, when: Any, expected: float) -> None:
        due = due_at(when, NOW)

        assert due == expected
        assert type(due) is float

    def test_a_datetime_without_a_zone_is_refused_for_hosts_would_read_it_differently(self) -> None:
        with pytest.raises(InvalidPush, match="no time zone"):
            due_at(datetime(2026, 11, 20, 12), NOW)  # noqa: DTZ001

    @pytest.mark.parametrize(
        "when",
        [
            True,
            False,
            None,
            "60",
            "2026-11-20",
            float("nan"),
            float("inf"),
            float("-inf"),
            10**400,
            1j,
            Decimal(60),
            date(2026, 11, 20),
            time(12),
            [60],
        ],
    )
    def test_what_is_no_time_is_refused(self, when: Any) -> None:
        with pytest.raises(InvalidPush):
            due_at(when, NOW)

    @pytest.mark.parametrize(
        ("when", "remedy"),
        [
            (1_893_456_000_000, "looks like milliseconds; pass epoch seconds: 1893456000000 / 1000"),
            (1_893_456_000_000.5, "looks like milliseconds"),
            (1_893_456_000_000_000, "looks like microseconds"),
            (1_893_456_000_000_000_000, "looks like nanoseconds"),
            (1e300, "a mistake"),
            (1e11, "milliseconds"),
            (datetime(9999, 12, 31, tzinfo=UTC), "a mistake"),
            (timedelta(days=1_893_456), "a mistake"),
        ],
    )
    def test_a_time_that_lies_thousands_of_years_ahead_is_refused(self, when: Any, remedy: str) -> None:
        with pytest.raises(InvalidPush) as caught:
            due_at(when, NOW)

        assert remedy in str(caught.value)


@pytest.fixture
def pushes(setup: Setup) -> list[Push]:
    """What came through the middleware; it stops there, so that nothing is sent."""
    seen: list[Push] = []
    setup.client_middleware.add(lambda push, proceed: seen.append(push))
    return seen


class TestItems:
    def test_a_job_may_be_given_by_name_registered_or_not(self, pushes: list[Push]) -> None:
        class Mail(Job, name="Acme::Mail", queue="mails", retry=3):
            def perform(self, user: int) -> None: ...

        for each in (Mail, "Acme::Mail"):
            Client().push({"class": each, "args": [1]})
        Client().push({"class": "Ruby::Job", "args": [1]})

        assert [(each.payload["class"], each.queue, each.payload["retry"]) for each in pushes] == [
            ("Acme::Mail", "mails", 3),
            ("Acme::Mail", "mails", 3),
            ("Ruby::Job", "default", True),
        ]

    def test_its_own_keys_win_over_those_of_the_definition_and_unknown_ones_travel(self, pushes: list[Push]) -> None:
        Client().push({"class": "X", "args": [], "queue": "slow", "retry": False, "locale": "de", "jid": "a" * 24})

        payload = pushes[0].payload
        assert (payload["queue"], payload["retry"], payload["locale"], payload["jid"]) == (
            "slow",
            False,
            "de",
            "a" * 24,
        )

    def test_keys_that_the_client_writes_cannot_be_given(self, pushes: list[Push]) -> None:
        Client().push({"class": "X", "args": [], "created_at": 1, "enqueued_at": 1, "at": NOW + 10**9})

        assert pushes[0].payload["created_at"] != 1
        assert pushes[0].payload.keys().isdisjoint({"enqueued_at", "at"})
        assert pushes[0].at == NOW + 10**9

    @pytest.mark.parametrize(
        "item",
        [
            None,
            "X",
            [],
            {},
            {"args": []},
            {"class": None, "args": []},
            {"class": "", "args": []},
            {"class": 5, "args": []},
            {"class": int, "args": []},
            {"class": "X", "args": [], "queue": ""},
            {"class": "X", "args": [], "queue": None},
            {"class": "X", "args": [], "queue": "a\nb"},
            {"class": "X", "args": [], "at": "tomorrow"},
            {"class": "X", "args": [], "at": True},
        ],
    )
    def test_what_is_no_job_is_refused(self, pushes: list[Push], item: Any) -> None:
        with pytest.raises(InvalidPush):
            Client().push(item)

        assert pushes == []

    def test_a_jid_belongs_to_one_job(self, pushes: list[Push]) -> None:
        with pytest.raises(InvalidPush, match="jid"):
            Client().push_bulk({"class": "X", "args": [[1], [2]], "jid": "a" * 24})

    @pytest.mark.parametrize("times", [[], [1.0], [1.0, 2.0, 3.0]])
    def test_a_list_of_times_has_one_for_each_job(self, pushes: list[Push], times: list[float]) -> None:
        with pytest.raises(InvalidPush, match="2 jobs"):
            Client().push_bulk({"class": "X", "args": [[1], [2]], "at": times})

    def test_bulk_jobs_have_jids_and_times_of_their_own(self, pushes: list[Push]) -> None:
        future = NOW + 10**9

        stopped = Client().push_bulk({"class": "X", "args": [[1], [2], [3]], "at": [future, 1e9, future + 1]})

        assert stopped == [None, None, None]
        assert [each.payload["args"] for each in pushes] == [[1], [2], [3]]
        assert [each.at for each in pushes] == [future, None, future + 1]
        assert len({each.payload["jid"] for each in pushes}) == 3

    @pytest.mark.parametrize("lists", ["ab", 5, {"a": 1}, None])
    def test_a_bulk_push_takes_a_list_of_lists(self, pushes: list[Push], lists: Any) -> None:
        with pytest.raises(InvalidArguments):
            Client().push_bulk({"class": "X", "args": lists})

    @pytest.mark.parametrize("args", [[], [1, 2], [1, "x", None]])
    def test_arguments_of_a_registered_job_have_to_fit_it(self, pushes: list[Push], args: list[Any]) -> None:
        class Mail(Job, name="Acme::Mail"):
            def perform(self, user: int) -> None: ...

        for each in (Mail, "Acme::Mail"):
            with pytest.raises(InvalidArguments, match="Acme::Mail"):
                Client().push({"class": each, "args": args})
            with pytest.raises(InvalidArguments, match="entry 1: Acme::Mail"):
                Client().push_bulk({"class": each, "args": [[1], args]})

        assert pushes == []

    def test_those_of_a_job_that_is_registered_elsewhere_may_be_any(self, pushes: list[Push]) -> None:
        Client().push({"class": "Ruby::Job", "args": [1, 2, 3]})
        Client().push({"class": "Ruby::Job"})

        assert [each.payload["args"] for each in pushes] == [[1, 2, 3], []]

    @pytest.mark.parametrize(
        ("lists", "entry"),
        [
            ([4, 5], 0),
            ([{"order_id": 3}], 0),
            ([[1], "ab"], 1),
            ([[1], (2,), None], 2),
            ([[1], {2}], 1),
        ],
    )
    def test_an_entry_that_is_no_list_is_named_before_any_link_hears_of_any(
        self, pushes: list[Push], lists: list[Any], entry: int
    ) -> None:
        with pytest.raises(InvalidArguments, match=f"entry {entry}: X: the arguments of a job are a list"):
            Client().push_bulk({"class": "X", "args": lists})

        assert pushes == []

    def test_a_value_that_cannot_travel_is_named_with_its_entry_and_job(self, setup: Setup) -> None:
        with pytest.raises(InvalidArguments, match=r"entry 1: X: args\[0\]\['a'\] is of type") as caught:
            Client().push_bulk({"class": "X", "args": [[1], [{"a": Decimal(1)}]]})

        assert caught.value.path == "args[0]['a']"

    def test_a_value_that_cannot_travel_in_an_envelope_is_named_like_others(self, setup: Setup) -> None:
        @job(name="SampleJob", active_job=True)
        def sample(value: object) -> None: ...

        naive = datetime(2026, 1, 2)  # noqa: DTZ001
        with pytest.raises(InvalidArguments, match=r"SampleJob: args\[0\]\['arguments'\]\[0\] is of type set"):
            sample.perform_async({1})
        with pytest.raises(InvalidArguments, match=r"entry 1: SampleJob: args\[0\] is .* no time zone"):
            sample.perform_bulk([[1], [naive]])
        with pytest.raises(InvalidArguments, match=r"entry 1: SampleJob was not enqueued"):
            Client().push_bulk({"class": "SampleJob", "args": [[1], [1, 2]]})

    def test_a_time_that_is_none_is_named_with_its_entry(self, pushes: list[Push]) -> None:
        with pytest.raises(InvalidPush, match="entry 1: "):
            Client().push_bulk({"class": "X", "args": [[1], [2]], "at": [1e9, "tomorrow"]})

    @pytest.mark.parametrize("value", [float("inf"), float("nan"), [float("-inf")], {"a": "\ud800"}])
    def test_a_key_that_would_become_another_value_is_refused(self, setup: Setup, value: Any) -> None:
        """msgspec writes null for what is no number."""
        with pytest.raises(InvalidPush, match="some_key"):
            Client(setup=setup).push({"class": "X", "args": [], "some_key": value})

    def test_the_mark_of_an_entry_that_keeps_other_bytes_is_refused(self, setup: Setup) -> None:
        with pytest.raises(InvalidPush, match="kiq_wrapped"):
            Client(setup=setup).push({"class": "X", "args": ['{"class":"Y","args":[]}'], "kiq_wrapped": "text"})

    def test_a_key_that_json_cannot_hold_is_refused(self, setup: Setup) -> None:
        with pytest.raises(InvalidPush, match="X: the payload holds what JSON cannot"):
            Client().push({"class": "X", "args": [], "custom": object()})

    def test_an_error_of_a_feature_is_no_refusal_of_json(self, setup: Setup) -> None:
        class Broken:
            key = "custom"

            def on_encode(self, _setup: Setup, _push: Push, _definition: Definition | None) -> None:
                raise ValueError("a fault of the feature")

        with using_stacks(Stacks(client=(Broken(),))), pytest.raises(ValueError, match="a fault of the feature"):
            Client().push({"class": "X", "args": [], "custom": 1})

    def test_no_jobs_are_no_work(self, pushes: list[Push]) -> None:
        assert Client().push_bulk({"class": "X", "args": []}) == []


class TestWhatLinksChange:
    """A payload is its link's to change, and nobody else's."""

    def test_tags_that_a_link_adds_are_of_that_push_only(self, setup: Setup) -> None:
        seen: list[Any] = []

        class Mail(Job, tags=["mail"]):
            def perform(self, user: int) -> None: ...

        def add_tag(push: Push, proceed: Callable[[], Push | None]) -> None:
            push.payload["tags"].append("vip")
            seen.append(push.payload["tags"])

        setup.client_middleware.add(add_tag)
        critical = Mail.set(tags=["now"])
        for _ in range(2):
            Mail.perform_async(1)
            critical.perform_async(1)
        Mail.perform_bulk([[1], [2]])

        assert seen == [["mail", "vip"], ["now", "vip"]] * 2 + [["mail", "vip"]] * 2
        assert (Mail.definition.options["tags"], critical.options["tags"]) == (["mail"], ["now"])

    def test_an_item_stays_as_it_was_however_deep_the_change(self, setup: Setup) -> None:
        def alter(push: Push, proceed: Callable[[], Push | None]) -> None:
            push.payload["custom"]["list"][0]["x"] = "changed"
            push.payload["args"].append("changed")

        setup.client_middleware.add(alter)
        item = {"class": "X", "args": [1], "custom": {"list": [{"x": 1}]}}
        bulk = {"class": "X", "args": [[1]], "custom": {"list": [{"x": 1}]}}

        Client().push(item)
        Client().push_bulk(bulk)

        assert item == {"class": "X", "args": [1], "custom": {"list": [{"x": 1}]}}
        assert bulk == {"class": "X", "args": [[1]], "custom": {"list": [{"x": 1}]}}


@pytest.mark.parametrize("shard", ["reports", None, "redis://127.0.0.1:6379/1"])
def test_via_takes_a_store_and_passes_over_nothing_else(setup: Setup, shard: Any) -> None:
    with pytest.raises(UsageError, match=r"takes a Store|there is no shard"), Client.via(shard):
        pytest.fail("a push would have gone to the default shard")


class TestChecks:
    def draft(self, arguments: Any) -> Push | None:
        return push_of(current_setup(), Draft("X", {"retry": True, "queue": "default"}, arguments))

    @pytest.mark.parametrize(("mode", "raises"), [("raise", True), ("warn", False), ("off", False)])
    def test_arguments_are_checked_in_the_configured_mode(
        self, setup: Setup, mode: str, raises: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        setup.config = Config(strict_args=mode)

        if raises:
            with pytest.raises(InvalidArguments):
                self.draft([Decimal(1)])
        else:
            assert self.draft([Decimal(1)]) is not None
        assert bool(caplog.records) is (mode == "warn")

    @pytest.mark.parametrize("mode", ["raise", "warn", "off"])
    @pytest.mark.parametrize("arguments", [[float("nan")], ["\ud800"], (1,), None])
    def test_what_cannot_be_stored_raises_in_every_mode(self, setup: Setup, mode: str, arguments: Any) -> None:
        setup.config = Config(strict_args=mode)

        with pytest.raises(InvalidArguments):
            self.draft(arguments)

    @pytest.mark.parametrize("options", [{}, {"deduplicate": "until_executed"}])
    @pytest.mark.parametrize("wire", [{}, {"kiq_history": 60}])
    @pytest.mark.parametrize("argument", [object(), {"a": [Exception]}])
    @pytest.mark.usefixtures("registry")
    def test_what_json_cannot_hold_is_refused_alike_with_each_feature(
        self, setup: Setup, options: dict[str, Any], wire: dict[str, Any], argument: Any
    ) -> None:
        setup.config, setup.store = Config(strict_args="off"), Store("redis://127.0.0.1:1/0")
        tell = job(name="tell", **options)(lambda value: None)
        definition = replace(tell.definition, options={**tell.definition.options, **wire})

        with pytest.raises(InvalidPush, match=r"^tell: the \w+ holds? what JSON cannot"):
            send(setup, Draft("tell", definition.options, [argument], definition))

    @pytest.mark.parametrize("change", [{"args": [object()]}, {"args": "x"}])
    def test_what_a_link_has_done_to_the_arguments_is_checked(self, setup: Setup, change: dict[str, Any]) -> None:
        def alter(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            push.payload.update(change)
            return proceed()

        setup.client_middleware.add(alter)

        with pytest.raises(InvalidArguments):
            self.draft([1])

    def test_what_a_link_has_done_to_the_time_is_checked(self, setup: Setup) -> None:
        def put_off(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            push.at = 1_893_456_000_000
            return proceed()

        setup.client_middleware.add(put_off)

        for item in ({"class": "X"}, {"class": "X", "at": 1_893_456_000}):
            with pytest.raises(InvalidPush, match="milliseconds"):
                Client().push(item)

    def test_what_a_link_has_done_to_the_queue_is_checked(self, setup: Setup) -> None:
        def alter(push: Push, proceed: Callable[[], Push | None]) -> Push | None:
            push.payload["queue"] = "a\nb"
            return proceed()

        setup.client_middleware.add(alter)

        with pytest.raises(InvalidPush):
            self.draft([1])
