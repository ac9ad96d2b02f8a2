"""ActiveJob's envelopes: what people are shown of them, and arguments between Ruby's types and Python's."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from kiqcluster.errors import CannotDeserialize, InvalidArguments, MisfitArguments
from kiqcluster.sidekiq.active_job import WRAPPER, Keywords, enveloped, run, unwrapped
from kiqcluster.sidekiq.payload import WRAPPERS
from kiqcluster.sidekiq.ruby_json import decode, encode

NEWER = "Sidekiq::ActiveJob::Wrapper"
MAIL = "ActionMailer::MailDeliveryJob"
SYMBOL = {"_aj_serialized": "ActiveJob::Serializers::SymbolSerializer", "value": "seconds"}


def envelope_of(arguments: list[Any], job_class: str = "SampleJob", wrapper: str = WRAPPER) -> dict[str, Any]:
    return {"class": wrapper, "wrapped": job_class, "args": [{"job_class": job_class, "arguments": arguments}]}


def written(serializer: str, **fields: Any) -> dict[str, Any]:
    return {"_aj_serialized": f"ActiveJob::Serializers::{serializer}", **fields}


def received(*arguments: Any) -> Any:
    """Return what a job gets: positions, keywords."""

    def perform(*args: Any, **keywords: Any) -> Any:
        return args, keywords

    return run("SampleJob", inspect.signature(perform), perform, {"arguments": list(arguments)})


def read(argument: Any) -> Any:
    ((value,), keywords) = received(argument)
    assert keywords == {}
    return value


class TestDisplay:
    @pytest.mark.parametrize("wrapper", WRAPPERS)
    def test_either_wrapper_shows_what_it_wraps(self, wrapper: str) -> None:
        envelope = unwrapped(envelope_of([1, "two"], wrapper=wrapper))

        assert envelope is not None
        assert (envelope.name, envelope.job_class, envelope.display_args) == ("SampleJob", "SampleJob", [1, "two"])

    def test_other_payloads_are_no_envelopes(self) -> None:
        assert unwrapped({}) is None
        assert unwrapped({"class": "SampleJob", "wrapped": "SampleJob", "args": [{"job_class": "Other"}]}) is None
        assert unwrapped({"class": [], "args": []}) is None

    def test_marks_of_activejob_are_left_out_and_records_are_their_ids(self) -> None:
        envelope = unwrapped(
            envelope_of([{"_aj_globalid": "gid://shop/User/1"}, {"a": [SYMBOL], "_aj_symbol_keys": ["a"]}])
        )

        assert envelope is not None
        assert envelope.display_args == ["gid://shop/User/1", {"a": [{"value": "seconds"}]}]

    def test_a_mail_is_named_by_its_method_and_shows_what_that_gets(self) -> None:
        options = {
            "params": {"user": {"_aj_globalid": "gid://shop/User/1"}},
            "args": [7],
            "_aj_ruby2_keywords": ["args"],
        }
        newer = unwrapped(envelope_of(["UserMailer", "welcome", "deliver_now", options], MAIL))
        older = unwrapped(envelope_of(["UserMailer", "welcome", "deliver_now", 7, 8], "ActionMailer::DeliveryJob"))

        assert newer is not None
        assert older is not None
        assert (newer.name, newer.display_args) == ("UserMailer#welcome", [{"user": "gid://shop/User/1"}, [7]])
        assert (older.name, older.display_args) == ("UserMailer#welcome", [7, 8])
        assert newer.job_class == MAIL

    def test_the_envelope_says_the_class_where_the_payload_does_not(self) -> None:
        payload = envelope_of([1])
        payload["wrapped"] = None

        assert getattr(unwrapped(payload), "name", None) == "SampleJob"

    @pytest.mark.parametrize(
        "args", [None, {}, [], [None], ["x", 1], [{}], [{"arguments": "x"}], [{"arguments": None}]]
    )
    def test_what_is_no_envelope_inside_is_shown_as_it_is(self, args: Any) -> None:
        envelope = unwrapped({"class": WRAPPER, "wrapped": MAIL, "args": args})

        assert envelope is not None
        assert envelope.name == MAIL
        assert envelope.display_args == (args if isinstance(args, list) else [])

    @pytest.mark.parametrize("wrapped", [None, "", 7, [], {}])
    def test_without_any_class_it_is_no_envelope(self, wrapped: Any) -> None:
        assert unwrapped({"class": NEWER, "wrapped": wrapped, "args": [{"arguments": [1]}]}) is None

    @pytest.mark.parametrize("arguments", [["A"], ["A", "b"], ["A", "b", "c"]])
    def test_a_mail_that_lacks_something_is_shown_without_it(self, arguments: list[Any]) -> None:
        envelope = unwrapped(envelope_of(arguments, MAIL))

        assert envelope is not None
        assert envelope.name
        assert envelope.display_args == arguments

    def test_the_deepest_nesting_is_shown_as_it_is(self) -> None:
        nested: Any = []
        for _ in range(5_000):
            nested = [nested]
        envelope = unwrapped(envelope_of([nested]))

        assert envelope is not None
        assert envelope.display_args[0] is nested


class TestReading:
    def test_plain_values_are_what_they_are(self) -> None:
        assert received(None, True, 1, 1.5, "x", [1, [2]]) == ((None, True, 1, 1.5, "x", [1, [2]]), {})

    def test_hashes_of_every_kind_are_dicts(self) -> None:
        assert read({"a": {"b": 1, "_aj_symbol_keys": ["b"]}, "_aj_symbol_keys": []}) == {"a": {"b": 1}}
        assert read({"a": 1, "_aj_hash_with_indifferent_access": True}) == {"a": 1}
        assert read({"a": 1}) == {"a": 1}

    def test_symbols_are_text(self) -> None:
        assert read([SYMBOL]) == ["seconds"]

    def test_durations_are_timedeltas(self) -> None:
        parts = [[written("SymbolSerializer", value="days"), 1]]

        assert read(written("DurationSerializer", value=86_400, parts=parts)) == timedelta(days=1)
        assert read(written("DurationSerializer", value=0.5, parts=[])) == timedelta(seconds=0.5)

    def test_dates_and_times_are_dates_and_aware_datetimes(self) -> None:
        assert read(written("DateSerializer", value="2026-01-02")) == date(2026, 1, 2)
        expected = datetime(2026, 1, 2, 3, 4, 5, 123_456, timezone(timedelta(hours=-3)))
        for kind in ("Time", "DateTime", "TimeWithZone"):
            value = read(written(f"{kind}Serializer", value="2026-01-02T03:04:05.123456789-03:00", time_zone="Some"))
            assert value == expected
            assert value.utcoffset() == timedelta(hours=-3)
        assert read(written("TimeSerializer", value="2026-01-02T03:04:05Z")).utcoffset() == timedelta(0)

    def test_big_decimals_are_decimals(self) -> None:
        assert read(written("BigDecimalSerializer", value="0.15e1")) == Decimal("1.5")

    @pytest.mark.parametrize(
        ("argument", "reason"),
        [
            ({"_aj_globalid": "gid://shop/User/1"}, "is the GlobalID gid://shop/User/1, which only"),
            (written("ModuleSerializer", value="String"), "was written by ActiveJob::Serializers::ModuleSerializer"),
            (written("RangeSerializer", begin=1, end=2, exclude_end=False), "RangeSerializer, which has no equal"),
            ({"_aj_serialized": "MoneySerializer", "value": 1}, "was written by MoneySerializer"),
            ({"_aj_serialized": "TimeSerializer", "value": "2026-01-02T03:04:05Z"}, "was written by TimeSerializer"),
            ({"_aj_serialized": None}, "was written by None"),
            ({"_aj_serialized": ["x"]}, "was written by"),
            ({"_aj_new_thing": 1}, "has ActiveJob's key '_aj_new_thing'"),
            ({"_aj_globalid": "gid://shop/User/1", "more": 1}, "has ActiveJob's key '_aj_globalid'"),
            (written("TimeSerializer", value="soon"), "cannot be read"),
            (written("TimeSerializer", value="2026-01-02T03:04:05"), "has no time zone"),
            (written("TimeSerializer", value=7), "cannot be read"),
            (written("TimeSerializer"), "cannot be read"),
            (written("DateSerializer", value="+12026-01-02"), "cannot be read"),
            (written("DurationSerializer", value=True), "cannot be read"),
            (written("DurationSerializer", value=1e300), "cannot be read"),
            (written("BigDecimalSerializer", value="much"), "cannot be read"),
            (written("BigDecimalSerializer", value=1.5), "cannot be read"),
            (written("SymbolSerializer", value=7), "cannot be read"),
        ],
    )
    def test_what_python_cannot_mean_is_refused_with_its_place(self, argument: Any, reason: str) -> None:
        with pytest.raises(CannotDeserialize) as caught:
            read(["x", {"when": argument}])

        assert str(caught.value).startswith("arguments[0][1]['when'] ")
        assert reason in str(caught.value)

    @pytest.mark.parametrize("envelope", [None, [], "x", 7, {}, {"arguments": None}, {"arguments": {"a": 1}}])
    def test_what_is_no_envelope_is_refused(self, envelope: Any) -> None:
        with pytest.raises(CannotDeserialize, match="not an envelope"):
            run("SampleJob", inspect.signature(lambda: None), lambda: None, envelope)


class TestKeywords:
    KEYWORDS = {"b": 2, "c": [SYMBOL], "_aj_ruby2_keywords": ["b", "c"]}

    def call(self, perform: Callable[..., Any], *arguments: Any) -> Any:
        return run("SampleJob", inspect.signature(perform), perform, {"arguments": list(arguments)})

    def test_they_reach_parameters_by_name(self) -> None:
        assert self.call(lambda a, b, c: (a, b, c), 1, self.KEYWORDS) == (1, 2, ["seconds"])
        assert self.call(lambda a, *, c, b=7, d=8: (a, b, c, d), 1, self.KEYWORDS) == (1, 2, ["seconds"], 8)
        assert self.call(lambda **options: options, self.KEYWORDS) == {"b": 2, "c": ["seconds"]}

    def test_a_perform_that_knows_none_of_them_gets_a_dict(self) -> None:
        assert self.call(lambda a, options: (a, options), 1, self.KEYWORDS) == (1, {"b": 2, "c": ["seconds"]})
        assert self.call(lambda *all_of_them: all_of_them, self.KEYWORDS) == ({"b": 2, "c": ["seconds"]},)

    def test_no_keywords_are_no_argument(self) -> None:
        assert self.call(lambda a: a, 1, {"_aj_ruby2_keywords": []}) == 1

    def test_only_the_last_argument_can_be_keywords(self) -> None:
        assert self.call(lambda *args: args, self.KEYWORDS, 1) == ({"b": 2, "c": ["seconds"]}, 1)
        assert self.call(lambda *args: args, [self.KEYWORDS]) == ([{"b": 2, "c": ["seconds"]}],)

    def test_what_does_not_fit_is_refused_with_the_signature(self) -> None:
        with pytest.raises(MisfitArguments, match=r"SampleJob\(a, b\): missing a required argument: 'a'"):
            self.call(lambda a, b: None, {"b": 1, "_aj_ruby2_keywords": ["b"]})
        with pytest.raises(MisfitArguments, match="too many positional arguments"):
            self.call(lambda a: None, 1, 2)


class TestWriting:
    def written(self, *arguments: Any) -> Any:
        return enveloped("SampleJob", "low", arguments, 0.0)["arguments"]

    def test_the_envelope_has_what_activejob_writes(self) -> None:
        envelope = enveloped("SampleJob", "low", [1], 1_767_323_045.25)

        assert list(envelope) == [
            "job_class",
            "job_id",
            "provider_job_id",
            "queue_name",
            "priority",
            "arguments",
            "executions",
            "exception_executions",
            "locale",
            "timezone",
            "enqueued_at",
        ]
        assert (envelope["job_class"], envelope["queue_name"], envelope["arguments"]) == ("SampleJob", "low", [1])
        assert (envelope["executions"], envelope["exception_executions"]) == (0, {})
        assert envelope["enqueued_at"] == "2026-01-02T03:04:05.250000Z"

    def test_each_has_an_id_of_its_own(self) -> None:
        ids = {enveloped("SampleJob", "low", [], 0.0)["job_id"] for _ in range(100)}

        assert len(ids) == 100
        assert all(len(each) == 36 for each in ids)

    def test_dicts_are_hashes_whose_keys_are_text(self) -> None:
        assert self.written({"a": [{}]}) == [{"a": [{"_aj_symbol_keys": []}], "_aj_symbol_keys": []}]
        assert self.written(Keywords(b=1)) == [{"b": 1, "_aj_ruby2_keywords": ["b"]}]

    def test_types_that_json_lacks_are_objects(self) -> None:
        moment = datetime(2026, 1, 2, 3, 4, 5, 678, timezone(timedelta(hours=1)))

        assert self.written(moment) == [written("TimeSerializer", value="2026-01-02T03:04:05.000678+01:00")]
        assert self.written(date(2026, 1, 2)) == [written("DateSerializer", value="2026-01-02")]
        assert self.written(Decimal("1.50")) == [written("BigDecimalSerializer", value="1.50")]
        assert self.written(timedelta(minutes=1)) == [written("DurationSerializer", value=60, parts=[[SYMBOL, 60]])]
        assert self.written(timedelta(seconds=0.5))[0]["value"] == 0.5

    def test_an_offset_that_ruby_cannot_read_becomes_utc(self) -> None:
        moment = datetime(1890, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))

        assert self.written(moment) == [written("TimeSerializer", value="1889-12-31T23:06:32.000000+00:00")]

    def test_a_time_without_a_zone_is_refused(self) -> None:
        with pytest.raises(InvalidArguments, match="no time zone") as caught:
            self.written(1, {"when": [datetime(2026, 1, 2)]})  # noqa: DTZ001

        assert caught.value.path == "args[1]['when'][0]"

    def test_keys_that_mean_something_to_activejob_are_refused(self) -> None:
        with pytest.raises(InvalidArguments, match="_aj_ruby2_keywords"):
            self.written({"_aj_ruby2_keywords": []})

    def test_what_is_already_in_activejobs_form_travels_as_it_is(self) -> None:
        record, money = {"_aj_globalid": "gid://shop/User/1"}, {"_aj_serialized": "MoneySerializer", "amount": 7}

        assert self.written(record, [money]) == [record, [money]]

    def test_what_is_written_is_read_again(self) -> None:
        values = [
            {"a": [None, {"b": "é"}], "": 2**70},
            datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
            date(1, 1, 1),
            timedelta(days=-1, microseconds=1),
            Decimal("1E+400"),
            [1.5, True],
        ]

        envelope = decode(encode(enveloped("SampleJob", "low", [*values, Keywords(key=values)], 0.0)))

        assert received(*envelope["arguments"]) == (tuple(values), {"key": values})
