"""JSON as Ruby prints it.  The expectations are what Ruby 3.1.2 printed for the same values."""

from __future__ import annotations

import datetime
import json
import struct
import sys
from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_float import json_float
from kiqcluster.sidekiq.ruby_json import Undecodable, decode, encode, encode_arrays, patch, ruby_float
from tests.kit import ROOT

RUBY_PRINTS = [
    (0.0, "0.0"),
    (-0.0, "-0.0"),
    (1.0, "1.0"),
    (-1.5, "-1.5"),
    (0.1, "0.1"),
    (0.30000000000000004, "0.30000000000000004"),
    (100.0, "100.0"),
    (1795168740.1958468, "1795168740.1958468"),
    (123456789012345.6, "123456789012345.6"),
    (1e14, "100000000000000.0"),
    (99999999999999.98, "99999999999999.98"),
    (999999999999999.9, "999999999999999.9"),
    (999999999999999.0, "999999999999999.0"),
    (1e15, "1.0e+15"),
    (1000000000000001.0, "1.000000000000001e+15"),
    (1234567890123456.7, "1234567890123456.8"),
    (9007199254740993.0, "9.007199254740992e+15"),
    (9999999999999998.0, "9.999999999999998e+15"),
    (1e16, "1.0e+16"),
    (1.2e16, "1.2e+16"),
    (12345678901234567.0, "1.2345678901234568e+16"),
    (123456789012345680.0, "1.2345678901234568e+17"),
    (1e17, "1.0e+17"),
    (1e20, "1.0e+20"),
    (1e21, "1.0e+21"),
    (1e22, "1.0e+22"),
    (-1e20, "-1.0e+20"),
    (1.5e300, "1.5e+300"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (0.001, "0.001"),
    (0.0012, "0.0012"),
    (0.0001, "0.0001"),
    (0.00012345, "0.00012345"),
    (9.9e-5, "9.9e-05"),
    (0.00009999999999999999, "9.999999999999999e-05"),
    (1e-5, "1.0e-05"),
    (-1e-5, "-1.0e-05"),
    (1.5e-7, "1.5e-07"),
    (1e-10, "1.0e-10"),
    (2.2250738585072014e-308, "2.2250738585072014e-308"),
    (5e-324, "5.0e-324"),
    (4.35e100, "4.35e+100"),
    (1e100, "1.0e+100"),
    (1e99, "1.0e+99"),
]


@pytest.mark.parametrize(("number", "printed"), RUBY_PRINTS)
def test_a_float_is_printed_as_ruby_prints_it(number: float, printed: str) -> None:
    assert ruby_float(number) == printed


@pytest.mark.parametrize(("number", "printed"), RUBY_PRINTS)
def test_a_float_has_that_form_wherever_it_stands_in_a_payload(number: float, printed: str, of_json_2_6: None) -> None:
    expected = f'[{printed},{{"a":{printed},"b":[1,{printed}]}}]'.encode()

    assert encode([number, {"a": number, "b": [1, number]}]) == expected


@pytest.fixture
def of_json_2_6() -> Iterator[None]:
    ruby_json.write_floats_as("2.6")
    yield
    ruby_json.write_floats_as("2.12")


GOLDEN_FLOATS = json.loads((ROOT / "tests" / "golden" / "floats.json").read_text())["floats"]


@pytest.mark.parametrize("version", ["2.6", "2.12"])
def test_both_forms_are_those_of_real_ruby_for_thousands_of_floats(version: str, of_json_2_6: None) -> None:
    ruby_json.write_floats_as(version)
    column = 1 if version == "2.6" else 2
    wrong = []
    for row in GOLDEN_FLOATS:
        (number,) = struct.unpack(">d", bytes.fromhex(row[0]))
        printed = row[column]
        if (
            encode([number, {"a": number}]) != f'[{printed},{{"a":{printed}}}]'.encode()
            or decode(encode(number)) != number
        ):
            wrong.append(row)

    assert len(GOLDEN_FLOATS) > 11_000
    assert wrong == []


@given(st.decimals(min_value=-10_000_000_000, max_value=10_000_000_000, places=3).map(float))
def test_a_float_of_few_digits_is_printed_alike_by_every_json_and_by_msgspec(number: float) -> None:
    assert json_float(number) == ruby_float(number) == json.dumps(number)


def test_only_quote_backslash_and_control_characters_are_escaped() -> None:
    text = '\x00\x1f\x7f\u2028é/"\\\b\f\n\r\t\U0001f600'

    assert encode(text) == '"\\u0000\\u001f\x7f\u2028é/\\"\\\\\\b\\f\\n\\r\\t\U0001f600"'.encode()


def test_the_slow_path_writes_everything_else_like_the_fast_one() -> None:
    value = {"a": [None, True, False, 1, -2, 1.5, "é\n", {}, []], "b": {"c": {"d": "x"}}}
    fast = encode(value)

    slow = encode({**value, "extreme": 1e16})

    assert slow == fast[:-1] + b',"extreme":1e+16}'


def test_text_that_looks_like_an_extreme_number_stays_text() -> None:
    assert encode(["[1e16,0.00001", ":1e-7"]) == b'["[1e16,0.00001",":1e-7"]'


@pytest.mark.parametrize("digits", [19, 20, 4_299, 4_300, 4_301, 9_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integers_of_any_size_survive(digits: int, sign: int) -> None:
    number = sign * (10**digits - 1)

    encoded = encode({"args": [number]})

    assert encoded == b'{"args":[' + (b"-" if sign < 0 else b"") + b"9" * digits + b"]}"
    assert decode(encoded) == {"args": [number]}


def test_integers_and_floats_keep_their_kind() -> None:
    decoded = decode(encode([1, 1.0, 10**20, 1e20, -0.0]))

    assert [type(each) for each in decoded] == [int, float, int, float, float]


def test_half_a_surrogate_pair_is_written_as_an_escape_and_comes_back() -> None:
    value = {"args": ["\ud800", "x\udfffy"], "\udc00": "é"}

    encoded = encode(value)

    assert b"\\ud800" in encoded
    assert decode(encoded) == value


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"nul",
        b"[1,]",
        b'{"a":1,}',
        b"{'a':1}",
        b"[NaN]",
        b"[Infinity]",
        b"[-Infinity]",
        b"\xff",
        b'"\xff"',
        b"[1] x",
        b"\xef\xbb\xbf[1]",
        b"[" * 100000,
        b"[01]",
        b'"\n"',
    ],
)
def test_what_is_no_json_is_undecodable(raw: bytes) -> None:
    with pytest.raises(Undecodable, match=r"\w+: "):
        decode(raw)


def test_everyday_arrays_are_written_at_once() -> None:
    arrays = [[], [1, "a\nb"], [1.5, 10**18, None], [{"a": ["é"]}]]

    assert encode_arrays(arrays) == [b"[]", b'[1,"a\\nb"]', b"[1.5,1000000000000000000,null]", '[{"a":["é"]}]'.encode()]


def test_arrays_with_floats_that_ruby_prints_otherwise_are_written_at_once_in_its_form() -> None:
    assert encode_arrays([[1e16], ["[0.00001"], [1e-5]]) == [b"[1e+16]", b'["[0.00001"]', b"[0.00001]"]


def test_arrays_are_not_written_at_once_when_one_holds_what_takes_a_closer_look() -> None:
    for value in (10**5_000, "\ud800", object(), msgspec.Raw(b"[1,\n2]")):
        assert encode_arrays([[1], [value], [2]]) is None


def test_values_of_other_libraries_are_written_alike_with_and_without_extreme_floats() -> None:
    day = datetime.date(2026, 11, 20)

    assert encode([day]) == b'["2026-11-20"]'
    assert encode([day, 1e16]) == b'["2026-11-20",1e+16]'


@pytest.mark.parametrize("value", [object(), {1e16: object()}, [{(1, 2): 1e16}]])
def test_what_json_cannot_hold_raises(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        encode(value)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_no_float_beyond_json_is_printed_as_a_number(number: float) -> None:
    with pytest.raises(ValueError, match="not a JSON number"):
        encode(number)
    assert encode([number]) == b"[null]"
    assert encode([number, 1e16]) == b"[null,1e+16]"


class TestPatch:
    def test_values_that_are_not_named_keep_their_bytes(self) -> None:
        raw = b'{"a": 1.50, "b":[1E5 , "\\u00e9\\/"],"c":{"x":1.0e+16},"d":12345678901234567890123}'

        patched = patch(raw, {"e": 1e20})

        assert patched == (
            b'{"a":1.50,"b":[1E5 , "\\u00e9\\/"],"c":{"x":1.0e+16},"d":12345678901234567890123,"e":1e+20}'
        )

    @pytest.mark.parametrize("odd", [b'"\\ud800"', b"1e400", b"1" * 5_000])
    def test_they_keep_them_beside_a_value_that_the_fast_parser_refuses(self, odd: bytes) -> None:
        raw = b' {"a" : 1.50 , "odd":' + odd + b', "b":[1E5 , "\\u00e9\\/"] } '

        patched = patch(raw, {"a": 2, "c": "x"})

        assert patched == b'{"a":2,"odd":' + odd + b',"b":[1E5 , "\\u00e9\\/"],"c":"x"}'

    def test_a_key_is_replaced_in_its_place_and_a_new_one_comes_last(self) -> None:
        assert patch(b'{"a":1,"b":2}', {"c": 3, "a": 4}) == b'{"a":4,"b":2,"c":3}'

    def test_keys_can_be_left_out_whether_they_are_there_or_not(self) -> None:
        assert patch(b'{"a":1,"b":2}', {}, ["a", "z"]) == b'{"b":2}'

    def test_a_key_that_is_left_out_and_given_is_given(self) -> None:
        assert patch(b'{"a":1,"b":2}', {"a": 3}, ["a"]) == b'{"b":2,"a":3}'

    def test_a_key_that_comes_twice_stays_so_until_it_is_replaced_or_left_out(self) -> None:
        twice = b'{"a":1,"b":2,"a":3}'

        assert patch(twice, {"c": 4}) == b'{"a":1,"b":2,"a":3,"c":4}'
        assert patch(twice, {"a": 4}) == b'{"a":4,"b":2}'
        assert patch(twice, {}, ["a"]) == b'{"b":2}'
        assert patch(twice, {"a": 4}, ["a"]) == b'{"b":2,"a":4}'

    def test_the_name_of_a_key_keeps_its_spelling(self) -> None:
        assert (
            patch(b'{"\\u0061":1,"\xc3\xa9":2, "\\u00e9x":3}', {"a": 4}) == b'{"\\u0061":4,"\xc3\xa9":2,"\\u00e9x":3}'
        )

    def test_a_key_with_half_a_surrogate_pair_stays(self) -> None:
        assert patch(b'{"\\ud800":1.50,"a":2}', {"b": 3}) == b'{"\\ud800":1.50,"a":2,"b":3}'

    @pytest.mark.parametrize("raw", [b"[]", b"null", b"1", b'"x"', b"", b"{", b'{"a":NaN}', b'{"a":1} x', b"\xff"])
    def test_what_is_no_object_is_undecodable(self, raw: bytes) -> None:
        with pytest.raises(Undecodable):
            patch(raw, {"a": 1})

    def test_nothing_to_change_leaves_a_compact_object_as_it_is(self) -> None:
        raw = (
            b'{"retry":true,"queue":"default","args":[1,"x",{"a":1.5}],"class":"OkJob","created_at":1795168740.1958468}'
        )

        assert patch(raw, {}) == raw


def test_the_digit_limit_is_that_of_the_interpreter() -> None:
    assert sys.int_info.default_max_str_digits == ruby_json.MAX_INT_DIGITS


def test_keys_that_are_numbers_become_text_beside_extreme_floats_too() -> None:
    assert ruby_json.encode({"args": [{5: 1}], "custom": 1e16}) == b'{"args":[{"5":1}],"custom":1e+16}'


@pytest.mark.parametrize("key", [5, 1.5, "a"])
def test_a_key_is_written_alike_beside_an_integer_that_only_the_slow_encoder_takes(key: object) -> None:
    plain, huge = ruby_json.encode({"args": {key: 1}}), ruby_json.encode({"args": {key: 1}, "big": 10**5_000})

    assert huge.startswith(plain[:-1])
