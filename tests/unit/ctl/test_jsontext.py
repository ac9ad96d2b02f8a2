"""JSON in one line: every parser reads it, and no terminal obeys it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiqcluster.ctl.text.options import Output
from kiqcluster.ctl.text.tables import ascii_only, json_line

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(SCALARS, lambda each: st.lists(each) | st.dictionaries(st.text(), each), max_leaves=20)


@given(VALUES)
def test_it_says_what_it_was_given_and_is_printable(value: object) -> None:
    line = json_line(value)

    assert json.loads(line) == value
    assert line.isprintable()
    assert json.loads(ascii_only(line)) == value
    assert ascii_only(line).isascii()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_what_no_json_has_is_null(value: float) -> None:
    assert json.loads(json_line({"a": [value, 1.5]})) == {"a": [None, 1.5]}


def test_an_integer_keeps_all_of_its_digits() -> None:
    assert json_line(["é", 10**5_000]) == '["é",1' + "0" * 5_000 + "]"


def test_half_a_surrogate_pair_beside_what_is_extreme_is_an_escape() -> None:
    assert json.loads(json_line(["\ud800", float("inf")])) == ["\ud800", None]


def test_what_is_nested_too_deep_is_said_to_be() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]

    assert json.loads(json_line(value)) == "(nested too deep)"


def test_a_document_that_takes_long_is_made_only_for_those_who_want_it(capsys: pytest.CaptureFixture[str]) -> None:
    made = []

    for as_json in (False, True):
        Output(as_json=as_json).document(lambda: made.append(1) or {"a": made})  # type: ignore[func-returns-value]

    assert capsys.readouterr().out.strip() == '{"a": [1]}'
