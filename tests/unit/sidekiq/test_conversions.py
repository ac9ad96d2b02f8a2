"""Conversions: the call that an error names for a value that a job cannot be given."""

from __future__ import annotations

import array
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum, StrEnum
from fractions import Fraction
from ipaddress import ip_address, ip_network
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec
import pytest
from markupsafe import Markup

from kiqcluster.sidekiq.conversions import DEFAULT_ADVICE, conversion, key_conversion

Colour = Enum("Colour", {"RED": "red"})
Level = IntEnum("Level", {"LOW": 1})
Word = StrEnum("Word", {"YES": "yes"})
Point = namedtuple("Point", "x y")  # the plain form


@dataclass
class Order:
    id: int


class Model:
    """Looks like pydantic's."""

    def model_dump(self) -> dict[str, Any]:
        return {}


class Row:
    """Looks like a model of Django's."""

    _meta = pk = None


class Struct(msgspec.Struct):
    id: int


class Array:
    """Looks like numpy's; its scalars have no dimensions."""

    def __init__(self, ndim: int) -> None:
        self.ndim = ndim

    def tolist(self) -> Any: ...

    def item(self) -> Any: ...


class SafeString(str):
    """Like that of Django: as text, it is itself."""

    def __str__(self) -> str:
        return self


class Number(float):
    pass


class Count(int):
    pass


class Names(list[str]):
    pass


class Timestamp(datetime):
    """Like that of pandas."""


@pytest.mark.parametrize(
    ("value", "remedy"),
    [
        (Colour.RED, "value.value"),  # type: ignore[attr-defined]
        (Colour.RED, "Colour(…) in the job"),  # type: ignore[attr-defined]
        (Level.LOW, "value.value"),  # type: ignore[attr-defined]
        (Word.YES, "value.value"),  # type: ignore[attr-defined]
        (Order(1), "dataclasses.asdict(value)"),
        (Order(1), "Order(**fields) in the job"),
        (Model(), "value.model_dump(mode="),
        (Struct(1), "msgspec.to_builtins(value)"),
        (Array(0), "value.item()"),
        (Array(1), "value.tolist()"),
        (Row(), "value.pk"),
        (Timestamp(2026, 11, 20, tzinfo=UTC), "value.isoformat()"),
        (Point(1, 2), "value._asdict()"),
        (PurePosixPath("x"), "str(value)"),
        (PureWindowsPath("x"), "str(value)"),
        (ip_address("::1"), "str(value)"),
        (ip_network("10.0.0.0/8"), "str(value)"),
        (Fraction(1, 3), "Fraction(text) in the job"),
        (deque([1]), "list(value)"),
        (range(3), "list(value)"),
        ({}.keys(), "list(value)"),
        ((each for each in "ab"), "list(value)"),
        (OrderedDict(a=1), "dict(value)"),
        (bytearray(b"x"), "base64"),
        (ValueError("x"), "str(value)"),
        (conversion, "its name"),
        (Order, "its name"),
        (array.array("b"), DEFAULT_ADVICE),
        (object(), DEFAULT_ADVICE),
    ],
)
def test_the_call_that_helps_is_named(value: object, remedy: str) -> None:
    assert remedy in conversion(value)


@pytest.mark.parametrize(
    ("value", "is_named"),
    [(Order(1), True), (Struct(1), True), (Point(1, 2), True), (Row(), False), (Array(1), False), (object(), False)],
)
def test_the_annotation_is_named_where_it_would_convert_the_value(value: object, is_named: bool) -> None:
    assert ("annotation of perform" in conversion(value)) is is_named


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (SafeString("<b>"), str),
        (Markup("<b>"), str),
        (Number(1.5), float),
        (Count(1), int),
        (Names("a"), list),
        (OrderedDict(a=1), dict),
    ],
)
def test_the_call_for_a_subclass_of_what_json_has_makes_a_plain_value(value: Any, kind: type) -> None:
    made = eval(conversion(value).removeprefix("pass "), {"value": value})

    assert made == value
    assert type(made) is kind


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        (1, "JSON keys are strings: pass str(1)"),
        (SafeString("x"), "test_conversions.SafeString, and JSON keys are plain text: pass str.__str__(value)"),
        (Word.YES, "Word, and JSON keys are plain text: pass value.value"),  # type: ignore[attr-defined]
    ],
)
def test_the_call_for_a_key_is_named(key: object, advice: str) -> None:
    assert advice in key_conversion(key)


def test_no_method_of_the_value_is_called() -> None:
    class Touchy:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(name)

    assert conversion(Touchy()) == DEFAULT_ADVICE
