"""Converters: each type goes through JSON and comes back; what does not fit is refused, with its path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import Annotated, Any, ClassVar, Generic, Literal, NamedTuple, NewType, Optional, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kiqcluster.application.annotations import Needs, needs_of
from kiqcluster.application.converters import Converter, Misfit, converter_of, plain
from kiqcluster.errors import JobDefinitionError
from kiqcluster.sidekiq import ruby_json

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
T = TypeVar("T")
UserId = NewType("UserId", int)
Instant = NewType("Instant", datetime)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


class Timetable(TypedDict):
    by_time: dict[datetime | None, int]


class Pairs(Enum):
    ONE = (1, 2)


class Point(NamedTuple):
    x: int
    on: date


class Fields(TypedDict, total=False):
    width: int
    due: datetime


@dataclass(frozen=True)
class Line:
    price: Decimal
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line]
    by_name: dict[str, Line] = field(default_factory=dict)
    due: datetime | None = None
    data: Any = None

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("an order has a number from 0 on")


@dataclass
class Page(Generic[T]):
    items: list[T]
    at: date


@dataclass
class Tree:
    at: date
    children: list[Tree] = field(default_factory=list)


class Event(msgspec.Struct, tag=True):
    at: datetime
    kind: Colour = Colour.RED


class Alarm(msgspec.Struct, tag=True, omit_defaults=True):
    loud: bool = False


class Renamed(msgspec.Struct, rename={"days": "days.all"}):
    days: dict[str, date]


class Item(pydantic.BaseModel):
    price: Decimal
    sold: date | None = None


class Loose(pydantic.BaseModel):
    data: Any


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    items: list[Item]
    owner: str = pydantic.Field(default="", alias="ownerName")


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    on: date


@dataclass
class Mixed:
    item: Item


@dataclass
class Counted:
    """Counts the conversions of the value that it is in."""

    first: Once
    counts: dict[str, int]

    def __post_init__(self) -> None:
        self.counts["needed"]


@dataclass
class Once:
    made: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Once.made += 1


class Row:
    """Like a model of Django."""

    _meta, pk = None, 7


@dataclass
class Holder:
    row: Row


def converter(annotation: Any) -> Converter:
    needs = needs_of(annotation, "it")
    assert needs, "it needs conversion"
    return converter_of(annotation, "it", needs)


LINE = Line(Decimal("1.50"))

VALUES: list[tuple[Any, Any, Any]] = [
    (datetime, NOON, "2026-11-20T12:00:00Z"),
    (datetime, NOON.astimezone(ZoneInfo("Europe/Berlin")), "2026-11-20T13:00:00+01:00"),
    (date, date(2026, 11, 20), "2026-11-20"),
    (time, time(10, 30), "10:30:00"),
    (timedelta, timedelta(days=1, seconds=90.5), "P1DT90.5S"),
    (Decimal, Decimal("1.50"), "1.50"),
    (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (bytes, b"abc\xff", "YWJj/w=="),
    (Colour, Colour.BLUE, "blue"),
    (Level, Level.LOW, 1),
    (Word, Word.YES, "yes"),
    (tuple[int, str], (1, "x"), [1, "x"]),
    (tuple[date, ...], (date(2026, 1, 1),), ["2026-01-01"]),
    (set[int], {3, 1, 2}, [1, 2, 3]),
    (frozenset[str], frozenset("ba"), ["a", "b"]),
    (Point, Point(1, date(2026, 1, 1)), [1, "2026-01-01"]),
    (Fields, {"width": 3, "due": NOON}, {"width": 3, "due": "2026-11-20T12:00:00Z"}),
    (Line, LINE, {"price": "1.50", "count": 1}),
    (list[Line], [LINE], [{"price": "1.50", "count": 1}]),
    (dict[str, Line], {"a": LINE}, {"a": {"price": "1.50", "count": 1}}),
    *(
        (dict[each, date], {key: date(2026, 1, 1)}, {text: "2026-01-01"})
        for each, key, text in (
            (int, 1, "1"),
            (UserId, UserId(1), "1"),
            (Decimal, Decimal("1.5"), "1.5"),
            (date, date(2026, 1, 2), "2026-01-02"),
            (time, time(10), "10:00:00"),
            (timedelta, timedelta(days=1), "P1D"),
            (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001"),
            (bytes, b"abc", "YWJj"),
            (Colour, Colour.RED, "red"),
            (Literal["a"], "a", "a"),
            (str | None, "a", "a"),
            (Any, "a", "a"),
        )
    ),
    (dict[datetime, Item], {NOON: Item(price=Decimal(1))}, {"2026-11-20T12:00:00Z": {"price": "1", "sold": None}}),
    (Mapping[str, date], {"a": date(2026, 1, 1)}, {"a": "2026-01-01"}),
    (Optional[Line], None, None),  # noqa: UP045
    (Line | int | None, 7, 7),
    (Page[Line], Page([LINE], date(2026, 1, 1)), {"items": [{"price": "1.50", "count": 1}], "at": "2026-01-01"}),
    (Event, Event(NOON), {"type": "Event", "at": "2026-11-20T12:00:00Z", "kind": "red"}),
    (Event | Alarm, Alarm(), {"type": "Alarm"}),
    (Annotated[int, msgspec.Meta(gt=0)], 7, 7),
    (Item, Item(price=Decimal("1.5")), {"price": "1.5", "sold": None}),
    (Item | bytes, b"abc", "abc"),
    (list[Item] | None, [Item(price=Decimal(1))], [{"price": "1", "sold": None}]),
    (Basket, Basket(items=[], owner="ann"), {"items": [], "ownerName": "ann"}),
    (Strict, Strict(on=date(2026, 1, 1)), {"on": "2026-01-01"}),
    (Mixed, Mixed(Item(price=Decimal(2))), {"item": {"price": "2", "sold": None}}),
    (
        Tree,
        Tree(date(2026, 1, 1), [Tree(date(2026, 1, 2))]),
        {"at": "2026-01-01", "children": [{"at": "2026-01-02", "children": []}]},
    ),
    (
        Order,
        Order(1, [LINE], {"a": LINE}, NOON, {"any": [1]}),
        {
            "id": 1,
            "lines": [{"price": "1.50", "count": 1}],
            "by_name": {"a": {"price": "1.50", "count": 1}},
            "due": "2026-11-20T12:00:00Z",
            "data": {"any": [1]},
        },
    ),
]


@pytest.mark.parametrize(("annotation", "value", "stored"), VALUES, ids=[str(each)[:40] for each, *_ in VALUES])
class TestEachType:
    def test_goes_through_json_and_comes_back(self, annotation: Any, value: Any, stored: Any) -> None:
        written = converter(annotation).write(value)

        assert written == stored
        assert json.loads(ruby_json.encode(written)) == written
        back = converter(annotation).read(json.loads(ruby_json.encode(written)))
        assert back == value
        assert type(back) is type(value)

    def test_is_written_in_one_form_also_from_its_json(self, annotation: Any, value: Any, stored: Any) -> None:
        assert converter(annotation).write(stored) == stored


class TestNotConverted:
    @pytest.mark.parametrize(
        "annotation",
        [
            *(int, str, float, bool, None, Any, object, list, dict, list[int], dict[str, Any], int | str | None),
            *(Literal["a", 1], UserId, Row, list[Row], T, "Row | None", type[int]),
        ],
        ids=str,
    )
    def test_types_that_json_has_and_those_that_nobody_knows(self, annotation: Any) -> None:
        assert needs_of(annotation, "it") is Needs.NOTHING


class TestRefusedTypes:
    @pytest.mark.parametrize(
        ("annotation", "message"),
        [
            (Holder, r"it\.row is a .*Row, which has no form in JSON: pass what it is found by"),
            (date | Row, "it is a .*Row, which has no form in JSON"),
            (date | str, "more than one str-like type"),
            (Line | Order, "more than one dataclass.*tag=True"),
            (Pairs, "Enums must contain"),
            (dict[datetime, int], "it has keys of the type datetime, which cannot be the key of an object"),
            (Timetable, r"it\.by_time has keys of the type datetime\.datetime \| None"),
            (list[Mapping[Annotated[Instant, "x"], int]], "it has keys of the type .*Instant"),
            *(
                (dict[each, date], "it has keys of the type")
                for each in (bool, Point, Line, tuple[int, str], frozenset[int])
            ),
            (dict[str, Event | Item], "models of pydantic and Structs of msgspec"),
        ],
        ids=str,
    )
    def test_are_refused_when_the_job_is_defined(self, annotation: Any, message: str) -> None:
        with pytest.raises(JobDefinitionError, match=message):
            converter(annotation)

    def test_models_of_a_pydantic_that_hides_losses_are_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pydantic, "VERSION", "2.5.3")

        with pytest.raises(JobDefinitionError, match=r"pydantic 2\.6 or newer is needed, and 2\.5\.3"):
            converter(list[Item])


REFUSED: list[tuple[Any, Any, str, str]] = [
    (int | date, "x", "", "invalid RFC3339 encoded date"),
    (Order, Order(1, [LINE, Line("x")]), ".lines[1].price", "invalid decimal string"),  # type: ignore[arg-type]
    (Order, Order(1, [], {"a": LINE, "b": Line(None)}), ".by_name['b'].price", "expected decimal, got null"),  # type: ignore[arg-type]
    (Order, Order(1, [], {"a": 3}), ".by_name['a']", "expected object, got int"),  # type: ignore[dict-item]
    (list[Order], [{"id": -1, "lines": []}], "[0]", "an order has a number from 0 on"),
    (Order, {"lines": []}, "", "object missing required field id"),
    (Order, {"id": 1, "lines": [{"price": "1", "cuont": 2}]}, ".lines[0].cuont", "there is no such field"),
    (Order, Order(1, [Row()]), ".lines[0]", "pass value.pk"),  # type: ignore[list-item]
    (Order, Order(1, [], data={"a": [Row()]}), ".data['a'][0]", "pass value.pk"),
    (Order, Order(1, [], due=NOON.replace(tzinfo=None)), ".due", "has no time zone"),
    (datetime, NOON.replace(tzinfo=None), "", "has no time zone"),
    (list[datetime], ["2026-01-01T00:00:00"], "[0]", "has no time zone"),
    (date, NOON, "", "expected date, got datetime"),
    (Colour, "green", "", "invalid enum value 'green'"),
    (dict[date, int], {"x": 1}, "", "a key: invalid RFC3339 encoded date"),
    (Annotated[int, msgspec.Meta(gt=0)], 0, "", "expected int >= 1"),
    (Basket, {"items": [{"price": "x"}]}, ".items[0].price", "valid decimal"),
    (Strict, {"on": "2026-01-01", "off": 1}, ".off", "Extra inputs are not permitted"),
    (list[set[date] | dict[str, date]], [{"a": 1}, {"b": ""}], "[0]['a']", "expected date, got int"),
    (list[dict[str, date]], [{"a": "2026-01-01", "b": 1}, {"c": 2}], "[0]['b']", "expected date, got int"),
    (
        dict[str, dict[str, date]],
        {"a": {"x": "2026-01-01"}, "b": {"y": "2026-01-01", "z": 1}, "c": {"u": 1}},
        "['b']['z']",
        "got int",
    ),
    (tuple[dict[str, date], int], [{"a": "2026-01-01", "b": 1}, "x"], "[0]['b']", "expected date, got int"),
    (dict[str, Line], {"a": {"price": 1}, "b": {"price": []}, "c": {"price": {}}}, "['b'].price", "got array"),
    (Renamed, {"days.all": {"a": 1}}, ".days.all['...']", "expected date, got int"),
    (list[Item], [Item(price=Decimal(1)), Row()], "[1]", "valid dictionary or instance of Item"),
    (Basket, Basket.model_construct(items=[Item.model_construct(price="x")]), ".items[0].price", "valid decimal"),  # type: ignore[arg-type]
]


class TestRefusedValues:
    @pytest.mark.parametrize(
        ("annotation", "value", "path", "reason"), REFUSED, ids=[str(each)[:40] for each, *_ in REFUSED]
    )
    def test_are_named_with_their_path(self, annotation: Any, value: Any, path: str, reason: str) -> None:
        with pytest.raises(Misfit) as caught:
            converter(annotation).write(value)

        assert caught.value.path == path
        assert reason in caught.value.reason

    @pytest.mark.parametrize(
        ("annotation", "stored", "path"),
        [
            (Order, {"id": 1, "lines": [{"price": True}]}, ".lines[0].price"),
            (Order, {"id": 1, "lines": [], "due": "2026-01-01T00:00:00"}, ".due"),
            (datetime, "2026-01-01T00:00:00", ""),
            (Item, {"price": "1", "sold": "never"}, ".sold"),
            (UUID, None, ""),
        ],
    )
    def test_are_named_when_they_come_from_redis(self, annotation: Any, stored: Any, path: str) -> None:
        with pytest.raises(Misfit) as caught:
            converter(annotation).read(stored)

        assert caught.value.path == path

    def test_the_wrong_key_of_a_dict_is_found_in_few_conversions(self) -> None:
        counts = {**{f"k{number}": number for number in range(4000)}, "wrong": "x", "needed": 1, "also": "y"}
        made = converter(Counted)
        Once.made = 0

        with pytest.raises(Misfit) as caught:
            made.read({"first": {}, "counts": counts})

        assert caught.value.path == ".counts['wrong']"
        assert Once.made < 20

    @pytest.mark.parametrize("levels", [300, 600, 2_000, 100_000])
    @pytest.mark.parametrize(
        ("annotation", "stored"), [(Tree, {}), (Order, {"id": 1, "lines": []}), (Loose, {})], ids=str
    )
    def test_json_is_converted_or_refused_however_deep_it_is(self, annotation: Any, stored: Any, levels: int) -> None:
        deep: Any = {"at": "2026-01-01"}
        for _ in range(levels):
            deep = {"at": "2026-01-01", "children": [deep]}
        given = deep if annotation is Tree else {**stored, "data": deep}
        made = converter(annotation)

        for convert in (made.write, made.read):
            too_deep = pytest.raises(Misfit, match=r"nested too deeply|recursion limit exceeded")
            with suppress(Misfit) if levels < 100_000 else too_deep:  # how much a stack holds differs by the Python
                convert(given)

    def test_a_value_within_itself_is_refused(self) -> None:
        tree = Tree(date(2026, 1, 1))
        tree.children.append(tree)

        with pytest.raises(Misfit):
            converter(Tree).write(tree)


class TestRollingDeploys:
    def test_what_was_read_is_written_with_its_defaults(self) -> None:
        order = converter(Order).read({"id": 1, "lines": [{"price": "1.50"}], "by_name": {"a": {"price": "1.50"}}})

        assert order == Order(1, [LINE], {"a": LINE})
        assert vars(order) == vars(Order(1, [LINE], {"a": LINE}))
        assert converter(Order).write(order) == converter(Order).write(Order(1, [LINE], {"a": LINE}))
        assert converter(Page[Line]).write({"items": [{"price": "1.50"}], "at": "2026-01-01"})["items"] == [
            {"price": "1.50", "count": 1}
        ]

    def test_a_field_that_only_the_sender_knows_is_left_out(self) -> None:
        assert converter(Line).read({"price": "1", "currency": "EUR"}) == Line(Decimal(1))
        assert converter(Item).read({"price": "1", "currency": "EUR"}) == Item(price=Decimal(1))

    def test_a_field_that_only_the_receiver_knows_has_its_default(self) -> None:
        assert converter(Line).read({"price": "1"}) == Line(Decimal(1), 1)


def test_an_offset_with_seconds_is_written_as_utc() -> None:
    when = datetime(1850, 1, 1, tzinfo=timezone(timedelta(minutes=53, seconds=28)))

    assert converter(datetime).read(converter(datetime).write(when)) == when


def test_structs_that_leave_defaults_out_may_be_given_with_them() -> None:
    assert converter(Alarm).write({"type": "Alarm", "loud": False}) == {"type": "Alarm"}


def test_values_without_a_declared_type_are_written_the_same_way() -> None:
    assert plain([Order(1, [LINE]), (Item(price=Decimal(1)), NOON), {2, 1}]) == [
        {"id": 1, "lines": [{"price": "1.50", "count": 1}], "by_name": {}, "due": None, "data": None},
        [{"price": "1", "sold": None}, "2026-11-20T12:00:00Z"],
        [1, 2],
    ]
    with pytest.raises(TypeError, match=r"of the result is of type .*Row, which is not JSON: return value\.pk$"):
        plain({"a": Row()})
    with pytest.raises(TypeError, match="of the result is of type object, which is not JSON: return plain JSON"):
        plain(object())


zones = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
datetimes = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=zones)  # noqa: DTZ001
decimals = st.decimals(allow_nan=False, allow_infinity=False)
lines = st.builds(Line, price=decimals, count=st.integers())
orders = st.builds(
    Order,
    id=st.integers(min_value=0),
    lines=st.lists(lines, max_size=3),
    by_name=st.dictionaries(st.text(), lines, max_size=3),
    due=st.none() | datetimes,
    data=st.none() | st.lists(st.text() | st.integers() | st.booleans()),
)
PROPERTIES: dict[Any, st.SearchStrategy[Any]] = {
    datetime: datetimes,
    date: st.dates(),
    time: st.times(),
    timedelta: st.timedeltas(timedelta(days=-999_999), timedelta(days=999_999)),
    Decimal: decimals,
    UUID: st.uuids(),
    bytes: st.binary(),
    Colour | None: st.none() | st.sampled_from(Colour),
    Point: st.builds(Point, st.integers(), st.dates()),
    frozenset[date]: st.frozensets(st.dates()),
    Order: orders,
    dict[str, list[Order | None]]: st.dictionaries(st.text(), st.lists(st.none() | orders, max_size=2), max_size=2),
    Event: st.builds(Event, datetimes, st.sampled_from(Colour)),
    Item: st.builds(Item, price=decimals, sold=st.none() | st.dates()),
}


@pytest.mark.parametrize("annotation", PROPERTIES, ids=str)
@settings(max_examples=20)
@given(data=st.data())
def test_any_value_comes_back(annotation: Any, data: st.DataObject) -> None:
    value = data.draw(PROPERTIES[annotation])
    made = converter(annotation)

    stored = ruby_json.decode(ruby_json.encode(made.write(value)))

    assert made.read(stored) == value
    assert made.write(stored) == stored, "one form"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(["id", "lines"]), inner),
    max_leaves=8,
)


@pytest.mark.parametrize("annotation", PROPERTIES, ids=str)
@settings(max_examples=20)
@given(stored=JSON)
def test_any_json_is_read_or_refused_as_a_misfit(annotation: Any, stored: Any) -> None:
    for convert in (converter(annotation).read, converter(annotation).write):
        with suppress(Misfit):
            convert(stored)
