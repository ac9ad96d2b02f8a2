"""Laws of the JSON that goes to Redis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kiqcluster.sidekiq import ruby_json
from kiqcluster.sidekiq.ruby_float import json_float
from kiqcluster.sidekiq.ruby_json import decode, encode, encode_arrays, patch, ruby_float

floats = st.floats(allow_nan=False, allow_infinity=False)
any_text = st.text(alphabet=st.characters(codec=None, exclude_categories=()), max_size=10)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | floats | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=20,
)


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal in value, kind and order: 1 is not 1.0, 0.0 is not -0.0."""
    return repr(one) == repr(other)


@given(values)
def test_what_is_written_comes_back(value: Any) -> None:
    assert same(decode(encode(value)), value)


@given(values)
def test_what_is_written_is_json_to_others(value: Any) -> None:
    assert same(json.loads(encode(value)), value)


@given(values)
def test_what_was_read_is_written_with_the_same_bytes(value: Any) -> None:
    encoded = encode(value)

    assert encode(decode(encoded)) == encoded


extreme = st.floats(1e14, 1e18) | st.floats(-1e18, -1e14) | st.floats(1e-7, 1e-3) | st.sampled_from([1e15, 1e16, 1e-4])
around_extremes = st.recursive(
    floats | extreme | st.integers() | st.sampled_from(["1e5", ":1e5", "[-0.00001", "1234567890123456.0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("e1:[,", max_size=4), inner, max_size=4),
    max_leaves=8,
)


@given(values | around_extremes)
def test_the_quick_way_writes_what_the_careful_one_does(value: Any) -> None:
    assert encode(value) == ruby_json._encode_slowly(value).encode()


@given(st.lists(st.lists(values | around_extremes, max_size=4), max_size=6))
def test_arrays_are_written_at_once_as_one_by_one_or_not_at_all(arrays: list[list[Any]]) -> None:
    assert encode_arrays(arrays) in (None, [encode(array) for array in arrays])


@given(floats)
def test_rubys_forms_of_a_float_are_that_float(number: float) -> None:
    assert same(float(ruby_float(number)), number)
    assert same(float(json_float(number)), number)


@settings(max_examples=30)
@given(st.integers(min_value=1_000, max_value=6_000), st.booleans(), st.integers(0, 10**9))
def test_integers_survive_at_any_length(digits: int, is_negative: bool, salt: int) -> None:
    number = (-1 if is_negative else 1) * (10**digits + salt)

    assert decode(encode([number])) == [number]


@given(st.dictionaries(any_text, values, max_size=5), st.dictionaries(any_text, values, max_size=3), any_text)
def test_a_patch_is_what_a_dict_would_do(before: dict[str, Any], changes: dict[str, Any], left_out: str) -> None:
    patched = patch(encode(before), changes, [left_out])

    expected = {**{key: value for key, value in before.items() if key != left_out}, **changes}
    assert same(decode(patched), expected)
    assert patched == encode(expected)
