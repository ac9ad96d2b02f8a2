"""Limits of JSON count what decoding costs: values and digits, not bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kiqcluster.sidekiq.ruby_json import MAX_LONG_DIGITS, Undecodable, decode, encode, has_more_values

TEXTS = some.text(some.sampled_from('a,:[]{}"\\\n é'), max_size=5)
VALUES = some.recursive(
    some.none() | some.integers() | TEXTS,
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


def counted(value: Any) -> int:
    if isinstance(value, list | dict):
        return 1 + (sum(map(counted, value.values() if isinstance(value, dict) else value)) or 1)
    return 1


@given(VALUES, some.sampled_from([None, 2]))
def test_values_are_counted_and_what_texts_hold_is_not(value: Any, indent: int | None) -> None:
    raw, count = json.dumps([value], indent=indent).encode(), counted([value])

    assert has_more_values(raw, count - 1)
    assert not has_more_values(raw, count)


def test_long_integers_may_take_so_much_time_together() -> None:
    half = b"9" * (MAX_LONG_DIGITS // 2)

    assert len(decode(b"[" + b",".join([half] * 4) + b"]")) == 4
    assert len(decode(b"[" + half + half + b"]")) == 1
    with pytest.raises(Undecodable, match="digits"):
        decode(b"[" + b",".join([half] * 5) + b"]")
    with pytest.raises(Undecodable, match="digits"):
        decode(b"[" + half + half + b"9]")
    assert len(decode(b"[" + b",".join([b"9" * 4_000] * 50) + b"]")) == 50  # these are read in no time


def test_no_integer_is_written_that_could_not_be_read_again() -> None:
    with pytest.raises(ValueError, match="digits"):
        encode({"args": [10**MAX_LONG_DIGITS]})
