"""Subclasses: values of libraries that derive from Python's own are written like these, and arrive as these."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import StrEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from kiqcluster.application.converters import Misfit, plain
from kiqcluster.errors import JobDefinitionError
from tests.unit.application.test_converters import converter


class FakeDatetime(datetime):
    """Like that of freezegun and pendulum: what it makes of itself is of its own class."""

    def astimezone(self, tz: Any = None) -> Any:
        return type(self).fromtimestamp(self.timestamp(), tz)


class FakeDate(date):
    pass


class FakeTime(time):
    pass


class Duration(timedelta):
    """Like that of pendulum: its attributes are not those that timedelta keeps."""

    days = property(lambda self: -1)  # type: ignore[assignment]
    seconds = property(lambda self: -1)  # type: ignore[assignment]


class Money(Decimal):
    pass


class Key(UUID):
    pass


class Blob(bytes):
    def __bytes__(self) -> bytes:
        return b"other"


class SafeString(str):
    """Like that of Django: as text, it is itself."""

    def __str__(self) -> str:
        return self


class Word(StrEnum):
    YES = "yes"


class Buffer(bytearray):
    pass


class Timestamp(datetime):
    """Like that of pandas: it is more precise than its base."""

    def __eq__(self, other: object) -> bool:
        return False

    def __sub__(self, other: Any) -> Any:
        return timedelta.resolution

    __hash__ = None  # type: ignore[assignment]


class Size(int):
    pass


@dataclass
class Meeting:
    at: datetime
    on: date
    data: Any = None


BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
VALUES: list[tuple[Any, Any, Any]] = [
    (datetime, FakeDatetime(2026, 11, 20, 12, tzinfo=UTC), NOON),
    (datetime, FakeDatetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)),
    (date, FakeDate(2026, 11, 20), date(2026, 11, 20)),
    (time, FakeTime(10, 30, 1, 5), time(10, 30, 1, 5)),
    (time, FakeTime(10, tzinfo=timezone(timedelta(hours=1))), time(10, tzinfo=timezone(timedelta(hours=1)))),
    (timedelta, Duration(days=40, seconds=5, microseconds=7), timedelta(days=40, seconds=5, microseconds=7)),
    (Decimal, Money("1.50"), Decimal("1.50")),
    (UUID, Key(int=1), UUID(int=1)),
    (bytes, Blob(b"x"), b"x"),
    (bytearray, Buffer(b"x"), bytearray(b"x")),
]


@pytest.mark.parametrize(("annotation", "value", "base"), VALUES, ids=[repr(each) for _, each, _ in VALUES])
class TestSubclasses:
    def test_arrive_as_values_of_their_base(self, annotation: Any, value: Any, base: Any) -> None:
        made = converter(annotation)

        got = made.read(made.write(value))

        assert got == base
        assert type(got) is annotation

    def test_are_found_in_lists_and_results(self, annotation: Any, value: Any, base: Any) -> None:
        made = converter(list[annotation])

        assert made.read(made.write([value, base])) == [base, base]
        assert made.read(plain([value, base])) == [base, base]


def test_an_instance_may_have_them_in_its_fields() -> None:
    made = converter(Meeting)
    given = Meeting(FakeDatetime(2026, 11, 20, 12, tzinfo=UTC), FakeDate(2026, 11, 20), [Money("1.5")])

    written = made.write(given)

    assert written == {"at": "2026-11-20T12:00:00Z", "on": "2026-11-20", "data": ["1.5"]}
    assert made.read(written) == Meeting(NOON, date(2026, 11, 20), ["1.5"])


@dataclass
class Mail:
    body: str
    by_name: dict[str, str]
    sent: date | None = None
    data: Any = None


def test_text_of_a_subclass_arrives_as_plain_text() -> None:
    made = converter(Mail)
    safe = SafeString("<b>")

    for given in (Mail(safe, {"a": safe}, data=[safe]), {"body": safe, "by_name": {"a": safe}, "data": [safe]}):
        written = made.write(given)
        got = made.read(written)
        assert got == Mail("<b>", {"a": "<b>"}, data=["<b>"])
        texts = [written["body"], got.body, written["by_name"]["a"], got.by_name["a"], written["data"][0], got.data[0]]
        assert set(map(type, texts)) == {str}
    assert made.write({"body": "", "by_name": {}, "sent": SafeString("2026-01-01")})["sent"] == "2026-01-01"
    assert made.write(Mail(Word.YES, {}))["body"] == "yes", "a member of an Enum that equals a text"


def test_keys_may_be_such_values() -> None:
    made = converter(dict[date, int])

    assert made.write({FakeDate(2026, 11, 20): 1}) == {"2026-11-20": 1}


@pytest.mark.parametrize(
    ("annotation", "value", "path", "reason"),
    [
        (datetime, FakeDatetime(2026, 11, 20), "", "has no time zone"),
        (date, FakeDatetime(2026, 11, 20, tzinfo=UTC), "", "expected date, got datetime"),
        (list[datetime], [Timestamp(2026, 11, 20, tzinfo=UTC)], "[0]", "a datetime.datetime, not a "),
        (Meeting, Meeting(NOON, Size(1)), ".on", "Size, which is not JSON"),  # type: ignore[arg-type]
        (Mail, Mail("", {}, sent=SafeString("2026-01-01")), ".sent", "would get a datetime.date"),  # type: ignore[arg-type]
        (list[bytes], [SafeString("YR==")], "[0]", "not base64"),
        (Mail, Mail("", {SafeString("a"): "b"}), ".by_name", "a key: it is of type tests.unit.application."),
        (list[str | int | Meeting], [Money(1)], "[0]", "got decimal"),
    ],
)
def test_those_that_their_base_does_not_equal_are_refused(annotation: Any, value: Any, path: str, reason: str) -> None:
    with pytest.raises(Misfit) as caught:
        converter(annotation).write(value)

    assert caught.value.path == path
    assert reason in caught.value.reason


@pytest.mark.parametrize("annotation", [FakeDatetime, list[FakeDatetime | None], dict[str, FakeDatetime]])
def test_as_an_annotation_they_are_refused_with_the_class_to_name(annotation: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"is a \S*FakeDatetime, which .*: annotate datetime\.datetime"):
        converter(annotation)
