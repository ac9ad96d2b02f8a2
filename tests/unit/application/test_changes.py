"""Changes: a job gets what was passed, or the push names the part that would change."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Any, NamedTuple, NewType, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pytest

from kiqcluster.application.converters import Misfit
from tests.unit.application.test_converters import UserId, converter

TODAY = date(2026, 11, 20)
BERLIN = ZoneInfo("Europe/Berlin")
TWICE = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)  # an hour that the clock has twice
Data = NewType("Data", dict)  # type: ignore[type-arg]


class Colour(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Level(IntEnum):
    LOW = 1


class Rank(IntEnum):
    FIRST = 1


@dataclass(frozen=True)
class Person:
    name: str
    born: date = TODAY


@dataclass(frozen=True)
class Child(Person):
    pass


@dataclass(frozen=True)
class Stranger:
    name: str
    born: date = TODAY


@dataclass
class Document:
    at: date = TODAY
    body: str = ""
    rate: float = 0.0
    price: Decimal = Decimal(0)
    raw: bytes = b""
    colour: Colour = Colour.RED
    person: Person | None = None
    tags: set[str] = field(default_factory=set)
    names: list[str] = field(default_factory=list)
    by_date: dict[date, str] = field(default_factory=dict)
    data: Any = None
    hidden: int = field(default=0, compare=False)


@dataclass
class Total:
    """Its constructor makes one of its fields."""

    count: int
    total: Decimal = field(init=False)

    def __post_init__(self) -> None:
        self.total = Decimal(self.count) * 2


@dataclass(eq=False)
class Identity:
    at: date


@dataclass
class Birth:
    at: date


@attrs.define
class Secret:
    at: date
    _word: str = ""


class Event(msgspec.Struct, tag=True, omit_defaults=True, rename={"at": "when"}):
    at: date
    note: str = ""


class Row(msgspec.Struct, array_like=True, tag=True):
    at: date
    note: str = ""
    data: Any = None


class Point(NamedTuple):
    x: int
    on: date = TODAY
    data: Any = None


class Place(NamedTuple):
    x: int
    on: date = TODAY
    data: Any = None


class Loose(TypedDict, total=False):
    at: date
    data: Any


class Day(TypedDict):
    at: date


class Names(list[str]):
    pass


def total(count: int, amount: int) -> Total:
    made = Total(count)
    made.total = Decimal(amount)
    return made


CHANGED: list[tuple[Any, Any, str, str]] = [
    (Document, Document(body=b"hello"), ".body", "expected str, got bytes"),  # type: ignore[arg-type]
    (Document, Document(body=timedelta(seconds=90)), ".body", "expected str, got duration"),  # type: ignore[arg-type]
    (Document, Document(body=TODAY), ".body", "expected str, got date"),  # type: ignore[arg-type]
    (Document, Document(body=UUID(int=1)), ".body", "expected str, got uuid"),  # type: ignore[arg-type]
    (Document, Document(body=Decimal(1)), ".body", "expected str, got decimal"),  # type: ignore[arg-type]
    (Document, Document(body=time(1)), ".body", "the job would get a str, not a datetime.time"),  # type: ignore[arg-type]
    (Document, Document(body=memoryview(b"x")), ".body", "would get a str, not a memoryview"),  # type: ignore[arg-type]
    (Document, Document(body=Colour.RED), ".body", "would get a str, not a "),  # type: ignore[arg-type]
    (Document, {"body": b"hello"}, ".body", "expected str, got bytes"),
    (Document, {"body": Colour.RED}, ".body", "would get a str, not a "),
    (list[Document], [{"names": [b"x"]}], "[0].names[0]", "expected str, got bytes"),
    # text in an instance is not JSON
    (Document, Document(raw="text"), ".raw", "the job would get a bytes, not a str; pass a value"),  # type: ignore[arg-type]
    (Document, Document(at="2026-01-01"), ".at", "would get a datetime.date, not a str"),  # type: ignore[arg-type]
    (Document, Document(price="1.50"), ".price", "would get a decimal.Decimal, not a str"),  # type: ignore[arg-type]
    (Document, Document(price=0.5), ".price", "would get a decimal.Decimal, not a float"),  # type: ignore[arg-type]
    (Document, Document(colour="red"), ".colour", "Colour, not a str"),  # type: ignore[arg-type]
    (Document, Document(person={"name": "ann"}), ".person", "Person, not a dict"),  # type: ignore[arg-type]
    (Document, Document(tags=["a"]), ".tags", "would get a set, not a list"),  # type: ignore[arg-type]
    (Document, Document(names={"a"}), ".names", "would get a list, not a set"),  # type: ignore[arg-type]
    (Document, Document(by_date={"2026-01-01": "x"}), ".by_date", "a key: the job would get a datetime.date"),  # type: ignore[dict-item]
    (dict[str, date], {Colour.RED: TODAY}, "", "a key: the job would get a str, not a "),
    # keys: text in JSON
    (dict[str, Decimal], {1: Decimal(10), "1": Decimal(20)}, "", "a key: expected str, got int"),
    (dict[str, Decimal], {1: Decimal(10)}, "", "a key: expected str, got int"),
    (dict[str, Decimal], {TODAY: Decimal(10)}, "", "a key: expected str, got date"),
    (list[dict[int, date]], [{}, {1: TODAY, "1": TODAY}], "[1]", "two of its keys are the same text"),
    (dict[Any, date], {1: TODAY, "1": TODAY}, "", "two of its keys are the same text"),
    (Document, Document(data=[{1: 1, "1": 2}]), ".data[0]", "two of its keys are the same text"),
    (Document, Document(data=Loose(data={TODAY: 1, "2026-11-20": 2})), ".data['data']", "two of its keys are the same"),
    (Document, Document(data=Birth({1: 1, "1": 2})), ".data.at", "two of its keys are the same"),  # type: ignore[arg-type]
    (dict[Any, date], {Colour.RED: TODAY, "red": TODAY}, "", "two of its keys are the same text"),
    (dict[int | str, date], {1: TODAY}, "", "a key: the job would get a str, not an int; annotate and pass"),
    (list[dict[UserId | str, date]], [{"a": TODAY}, {1: TODAY}], "[1]", "a key: the job would get a str, not an int"),
    (Document, Document(data={"a": {(1, 2): 3}}), ".data['a']", "a key: JSON has text as keys"),
    (dict[date | None, int], {None: 1}, "", "a key: JSON has text as keys"),
    # base64 and digits
    (bytes, "hello", "", "invalid base64"),
    (bytes, "YR==", "", "it is text, but not base64"),
    (bytes, "a b=", "", "base64"),
    (list[bytes], ["aGk=", "aGl="], "[1]", "it is text, but not base64"),
    (dict[bytes, date], {"YR==": TODAY}, "", "a key: it is text, but not base64"),
    (Document, Document(rate=2**60 + 1), ".rate", "a float does not hold all digits"),
    (Document, Document(rate=Decimal("1.5")), ".rate", "would get a float, not a decimal.Decimal"),  # type: ignore[arg-type]
    (list[float | date], [Decimal("1.5")], "[0]", "would get a float, not a decimal.Decimal"),
    (Document, {"rate": 2**60 + 1}, ".rate", "a float does not hold all digits"),
    # classes
    (Person, Child("ann"), "", "Person, not a tests.unit.application.test_changes.Child; pass a value"),
    (Person, Stranger("ann"), "", "Stranger"),
    (Document, Document(person=Stranger("ann")), ".person", "Stranger"),  # type: ignore[arg-type]
    (list[Person], [Person("ann"), Stranger("bob")], "[1]", "Stranger"),
    (dict[str, Person], {"a": Person("ann"), "b": Child("bob")}, "['b']", "Child"),
    (set[Person], {Stranger("ann")}, "[0]", "Stranger"),
    (Day, Birth(TODAY), "", "would get a dict, not a "),
    (Point, Place(1), "", "Place"),
    (tuple[int, date, None], Point(1), "", "would get a tuple, not a "),
    (list[int | date | None], Point(1), "", "would get a list, not a "),
    (Level, Rank.FIRST, "", "Rank"),
    (set[date], {TODAY, "2026-11-20"}, "", "two of its elements are the same in JSON"),
    # constructors, and fields that msgspec does not write
    (Total, total(3, 99), ".total", "the constructor of its class changes it"),
    (Document, Document(data=1, hidden=b"x"), ".hidden", "expected int, got bytes"),  # type: ignore[arg-type]
    (Secret, Secret(TODAY, "x"), "._word", "its JSON does not hold all of it"),
    (time, time(10, tzinfo=BERLIN), "", "its zone has no offset of whole minutes"),
    (list[time], [time(10, tzinfo=timezone(timedelta(seconds=3)))], "[0]", "its zone has no offset of whole minutes"),
    # keys that the class does not have
    (Event, {"type": "Event", "when": TODAY, "not": "x"}, ".not", "there is no such field"),
    (Event, {"type": "Event", "when": TODAY, "note": b"x"}, ".note", "expected str, got bytes"),
    (Loose, {"at": TODAY, "at_": TODAY}, ".at_", "there is no such field"),
    (Row, ["Row", TODAY, Colour.RED], "[2]", "would get a str, not a "),
]  # fmt: skip

KEPT: list[tuple[Any, Any, Any]] = [
    (Document, Document(rate=1, price=2), None),  # type: ignore[arg-type]
    (Document, Document(rate=2**60), None),
    (Document, Document(body=Word.YES), None),
    (Document, Document(names=("a", "b")), Document(names=["a", "b"])),  # type: ignore[arg-type]
    (Document, Document(names=Names("ab")), None),
    (Document, Document(by_date=defaultdict(str, {TODAY: "x"})), None),
    (Document, Document(person=Person("ann"), tags={"a", "b"}, by_date={TODAY: "x"}), None),
    (Document, {"at": TODAY, "price": "1.50", "tags": ["a", "a"]}, Document(TODAY, price=Decimal("1.50"), tags={"a"})),
    (Document, {"price": 0.1, "raw": "aGk=", "by_date": {"2026-11-20": "x"}},
        Document(price=Decimal("0.1"), raw=b"hi", by_date={TODAY: "x"})),
    (Document, OrderedDict(person={"name": "ann", "born": TODAY}), Document(person=Person("ann"))),
    (bytes, "", b""),
    (bytes, "text", b"\xb5\xec\x6d"),
    (bytes, bytearray(b"x"), b"x"),
    (dict[Word | None, date], {"yes": TODAY}, None),
    (dict[str, date], {Word.YES: TODAY}, None),
    (dict[int | date, date], {"2026-11-20": TODAY, "1": TODAY, 2: "2026-11-20"}, {TODAY: TODAY, 1: TODAY, 2: TODAY}),
    (dict[int | str, date], {"1": TODAY, "a": TODAY}, None),
    (dict[Any, date], {1: TODAY, TODAY: TODAY}, {"1": TODAY, "2026-11-20": TODAY}),
    (dict[Decimal, date], {1: TODAY, "2.0": TODAY}, {Decimal(1): TODAY, Decimal("2.0"): TODAY}),
    (set[datetime], {TWICE}, {TWICE.astimezone(UTC)}),
    (set[date], ["2026-11-20", TODAY], {TODAY}),
    (list[datetime], [TWICE], [TWICE.astimezone(UTC)]),
    (frozenset[Person], {Person("ann")}, None),
    (time, time(10, tzinfo=UTC), None),
    (Decimal, Decimal("NaN"), ...),
    (Decimal, Decimal("sNaN"), ...),
    (Total, Total(3), None),
    (Total, {"count": 3, "total": "99"}, Total(3)),
    (Identity, Identity(TODAY), ...),
    (Secret, Secret(TODAY), None),
    (Event, {"type": "Event", "when": "2026-11-20", "note": ""}, Event(TODAY)),
    (Row, ["Row", "2026-11-20"], Row(TODAY)),
    (Point, (1, TODAY), Point(1)),
    (Point, [1], Point(1)),
    # what is annotated Any arrives as plain JSON
    (Document, Document(data=Colour.RED), Document(data="red")),
    (Document, Document(data=[Person("ann"), [{2}], {TODAY: b"x"}, time(1)]), Document(data=[
        {"name": "ann", "born": "2026-11-20"}, [[2]], {"2026-11-20": "eA=="}, "01:00:00"])),
    (Loose, {"data": {Colour.RED}}, {"data": ["red"]}),
    (tuple[Loose], ({"data": Point(1)},), ({"data": [1, "2026-11-20", None]},)),
    (dict[str, Data | date], {"a": {"b": Colour.RED}}, {"a": {"b": "red"}}),
    (Point, Point(1, data=Colour.RED), Point(1, data="red")),
    (Point, [1, TODAY, Colour.RED], Point(1, data="red")),
    (Row, Row(TODAY, data={1}), Row(TODAY, data=[1])),
]  # fmt: skip


def names_of(cases: Sequence[tuple[Any, ...]]) -> list[str]:
    """Return names of cases that are the same in each process: the text of a set is not."""
    return [f"{number} {type(value).__name__}" for number, (_, value, *_) in enumerate(cases)]


@pytest.mark.parametrize(("annotation", "value", "path", "reason"), CHANGED, ids=names_of(CHANGED))
def test_a_value_that_the_job_would_not_get_is_refused(annotation: Any, value: Any, path: str, reason: str) -> None:
    with pytest.raises(Misfit) as caught:
        converter(annotation).write(value)

    assert caught.value.path == path
    assert reason in caught.value.reason


@pytest.mark.parametrize(("annotation", "value", "read"), KEPT, ids=names_of(KEPT))
def test_an_equal_value_and_json_are_accepted(annotation: Any, value: Any, read: Any) -> None:
    """read: what the job gets; None for a value that equals the given one, … for one that equals nothing."""
    made = converter(annotation)
    written = made.write(value)
    got = made.read(written)

    assert made.write(written) == written
    assert read is ... or got == (value if read is None else read)
