"""Annotations: aliases of types (`type X = …`), which Python looks at when somebody asks for what they name."""

from __future__ import annotations

import sys
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from kiqcluster import job
from kiqcluster.application.annotations import Needs, Unresolved, needs_of
from kiqcluster.application.argument_types import TypedDefinition
from kiqcluster.application.converters import converter_of
from kiqcluster.errors import JobDefinitionError

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 12), reason="the statement `type` is one of Python 3.12"),
    pytest.mark.usefixtures("setup"),
]

ALIASES = """
type Day = date
type Numbers = dict[str, int]
type Pair[T] = tuple[T, datetime]
type Box[T] = list[T]
type Later = list[NotYet]
type Wrong = 1 / 0
type Missing = sys.Missing
type Tree = dict[str, Tree | date]
type Row = Path
"""


@pytest.fixture
def names() -> dict[str, Any]:
    found: dict[str, Any] = {"date": date, "datetime": datetime, "Path": Path, "sys": sys}
    exec(ALIASES, found)
    return found


@pytest.mark.parametrize(
    ("annotation", "needs"),
    [
        ("Day", Needs.CONVERSION),
        ("Day | None", Needs.CONVERSION),
        ("Box[Day]", Needs.CONVERSION),
        ("Box[Box[date]]", Needs.CONVERSION),
        ("Pair[int]", Needs.CONVERSION | Needs.LISTS | Needs.ZONES),
        ("list[Pair[Numbers]]", Needs.CONVERSION | Needs.LISTS | Needs.ZONES),
        ("Tree", Needs.CONVERSION),
        ("Numbers", Needs.NOTHING),
        ("Box[int]", Needs.NOTHING),
        ("Row", Needs.NOTHING),
    ],
)
def test_the_needs_of_an_alias_are_those_of_the_type_that_it_names(
    names: dict[str, Any], annotation: str, needs: Needs
) -> None:
    assert needs_of(eval(annotation, names), "it") == needs


def test_a_generic_alias_converts(names: dict[str, Any]) -> None:
    annotation, now = eval("Pair[int]", names), datetime.fromisoformat("2026-11-20T12:00:00+00:00")
    made = converter_of(annotation, "it", needs_of(annotation, "it"))

    assert made.write((1, now)) == [1, "2026-11-20T12:00:00Z"]
    assert made.read([1, "2026-11-20T12:00:00Z"]) == (1, now)


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        ("Later", "name 'NotYet' is not defined, in Later"),
        ("Wrong", "division by zero, in Wrong"),
        ("Missing", "has no attribute 'Missing', in Missing"),
    ],
)
def test_an_alias_of_what_is_not_known_is_unresolved(names: dict[str, Any], annotation: str, reason: str) -> None:
    with pytest.raises(Unresolved, match=reason):
        needs_of(names[annotation], "it")


def test_an_alias_may_name_what_is_known_later(names: dict[str, Any]) -> None:
    def send(what: Any) -> None: ...

    send.__annotations__ = {"what": names["Later"]}
    definition = job(send).definition
    assert type(definition) is TypedDefinition
    with pytest.raises(JobDefinitionError, match="name 'NotYet' is not defined, in Later; import the name"):
        definition.positional(([],), {})

    names["NotYet"] = date

    assert definition.positional(([date(2026, 11, 20)],), {}) == [["2026-11-20"]]


def test_a_foreign_type_in_an_alias_is_refused_beside_types_that_are_converted(names: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError, match=r"it is a pathlib\S*\.Path"):
        needs_of(eval("Day | Row", names), "it")


def test_an_alias_within_itself_is_refused_when_the_job_is_defined(names: dict[str, Any]) -> None:
    with pytest.raises(JobDefinitionError, match="an alias names itself; use a dataclass"):
        converter_of(names["Tree"], "it", Needs.CONVERSION)
