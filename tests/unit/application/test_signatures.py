"""Signatures: decorators that pass on other arguments than they take, and those that pass on what they get."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest

from kiqcluster import Job, job
from kiqcluster.application.registry import Definition
from kiqcluster.errors import InvalidArguments, JobDefinitionError
from kiqcluster.iterable import IterableJob

Function = Callable[..., Any]


def inject(function: Function) -> Function:
    """Give the function its first argument."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function("session", *args, **kwargs)

    return inner


def inject_by_keyword(function: Function) -> Function:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, session="session", **kwargs)

    return inner


def pass_on(function: Function) -> Function:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@contextmanager
def timed() -> Iterator[None]:
    yield


def declared(*decorators: Callable[[Function], Function]) -> Definition:
    def send(session: str, order: int, copies: int = 1, note: str = "") -> list[Any]:
        return [session, order, copies, note]

    found: Function = send
    for decorate in decorators:
        found = decorate(found)
    definition: Definition = job(found).definition  # type: ignore[attr-defined]
    return definition


def called(definition: Definition, *args: Any, **kwargs: Any) -> Any:
    """Return what the job returns for a push with these arguments."""
    arguments = definition.positional(args, kwargs)
    assert definition.fits(arguments) is None
    assert definition.fewest <= len(arguments) <= definition.most
    return definition.prepare()[1](*arguments)


@pytest.mark.parametrize("decorators", [(inject,), (pass_on, inject), (inject, pass_on), (inject, timed())])
def test_a_decorator_may_give_an_argument_of_its_own(decorators: tuple[Callable[[Function], Function], ...]) -> None:
    definition = declared(*decorators)

    assert called(definition, 7) == ["session", 7, 1, ""]
    assert called(definition, 7, 2, "soon") == ["session", 7, 2, "soon"]


def test_keywords_right_behind_the_positions_find_theirs() -> None:
    definition = declared(pass_on)

    assert called(definition, "a", 7, copies=2) == ["a", 7, 2, ""]
    assert called(definition, "a", note="soon", copies=2, order=7) == ["a", 7, 2, "soon"]


@pytest.mark.parametrize("decorate", [inject, pass_on])
@pytest.mark.parametrize(
    ("args", "kwargs", "name"),
    [((7,), {"copies": 2}, "copies"), ((), {"order": 7}, "order"), (("a", 7), {"colour": 1}, "colour")],
)
def test_a_keyword_whose_position_is_not_certain_is_refused(
    decorate: Callable[[Function], Function], args: tuple[Any, ...], kwargs: dict[str, Any], name: str
) -> None:
    """With `inject`, 7 is the order; with `pass_on`, it is the session."""
    with pytest.raises(InvalidArguments, match=f"decorator hides its parameters, so '{name}' has no certain"):
        declared(decorate).positional(args, kwargs)


def test_one_that_gives_it_by_keyword_hides_a_parameter_that_only_keywords_reach() -> None:
    @job
    @inject_by_keyword
    def send(order: int, *, session: str) -> list[Any]:
        return [order, session]

    assert called(send.definition, 7) == [7, "session"]


def test_decorators_of_contextlib_pass_on_what_they_get() -> None:
    @job
    @timed()
    def send(order: int, price: Decimal | None = None) -> None: ...

    definition = send.definition

    assert list(definition.signature.parameters) == ["order", "price"]
    assert definition.positional((7,), {"price": Decimal("9.90")}) == [7, "9.90"]
    with pytest.raises(InvalidArguments):
        definition.positional((), {})


def test_a_decorator_may_say_what_it_takes() -> None:
    def inject_order(function: Function) -> Function:
        inner = inject(function)
        own = inspect.signature(function)
        inner.__signature__ = own.replace(parameters=list(own.parameters.values())[1:])  # type: ignore[attr-defined]
        return inner

    definition = declared(inject_order)

    assert called(definition, 7, note="soon") == ["session", 7, 1, "soon"]
    with pytest.raises(InvalidArguments):
        definition.positional((), {})


def test_what_the_hidden_function_returns_is_converted_as_it_says() -> None:
    @job(result_ttl=60)
    @inject
    def price(session: str) -> Decimal: ...

    assert price.definition.write_result(Decimal("9.90")) == "9.90"


def test_methods_have_a_self_that_is_no_argument() -> None:
    class Plain(Job):
        @inject_by_keyword
        def perform(self, order: int, session: str = "") -> list[Any]:
            return [order, session]

    class Static(Job):
        @staticmethod
        @inject
        def perform(session: str, order: int) -> list[Any]:
            return [session, order]

    assert called(Plain.definition, 7) == [7, "session"]
    assert called(Plain.definition, order=7) == [7, "session"]
    assert called(Static.definition, 7) == ["session", 7]


def test_parts_of_an_iterable_job_may_have_such_decorators() -> None:
    def inject_item(method: Function) -> Function:
        @functools.wraps(method)
        def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
            return method(self, "session", *args, **kwargs)

        return inner

    class Send(IterableJob):
        @pass_on
        def build_enumerator(self, order: int, cursor: Any) -> Any:
            return iter([])

        @inject_item
        def each_iteration(self, session: str, item: int, order: int) -> None: ...

    assert Send.definition.positional((7,), {}) == [7]
    assert Send.definition.fits([7]) is None


def test_a_function_without_a_decorator_takes_no_keywords_without_a_position() -> None:
    with pytest.raises(JobDefinitionError, match="can only be passed by keyword"):

        @job
        def send(*args: Any, **kwargs: Any) -> None: ...
