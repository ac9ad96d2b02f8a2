"""The payload: what may travel, what is read, and what Ruby's pages can show."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kiqcluster.errors import InvalidArguments, InvalidPush, MalformedPayload
from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.payload import (
    INVALID_PAYLOAD,
    MAX_NESTING,
    Jid,
    Stencil,
    are_plain,
    bare,
    build,
    check_arguments,
    check_queue_name,
    deferral_count,
    kept,
    new_jid,
    new_jids,
    read,
    seconds,
    wrap,
)

NOW = 1_795_168_740.5


def refuse(error: InvalidArguments) -> None:
    raise error


def refusal(arguments: object) -> InvalidArguments:
    """Return the error that arguments get in the mode `raise`."""
    with pytest.raises(InvalidArguments) as caught:
        check_arguments(arguments, refuse)
    return caught.value


def complaints(arguments: object) -> list[InvalidArguments]:
    """Return what the mode `warn` has to say."""
    heard: list[InvalidArguments] = []
    check_arguments(arguments, heard.append)
    return heard


def nested(levels: int, innermost: Any = 1) -> Any:
    """Return lists in lists, that many of them."""
    value = innermost
    for _ in range(levels):
        value = [value]
    return value


class Colour(IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Number(float):
    pass


@dataclass
class User:
    name: str


class TestArguments:
    @pytest.mark.parametrize(
        "arguments",
        [
            [],
            [None, True, False, 0, -1, 10**5_000, 1.5, -0.0, 1e300, "", "é\x00\U0001f600"],
            [{"a": {"b": [1, {"c": None}]}}, [[[]]], {}, {"": 1}],
        ],
    )
    def test_json_native_arguments_pass_in_every_mode(self, arguments: list[Any]) -> None:
        check_arguments(arguments, refuse)
        check_arguments(arguments, None)
        assert complaints(arguments) == []

    @pytest.mark.parametrize(
        ("arguments", "path"),
        [
            ([1, Decimal("1.5")], "args[1]"),
            ([[1, {"when": datetime.now(UTC)}]], "args[0][1]['when']"),
            ([{"a": [0, {"b": {1}}]}], "args[0]['a'][1]['b']"),
            ([{"a": {"it's": b"x"}}], "args[0]['a'][\"it's\"]"),
            (["fine", {"k": (1, 2)}], "args[1]['k']"),
            ([{"a": {1: "x"}}], "args[0]['a']"),
        ],
    )
    def test_the_path_leads_to_the_offending_value(self, arguments: list[Any], path: str) -> None:
        error = refusal(arguments)

        assert error.path == path
        assert str(error).startswith(path)

    @pytest.mark.parametrize(
        ("value", "remedy"),
        [
            (datetime(2026, 11, 20, tzinfo=UTC), "value.isoformat()"),
            (date(2026, 11, 20), "value.isoformat()"),
            (time(10, 30), "value.isoformat()"),
            (timedelta(seconds=3), "value.total_seconds()"),
            (UUID(int=1), "str(value)"),
            (Decimal("1.50"), "Decimal(text) in the job"),
            (b"raw", "base64.b64encode"),
            ((1, 2), "list(value)"),
            ({1, 2}, "sorted(value)"),
            (frozenset({1}), "sorted(value)"),
            (Path("x"), "str(value)"),
            (User("ann"), "dataclasses.asdict(value)"),
            (object(), "by their id"),
        ],
    )
    def test_the_error_names_the_conversion_to_use(self, value: object, remedy: str) -> None:
        error = refusal([value])

        assert remedy in str(error)
        assert f"is of type {type(value).__module__}.{type(value).__qualname__},".replace("builtins.", "") in str(error)

    @pytest.mark.parametrize("value", [Colour.RED, Text("x"), Number(1.5), OrderedDict(a=1), type("L", (list,), {})()])
    def test_subclasses_of_native_types_are_complained_of_for_they_come_back_as_something_else(
        self, value: Any
    ) -> None:
        assert [error.path for error in complaints([value])] == ["args[0]"]

    def test_warning_hears_of_every_offending_value_and_raises_nothing(self) -> None:
        heard = complaints([UUID(int=1), 2, [Decimal(1)], {"a": {1: b""}}])

        assert [error.path for error in heard] == ["args[0]", "args[2][0]", "args[3]['a']", "args[3]['a'][1]"]

    def test_off_lets_them_pass(self) -> None:
        arguments = [UUID(int=1), {1: Decimal(1)}, (1,)]
        assert len(complaints(arguments)) > 0

        check_arguments(arguments, None)

    @pytest.mark.parametrize("complain", [refuse, lambda error: None, None], ids=["raise", "warn", "off"])
    @pytest.mark.parametrize(
        ("value", "path"),
        [
            (float("nan"), "args[1]"),
            (float("inf"), "args[1]"),
            (float("-inf"), "args[1]"),
            (Number("nan"), "args[1]"),
            ([1, {"x": float("nan")}], "args[1][1]['x']"),
            ("x\ud800", "args[1]"),
            ({"\udfff": 1}, "args[1]"),
            ({"a": ["\ud83d"]}, "args[1]['a'][0]"),
        ],
    )
    def test_what_redis_must_never_see_raises_in_every_mode(self, value: object, path: str, complain: Any) -> None:
        with pytest.raises(InvalidArguments) as caught:
            check_arguments([1, value], complain)

        assert caught.value.path == path

    @pytest.mark.parametrize("value", [(float("nan"),), ("\ud800",), {float("inf")}, [((1, float("nan")),)]])
    def test_it_raises_inside_of_tuples_and_sets_too(self, value: object) -> None:
        with pytest.raises(InvalidArguments):
            check_arguments([value], None)

    @pytest.mark.parametrize("arguments", [None, (), "ab", {"a": 1}, 5, type("L", (list,), {})([1]), iter([])])
    def test_arguments_are_a_list(self, arguments: object) -> None:
        assert refusal(arguments).path is None

    def test_a_payload_may_be_99_levels_deep_and_no_deeper(self) -> None:
        deepest = [nested(MAX_NESTING - 2)]  # the payload is the first level, its args the second

        check_arguments(deepest, refuse)
        for complain in (refuse, None):
            with pytest.raises(InvalidArguments, match="99 levels"):
                check_arguments([nested(MAX_NESTING - 1)], complain)

    def test_objects_count_as_levels_like_lists(self) -> None:
        value: Any = {}
        for _ in range(MAX_NESTING - 2):
            value = {"a": value}

        assert "99 levels" in str(refusal([value]))
        check_arguments([value["a"]], refuse)

    def test_a_list_that_holds_itself_is_refused(self) -> None:
        endless: list[Any] = []
        endless.append(endless)

        assert "99 levels" in str(refusal([endless]))


@pytest.mark.parametrize("value", [1.5, float("nan"), [], [1], {}, (1,), b"x", Decimal(1), IntEnum("N", "a")(1)])
def test_what_has_to_be_looked_at_is_not_plain(value: object) -> None:
    assert are_plain([[], [1, "x", None, True]])
    assert not are_plain([[1], ["x", value], []])


class TestNames:
    @pytest.mark.parametrize("name", ["default", "cronjob:nightly", "a.b-c_d", "ünïcode", "a/b", "mails!"])
    def test_printable_names_are_queue_names(self, name: str) -> None:
        assert check_queue_name(name) == name

    @pytest.mark.parametrize("name", ["", None, 5, b"default", ["default"], "a\nb", "a\x00", "\x7f", "a\u2028b"])
    def test_everything_else_is_refused(self, name: object) -> None:
        with pytest.raises(InvalidPush, match="queue name"):
            check_queue_name(name)

    @pytest.mark.parametrize("name", ["with space", " a", "a,b", "a=5", "*", "cronjob:*", "a\tb", "a\u00a0b"])
    def test_what_no_queue_group_can_name_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidPush, match="queue name"):
            check_queue_name(name)

    def test_a_jid_is_24_lowercase_hex_digits_and_never_the_same(self) -> None:
        jids = {new_jid() for _ in range(1_000)}

        assert len(jids) == 1_000
        assert all(len(jid) == 24 and set(jid) <= set("0123456789abcdef") for jid in jids)

    @pytest.mark.parametrize("count", [0, 1, 1_000])
    def test_so_are_many_that_are_made_at_once(self, count: int) -> None:
        jids = new_jids(count)

        assert len(set(jids)) == len(jids) == count
        assert all(len(jid) == 24 and set(jid) <= set("0123456789abcdef") for jid in jids)


def test_a_payload_is_built_in_rubys_order() -> None:
    payload = build("OkJob", [1], {"retry": True, "queue": "default", "tags": ["a"]}, Jid("0" * 24), NOW)

    assert list(payload) == ["retry", "queue", "tags", "args", "class", "jid", "created_at"]


@pytest.mark.parametrize("options", [{}, {"retry": 5, "queue": "a:é", "tags": ["x"], "custom": {"n": 1e20}}])
def test_a_stencil_leaves_the_bytes_that_an_encoder_would_make_of_the_payload(options: dict[str, Any]) -> None:
    jid, name = Jid("0123456789abcdef01234567"), 'Acme::"Mäil"\\'

    filled = Stencil(name, options, NOW).fill([b"[1]", b"[]"], [jid, jid], [None, NOW + 60])

    due, scheduled = (build(name, arguments, options, jid, NOW) for arguments in ([1], []))
    assert filled == [ruby_json.encode({**due, "enqueued_at": NOW}), ruby_json.encode(scheduled)]


class TestRead:
    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (b"\xff\xfe", "not JSON"),
            (b"", "not JSON"),
            (b"{", "not JSON"),
            (b'{"class":"X","args":[NaN]}', "not JSON"),
            (b"123", "no object: int"),
            (b"null", "no object: NoneType"),
            (b"[]", "no object: list"),
            (b'"x"', "no object: str"),
            (b"{}", "no class"),
            (b'{"class":null}', "no class"),
            (b'{"class":""}', "no class"),
            (b'{"class":5}', "no class"),
            (b'{"class":{"name":"X"}}', "no class"),
        ],
    )
    def test_what_is_no_job_is_malformed_with_its_reason(self, raw: bytes, reason: str) -> None:
        with pytest.raises(MalformedPayload, match=reason):
            read(raw)

    def test_the_rest_is_left_to_whoever_runs_it(self) -> None:
        assert read(b'{"class":"X","args":null,"odd":[1]}') == {"class": "X", "args": None, "odd": [1]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1795168740.1958468, 1795168740.1958468),  # Sidekiq up to 7
        (1_795_168_815_271, 1795168815.271),  # Sidekiq 8
        (1_795_168_740, 1795168740.0),  # a foreign client
        (1_795_168_815_271.0, 1795168815.271),
        (1, 1.0),
        (0, None),
        (-5, None),
        (True, None),
        (False, None),
        (None, None),
        ("1795168740.19", None),
        ("2026-11-20T00:00:00Z", None),
        ([], None),
        (1e14, None),
        (10**400, None),
        (float("inf"), None),
        (float("nan"), None),
    ],
)
def test_a_time_of_any_sidekiq_is_read_as_seconds(value: Any, expected: float | None) -> None:
    assert seconds(value) == expected


class TestWrap:
    @pytest.mark.parametrize("raw", [b"", b"{", b"123", b"\xff\xfe\x00", "é".encode(), b'{"class":5}', b"\x00" * 10])
    def test_bytes_that_are_no_job_are_kept_and_come_back(self, raw: bytes) -> None:
        assert bare(wrap(raw, "mails", MalformedPayload("not JSON"), NOW)) == raw

    def test_the_entry_says_why(self) -> None:
        entry = ruby_json.decode(wrap(b"\xff", "mails", MalformedPayload("it is no JSON"), NOW))

        assert entry["class"] == INVALID_PAYLOAD
        assert entry["queue"] == "mails"
        assert (entry["error_class"], entry["error_message"]) == ("kiqcluster.errors.MalformedPayload", "it is no JSON")
        assert (entry["failed_at"], entry["retry_count"], entry["retry"]) == (NOW, 0, 0)
        assert entry["retry"] is not False

    def test_what_is_kept_twice_is_kept_once(self) -> None:
        once = wrap(b"123", "mails", MalformedPayload("no object"), NOW)

        assert ruby_json.decode(wrap(once, "mails", MalformedPayload("no object"), NOW))["args"] == ["123"]

    def test_a_job_in_it_is_read_and_bytes_that_are_none_say_why(self) -> None:
        assert read(kept(b'{"class":"X","args":[1]}', {})) == {"class": "X", "args": [1]}
        with pytest.raises(MalformedPayload, match="no object"):
            read(kept(b"123", {}))

    @pytest.mark.parametrize(
        "payload",
        [
            {"class": "X", "args": ["x"]},
            {"class": INVALID_PAYLOAD, "args": ['{"class":"X","args":[]}']},
            {"class": INVALID_PAYLOAD, "args": [{"kiq_wrapped": "text"}]},
            {"class": INVALID_PAYLOAD, "args": ['"kiq_wrapped":"text"']},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "text"},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "text", "args": []},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "text", "args": ["a", "b"]},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "text", "args": [5]},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "text", "args": {"0": "a"}},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "base64", "args": ["a"]},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": "base64", "args": ["é"]},
            {"class": INVALID_PAYLOAD, "kiq_wrapped": True, "args": ["a"]},
        ],
    )
    def test_nothing_else_keeps_other_bytes(self, payload: dict[str, Any]) -> None:
        raw = ruby_json.encode(payload)

        assert bare(raw) is raw
        assert read(raw) == payload


class TestDeferralCount:
    @pytest.mark.parametrize(
        ("by", "stored", "count"),
        [("version", 3, 3), ("policy", 3, 0), (None, 3, 0), ("version", True, 0), ("version", -1, 0), (["x"], 3, 0)],
    )
    def test_only_deferrals_of_the_same_reason_count(self, by: Any, stored: Any, count: int) -> None:
        assert deferral_count({"deferred_by": by, "deferred_count": stored}, "version") == count

    def test_a_job_that_has_begun_since_goes_on_counting_where_that_is_asked(self) -> None:
        assert deferral_count({"deferred_count": 3}, "unknown_class", None) == 3
        assert deferral_count({}, "unknown_class", None) == 0
