"""Argument types: which jobs convert their arguments, when annotations are looked at, and what a misfit says."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from kiqcluster import Job, job
from kiqcluster.application.argument_types import TypedDefinition, TypedResult, check_types
from kiqcluster.application.registry import Definition, Registry, current_registry, using_registry
from kiqcluster.errors import InvalidArguments, JobDefinitionError, MisfitArguments, UsageError
from kiqcluster.process.runtime import Setup
from kiqcluster.testing import fake
from tests.unit.application import typed_jobs

pytestmark = pytest.mark.usefixtures("setup")

TODAY = date(2026, 11, 20)


@dataclass
class Line:
    price: Decimal


@dataclass
class Order:
    id: int
    lines: list[Line]


def plain(a: int, b: str | None, c: dict[str, Any], d: list[Any], *rest: object) -> None: ...
def bare(a, b=1): ...  # type: ignore[no-untyped-def]
def paths(a: Path, b: list[Path]) -> None: ...
def bill(order: Order, on: date = None, again: date = TODAY, n: int = 0) -> None: ...  # type: ignore[assignment]  # noqa: RUF013
def days(first: date, *others: date) -> None: ...
def total(a: int) -> Decimal: ...  # type: ignore[empty-body]


def define(function: Any) -> Definition:
    with using_registry(Registry()):
        made: Definition = job(name="X")(function).definition
    current_registry().add(replace(made, origin=("app", "X"), declared_at=None))
    return made


@pytest.fixture
def later() -> Iterator[None]:
    """Have the module define a name that its annotations use."""
    typed_jobs.LATE["Later"] = date
    yield
    del typed_jobs.LATE["Later"]


class TestWhichJobs:
    @pytest.mark.parametrize("function", [plain, bare, paths, typed_jobs.sequence])
    def test_one_without_such_annotations_has_an_ordinary_definition(self, function: Any) -> None:
        definition = define(function)

        assert type(definition) is Definition
        assert definition.prepare() == (None, function), "its run does nothing more"

    def test_one_that_only_returns_such_a_type_runs_as_an_ordinary_one(self) -> None:
        definition = define(total)

        assert type(definition) is TypedResult
        assert definition.prepare() == (None, total)
        assert TypedResult.positional is Definition.positional

    @pytest.mark.parametrize("function", [bill, days, typed_jobs.known_to_checkers])
    def test_others_are_typed(self, function: Any) -> None:
        assert type(define(function)) is TypedDefinition

    def test_a_job_of_rails_keeps_the_forms_of_active_job(self) -> None:
        assert type(job(name="X", active_job=True)(days).definition) is Definition

    def test_the_names_of_a_class_are_known_in_its_annotations(self) -> None:
        bill = typed_jobs.jobs()["Bill"]

        assert bill.definition.positional((bill.Order(7, TODAY),), {}) == [{"id": 7, "on": "2026-11-20"}]

    def test_a_subclass_in_another_module_has_the_names_of_its_base(self) -> None:
        class Again(typed_jobs.jobs()["Bill"]):  # type: ignore[misc]
            pass

        assert type(Again.definition) is TypedDefinition


class TestPush:
    def test_values_are_written_as_json(self) -> None:
        definition = define(bill)

        assert definition.positional((Order(1, []),), {}) == [{"id": 1, "lines": []}]
        assert definition.positional((Order(1, []), TODAY), {}) == [{"id": 1, "lines": []}, "2026-11-20"]
        assert definition.positional((), {"order": Order(1, []), "n": 5}) == [
            {"id": 1, "lines": []},
            None,
            "2026-11-20",
            5,
        ]
        assert define(days).positional((TODAY, TODAY), {}) == ["2026-11-20", "2026-11-20"]

    @pytest.mark.parametrize(
        ("function", "arguments", "path"),
        [
            (bill, (Order(1, [Line(Decimal(1)), Line(None)]),), "order.lines[1].price"),  # type: ignore[arg-type]
            (bill, (None,), "order"),
            (bill, (Order(1, []), 5), "on"),
            (days, (TODAY, TODAY, "x"), "others[1]"),
            (days, ("x",), "first"),
        ],
    )
    def test_a_misfit_is_refused_with_its_path(self, function: Any, arguments: Any, path: str) -> None:
        with pytest.raises(InvalidArguments, match="X was not enqueued") as caught:
            define(function).positional(arguments, {})

        assert caught.value.path == path
        assert path in str(caught.value)

    def test_arguments_that_do_not_fit_the_signature_are_refused_as_before(self) -> None:
        with pytest.raises(InvalidArguments, match="missing a required argument"):
            define(bill).positional((), {})


class TestRun:
    def test_perform_gets_values(self) -> None:
        seen: list[Any] = []

        class Collect(Job):
            def perform(self, *args: UUID) -> None:
                seen.extend(args)

        _, perform = Collect.definition.prepare()
        perform(str(UUID(int=7)))

        assert seen == [UUID(int=7)]

    def test_a_payload_that_does_not_fit_is_a_misfit(self) -> None:
        _, perform = define(bill).prepare()

        with pytest.raises(MisfitArguments, match=r"X\(order.*order\.lines\[0\]\.price: expected") as caught:
            perform({"id": 1, "lines": [{"price": []}]})
        assert caught.value.path == "order.lines[0].price"

    def test_keys_of_an_encrypted_job_see_its_last_argument_as_it_is(self) -> None:
        assert define(days).values(["2026-11-20", "sealed"], is_sealed=True) == [TODAY, "sealed"]
        assert define(plain).values([1, "sealed"], is_sealed=True) == [1, "sealed"]

    def test_whether_arguments_fit_is_said_without_a_run(self) -> None:
        definition = define(days)

        assert definition.fits(["2026-11-20"]) is None
        assert "first: invalid" in (definition.fits(["x"]) or "")
        assert "missing" in (definition.fits([]) or "")


class TestIterableAndLimitedJobs:
    def test_an_iterable_job_gets_values_in_each_iteration(self) -> None:
        made = typed_jobs.jobs()
        walk = made["Walk"]

        assert walk.definition.positional((TODAY,), {}) == ["2026-11-20"]
        with fake() as jobs:
            walk.perform_async(TODAY)
            jobs.drain()

        assert made["seen"] == [("a", TODAY)]

    def test_a_job_of_limited_capacity_gets_values_in_its_counts_and_its_work(self) -> None:
        made = typed_jobs.jobs()
        sync = made["Sync"]

        with fake() as jobs:
            sync.perform_with_capacity(TODAY)
            (enqueued,) = jobs.enqueued()
        assert enqueued.args == [0, "2026-11-20"]
        assert made["seen"] == [TODAY]

        with fake():
            sync.perform_inline(0, TODAY)
        assert set(made["seen"]) == {TODAY}
        assert len(made["seen"]) > 3, "counts, work, counts"


class TestNamesThatAreKnownLater:
    def test_are_looked_up_at_the_first_use(self, request: pytest.FixtureRequest) -> None:
        definition = define(typed_jobs.late)
        request.getfixturevalue("later")

        assert definition.positional((TODAY,), {}) == ["2026-11-20"]

    @pytest.mark.parametrize("function", [typed_jobs.late, typed_jobs.unknown])
    def test_unknown_ones_are_refused_at_the_push_at_the_run_and_at_the_boot(
        self, registry: Registry, function: Any
    ) -> None:
        definition = define(function)
        _, perform = definition.prepare()

        with pytest.raises(JobDefinitionError, match="is not defined; import the name where the job is defined"):
            definition.positional((TODAY,), {})
        with pytest.raises(MisfitArguments, match="is not defined; import the name"):
            perform("2026-11-20")
        with pytest.raises(JobDefinitionError, match="is not defined; import the name"):
            check_types(registry)

    def test_a_type_without_a_form_in_json_is_refused_when_the_job_is_defined(self) -> None:
        def mixed(day: date | Path) -> None: ...

        mixed.__annotations__ = {"day": date | Path, "return": None}
        with pytest.raises(JobDefinitionError, match=r"X: day is a pathlib\S*\.Path"):
            define(mixed)

    def test_one_that_only_a_result_has_is_no_reason_to_refuse(self) -> None:
        def mixed(a: int) -> date | Path: ...  # type: ignore[empty-body]

        mixed.__annotations__ = {"a": int, "return": date | Path}
        assert type(define(mixed)) is Definition


class TestResults:
    def test_are_written_and_read_by_the_annotation(self) -> None:
        definition = define(total)

        assert definition.write_result(Decimal("1.50")) == "1.50"
        assert definition.read_result("1.50") == Decimal("1.50")
        with pytest.raises(InvalidArguments, match=r"result: expected decimal, got object"):
            definition.write_result({})
        with pytest.raises(UsageError, match=r"handle\.status\(\)\.value is that as JSON"):
            definition.read_result([])

    def test_without_one_they_stay_as_they_are(self) -> None:
        definition = define(plain)

        assert definition.write_result(TODAY) is TODAY
        assert definition.read_result("2026-11-20") == "2026-11-20"


class TestInline:
    def test_perform_inline_goes_through_json(self, setup: Setup) -> None:
        @job
        def shift(order: Order, at: datetime) -> Order:
            assert at.tzinfo is not None
            return order

        given = Order(1, [Line(Decimal("1.50"))])
        returned = shift.perform_inline(given, datetime(2026, 1, 1, tzinfo=UTC))

        assert returned == given
        assert returned is not given

    def test_the_signature_of_a_job_stays_as_it_is(self) -> None:
        assert define(bill).signature == inspect.signature(bill)


def test_pydantic_is_imported_by_those_who_have_its_models_only() -> None:
    code = """
import sys, dataclasses, datetime
import kiqcluster
@dataclasses.dataclass
class Order:
    on: datetime.date
kiqcluster.job(name="X")(lambda order: None)
def send(order: Order): ...
assert kiqcluster.job(send).definition.positional((Order(datetime.date(2026, 1, 1)),), {})
assert "pydantic" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
