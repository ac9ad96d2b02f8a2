"""Losses: a model whose JSON does not hold all of it is refused, and one whose JSON does is taken."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from typing import Any
from zoneinfo import ZoneInfo

import pydantic
import pytest
from typing_extensions import TypeAliasType

from kiqcluster.application.annotations import needs_of
from kiqcluster.application.converters import Converter, Misfit, converter_of
from kiqcluster.application.losses import first_loss


def converter(annotation: Any) -> Converter:
    return converter_of(annotation, "it", needs_of(annotation, "it"))


class Colour(Enum):
    RED = "red"


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class Base(pydantic.BaseModel):
    a: int


class Child(Base):
    b: int


class Held(pydantic.BaseModel):
    inner: Base
    others: list[Base] = []
    by_name: dict[str, Base] = {}


class Hidden(pydantic.BaseModel):
    a: int
    secret: str = pydantic.Field(default="default", exclude=True)


class Entity(Hidden):
    """Equal to another one of the same number."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Entity) and self.a == other.a

    __hash__ = None  # type: ignore[assignment]


class Counting(pydantic.BaseModel):
    n: int = 0

    def model_post_init(self, _: Any) -> None:
        self.n += 1


class Private(pydantic.BaseModel):
    a: int
    _note: str = pydantic.PrivateAttr(default="")
    _lock: Any = pydantic.PrivateAttr(default_factory=threading.Lock)


class Encoded(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_bytes="base64")

    data: bytes


class Rounded(pydantic.BaseModel):
    amount: float

    @pydantic.field_serializer("amount")
    def in_cents(self, amount: float) -> float:
        return round(amount, 2)


class Kept(pydantic.BaseModel):
    at: set[date] = pydantic.Field(default=set(), exclude=True)


class Either(pydantic.BaseModel):
    value: str | date


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    data: dict[str, Any] = {}


Data = TypeAliasType("Data", "dict[str, Any]")


class Aliased(pydantic.BaseModel):
    data: Data


class Told(pydantic.BaseModel):
    at: datetime


class Odd:
    """A class without `==`, which goes through JSON as text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"  # in the name of a test, which each process of pytest makes


class Array(Odd):
    """A class whose `==` compares each element, as those of numpy do."""

    def __eq__(self, other: object) -> Any:
        return NoTruth()

    __hash__ = None  # type: ignore[assignment]


class NoTruth:
    def __bool__(self) -> bool:
        raise ValueError("the truth of an array is ambiguous")


class WithOdd(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    odd: Odd

    @pydantic.field_validator("odd", mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return Odd(value) if isinstance(value, str) else value

    @pydantic.field_serializer("odd")
    def write(self, odd: Odd) -> str:
        return odd.text[:3]


@dataclass
class Mixed:
    held: Held


class Number(pydantic.BaseModel):
    at: float

    @pydantic.field_validator("at", mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return float("nan") if value is None else value

    @pydantic.field_serializer("at")
    def write(self, at: float) -> float | None:
        return None if at != at else at


class Parent(pydantic.BaseModel):
    """A tree whose nodes lead to the one above."""

    children: list[Parent] = []
    above: Any = pydantic.Field(default=None, exclude=True, repr=False)

    def model_post_init(self, _: Any) -> None:
        for each in self.children:
            each.above = self


class Nested(pydantic.BaseModel):
    data: Any


@pydantic.dataclasses.dataclass(slots=True)
class Slotted:
    a: int
    hidden: int = pydantic.Field(default=0, exclude=True)


@pydantic.dataclasses.dataclass
class Point:
    x: int
    moves: int = field(init=False, default=0)


@pydantic.dataclasses.dataclass
class Point3(Point):
    z: int = 0


@pydantic.dataclasses.dataclass
class Nothing:
    pass


@dataclass
class ById:
    """Equal to another one of the same number."""

    id: int
    secret: pydantic.SecretStr = field(default=pydantic.SecretStr(""), compare=False)


class WithRow(pydantic.BaseModel):
    row: ById


def nested(levels: int) -> Any:
    return [] if levels == 0 else [nested(levels - 1)]


def moved() -> Point:
    made = Point(1)
    made.moves = 2
    return made


def noted() -> Private:
    made = Private(a=1)
    made._note = "x"
    return made


LOST: list[tuple[Any, Any, str, str]] = [
    (Login, Login(user="ann", password=pydantic.SecretStr("hunter2")), ".password", "another value"),
    (Login, {"user": "ann", "password": "hunter2"}, ".password", "another value"),
    (Base, Child(a=1, b=2), "", r"a \S*Base, not a \S*Child"),
    (list[Base], [Base(a=1), Child(a=1, b=2)], "[1]", r"a \S*Base, not a \S*Child"),
    (Held, Held(inner=Child(a=1, b=2)), ".inner", r"a \S*Base, not a \S*Child"),
    (Held, Held(inner=Base(a=1), others=[Child(a=1, b=2)]), ".others[0]", "not a"),
    (Held, Held(inner=Base(a=1), by_name={"x": Child(a=1, b=2)}), ".by_name['x']", "not a"),
    (Mixed, Mixed(Held(inner=Child(a=1, b=2))), ".held.inner", "not a"),
    (Hidden, Hidden(a=1, secret="real"), ".secret", "another value"),
    (Entity, Entity(a=1, secret="real"), ".secret", "another value"),
    (Counting, Counting(), ".n", "another value"),
    (Slotted, Slotted(a=1, hidden=2), ".hidden", "another value"),
    (WithRow, WithRow(row=ById(1, pydantic.SecretStr("real"))), ".row.secret", "another value"),
    (Point, Point3(1, z=2), "", r"a \S*Point, not a \S*Point3"),
    (list[Point], [Point(1), moved()], "[1].moves", "another value"),
    (dict[str, Base], {"x": Child(a=1, b=2)}, "['x']", "not a"),
    (Kept, Kept(at={date(2026, 1, 1)}), ".at", "another value"),
    (Encoded, Encoded(data=b"abc"), ".data", "another value"),
    (Rounded, Rounded(amount=1.005), ".amount", "another value"),
    (Either, Either(value=date(2026, 1, 1)), ".value", "a str, not a datetime.date"),
    (Open, Open(data={"x": Base(a=1)}), ".data['x']", "a dict, not a"),
    (Open, Open(data={"x": pydantic.SecretStr("y")}), ".data['x']", "a str, not a"),
    (Nested, Nested(data={1: 1, "1": 1}), ".data", "two of its keys are the same text"),
    (dict[Any, Base], {1: Base(a=1), "1": Base(a=1)}, "", "two of its keys are the same text"),
]


@pytest.mark.parametrize(("annotation", "value", "path", "reason"), LOST, ids=[str(each)[:60] for _, each, *_ in LOST])
def test_a_value_that_json_holds_in_part_is_refused(annotation: Any, value: Any, path: str, reason: str) -> None:
    with pytest.raises(Misfit, match=f"JSON does not hold all of it: .*{reason}") as caught:
        converter(annotation).write(value)

    assert caught.value.path == path
    assert not any(word in str(caught.value) for word in ("hunter2", "real")), "the values may be secret"


WHOLE: list[tuple[Any, Any]] = [
    (Hidden, Hidden(a=1)),
    (Private, noted()),
    (Point, Point(1)),
    (Point, {"x": 1}),
    (Nothing, Nothing()),
    (Number, Number(at=float("nan"))),
    (Told, Told(at=datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")))),
    (Told, Told(at=datetime(1, 1, 1, tzinfo=UTC))),
    (WithOdd, WithOdd(odd=Odd("abcdef"))),
    (Parent, Parent(children=[Parent(), Parent(children=[Parent()])])),
    (Nested, Nested(data=nested(150))),
    (Open, Open(data={"on": date(2026, 1, 1), "some": [{Colour.RED}, (1, 2)], "number": {1: 2}}, more=1)),  # type: ignore[call-arg]
    (Aliased, Aliased(data={"on": date(2026, 1, 1)})),
    (Held | None, Held(inner=Base(a=1), others=[Base(a=2)])),
    (Mixed, Mixed(Held(inner=Base(a=1)))),
]


@pytest.mark.parametrize(("annotation", "value"), WHOLE, ids=[str(each)[:60] for _, each in WHOLE])
def test_a_value_that_json_holds_is_taken(annotation: Any, value: Any) -> None:
    written = converter(annotation).write(value)

    assert converter(annotation).write(written) == written


@pytest.mark.parametrize(
    ("given", "read", "path"),
    [
        ({Odd}, {Odd}, None),
        (Array("a"), Array("b"), None),
        (Array("a"), Odd("b"), ""),
        ({1, 2}, {1, 3}, ""),
        ({1}, {1, 2}, ""),
        ({"a": 1}, {"a": 1, "b": 2}, ""),
        ([1, [2]], (1, (2,)), None),
        ([1], [1, 2], ""),
    ],
)
def test_values_are_compared_by_what_they_hold_and_tell(given: Any, read: Any, path: str | None) -> None:
    assert (found[0] if (found := first_loss(given, read)) else None) == path
