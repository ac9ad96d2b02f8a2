"""The registry: whose name it is, and how arguments become positions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kiqcluster.application.registry import Definition, Registry, current_registry, using_registry
from kiqcluster.errors import InvalidArguments, JobDefinitionError
from kiqcluster.sidekiq.active_job import WRAPPER, Keywords


def define(function: Callable[..., Any], name: str = "X", origin: tuple[str, str] = ("app.jobs", "X")) -> Definition:
    return Definition(
        name=name,
        queue="default",
        options={"retry": True, "queue": "default"},
        prepare=lambda: (None, function),
        signature=inspect.signature(function),
        origin=origin,
    )


def nothing() -> None: ...
def two(a: int, b: int) -> None: ...
def optional(a: int, b: int = 2, c: int = 3, d: int = 4) -> None: ...
def many(a: int, b: int = 2, *rest: int) -> None: ...
def positional_only(a: int, b: int = 2, /, c: int = 3) -> None: ...
def by_keyword(a: int, b: int = 2, *, c: int = 3) -> None: ...
def some_by_keyword(a: int, *rest: int, c: int, **more: int) -> None: ...


class TestPositions:
    @pytest.mark.parametrize(
        ("function", "args", "kwargs", "expected"),
        [
            (nothing, (), {}, []),
            (two, (1, 2), {}, [1, 2]),
            (two, (1,), {"b": 2}, [1, 2]),
            (two, (), {"b": 2, "a": 1}, [1, 2]),
            (optional, (1,), {}, [1]),
            (optional, (), {"a": 1}, [1]),
            (optional, (1,), {"b": 20}, [1, 20]),
            (optional, (1,), {"c": 30}, [1, 2, 30]),
            (optional, (1,), {"d": 40}, [1, 2, 3, 40]),
            (optional, (1,), {"d": 40, "b": 20}, [1, 20, 3, 40]),
            (optional, (1, 2, 3, 4), {}, [1, 2, 3, 4]),
            (many, (1,), {}, [1]),
            (many, (), {"a": 1}, [1]),
            (many, (1, 2, 3, 4), {}, [1, 2, 3, 4]),
            (many, (), {"b": 5, "a": 1}, [1, 5]),
            (positional_only, (1,), {"c": 5}, [1, 2, 5]),
            (by_keyword, (1,), {}, [1]),
            (by_keyword, (1, 3), {}, [1, 3]),
            (by_keyword, (1,), {"c": 5}, [1, Keywords(c=5)]),
            (by_keyword, (), {"c": 5, "a": 1, "b": 2}, [1, 2, Keywords(c=5)]),
            (some_by_keyword, (1, 2), {"c": 3, "d": 4}, [1, 2, Keywords(c=3, d=4)]),
        ],
    )
    def test_keywords_take_their_positions_and_gaps_their_defaults(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], expected: list[Any]
    ) -> None:
        assert define(function).positional(args, kwargs) == expected

    @pytest.mark.parametrize(
        ("function", "args", "kwargs"),
        [
            (nothing, (1,), {}),
            (two, (1,), {}),
            (two, (1, 2, 3), {}),
            (two, (1, 2), {"b": 2}),
            (two, (1,), {"c": 2}),
            (optional, (), {}),
            (optional, (), {"b": 2}),
            (many, (), {}),
            (many, (1,), {"rest": [2]}),
            (positional_only, (), {"a": 1}),
            (by_keyword, (1, 2, 3), {}),
            (some_by_keyword, (1,), {}),
            (some_by_keyword, (1, 2, 3), {}),
        ],
    )
    def test_what_does_not_fit_is_refused_with_the_signature(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        definition = define(function)

        with pytest.raises(InvalidArguments) as caught:
            definition.positional(args, kwargs)

        assert str(definition.signature) in str(caught.value)
        assert isinstance(caught.value, TypeError), "what a wrong call of the function itself would raise"

    def test_the_result_is_the_callers_own(self) -> None:
        args = (1, 2)

        assert define(two).positional(args, {}) is not args


class TestFits:
    @pytest.mark.parametrize(
        ("function", "count", "fits"),
        [
            (nothing, 0, True),
            (nothing, 1, False),
            (two, 1, False),
            (two, 2, True),
            (two, 3, False),
            (optional, 0, False),
            (optional, 1, True),
            (optional, 4, True),
            (optional, 5, False),
            (many, 0, False),
            (many, 1, True),
            (many, 1_000, True),
            (by_keyword, 2, True),
            (by_keyword, 3, False),
            (some_by_keyword, 1, False),
        ],
    )
    def test_a_payload_fits_when_perform_could_be_called_with_it(
        self, function: Callable[..., Any], count: int, fits: bool
    ) -> None:
        reason = define(function).fits([0] * count)

        assert (reason is None) is fits
        assert fits or str(inspect.signature(function)) in str(reason)


def test_a_definition_shows_what_one_wants_to_know_and_no_more() -> None:
    assert (
        repr(define(many, "Acme::Many"))
        == "<job Acme::Many(a: 'int', b: 'int' = 2, *rest: 'int') -> 'None' on default>"
    )


class TestNames:
    def test_what_was_added_is_found_and_listed(self) -> None:
        registry = Registry()
        one, other = define(nothing, "A"), define(nothing, "B")
        registry.add(one)
        registry.add(other)

        assert (registry.get("A"), registry.get("B"), registry.get("C")) == (one, other, None)
        assert (list(registry), len(registry)) == ([one, other], 2)

    def test_the_same_place_replaces_as_a_reload_does(self) -> None:
        registry = Registry()
        old, new = define(nothing), define(two)
        registry.add(old)
        registry.add(new)

        assert registry.get("X") is new
        assert len(registry) == 1

    def test_a_payload_is_run_by_the_job_that_it_names_or_wraps(self) -> None:
        registry = Registry()
        plain, active = define(two, "Plain", ("app", "Plain")), define(two, "Active", ("app", "Active")).with_envelope()
        registry.add(plain)
        registry.add(active)

        assert registry.find({"class": "Plain"}) == ("Plain", plain)
        assert registry.find({"class": "Active"}) == ("Active", active)
        assert registry.find({"class": WRAPPER, "wrapped": "Active"}) == ("Active", active.enveloped)
        assert registry.find({"class": WRAPPER, "wrapped": "Plain"}) == ("Plain", None)
        assert registry.find({"class": WRAPPER, "wrapped": "Other"}) == ("Other", None)
        assert registry.find({"class": WRAPPER}) == (WRAPPER, None)

    @pytest.mark.parametrize("error", [ImportError("no such module"), SystemExit(3), MemoryError()])
    def test_a_look_up_by_an_integration_that_fails_finds_nothing(self, error: BaseException) -> None:
        """The job waits, as one of an unknown class: another release may have the module."""
        registry = Registry()

        def resolve(_name: str) -> Definition:
            raise error

        registry.resolve = resolve

        assert registry.find({"class": "shop.jobs.ship"}) == ("shop.jobs.ship", None)

    @pytest.mark.parametrize("origin", [("app.jobs", "Y"), ("app.other", "X")])
    def test_another_place_that_claims_the_name_is_an_error_that_names_both(self, origin: tuple[str, str]) -> None:
        registry = Registry()
        old = define(nothing)
        registry.add(old)

        with pytest.raises(JobDefinitionError) as caught:
            registry.add(define(nothing, origin=origin))

        assert "app.jobs.X" in str(caught.value)
        assert ".".join(origin) in str(caught.value)
        assert registry.get("X") is old

    def test_another_registry_is_in_force_within_its_block_only(self) -> None:
        before = current_registry()

        with pytest.raises(ZeroDivisionError), using_registry(Registry()) as inner:
            assert current_registry() is inner
            raise ZeroDivisionError

        assert current_registry() is before
