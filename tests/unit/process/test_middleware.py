"""The chain of links around a push or a run."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from unittest.mock import Mock

import pytest

from kiqcluster.errors import UsageError
from kiqcluster.middleware import Chain  # where the API page has it

Middleware = Callable[[list[str], Callable[[], str | None]], str | None]


def make(name: str) -> Middleware:
    """Return a link that notes when it begins and ends."""

    def noting(subject: list[str], proceed: Callable[[], str | None]) -> str | None:
        subject.append(f"{name}(")
        result = proceed()
        subject.append(f"){name}")
        return result

    noting.__name__ = name
    return noting


class Counting:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1

    def __call__(self, subject: list[str], proceed: Callable[[], str | None]) -> str | None:
        subject.append("counting")
        return proceed()


A, B, C, D = make("a"), make("b"), make("c"), make("d")


@pytest.fixture
def chain() -> Chain[list[str], str | None]:
    """A, then B, then C."""
    chain: Chain[list[str], str | None] = Chain()
    for each in (A, B, C):
        chain.add(each)
    return chain


class TestOrder:
    def test_the_first_link_is_the_outermost(self, chain: Chain[list[str], str | None]) -> None:
        subject: list[str] = []

        result = chain.invoke(subject, lambda: subject.append("last") or "done")

        assert subject == ["a(", "b(", "c(", "last", ")c", ")b", ")a"]
        assert result == "done"

    def test_without_links_the_last_step_is_all(self) -> None:
        assert Chain[list[str], str]().invoke([], lambda: "done") == "done"

    def test_a_link_that_does_not_proceed_ends_it(self, chain: Chain[list[str], str | None]) -> None:
        subject: list[str] = []
        chain.replace(B, lambda subject, proceed: None)

        assert chain.invoke(subject, lambda: "done") is None
        assert subject == ["a(", ")a"]

    def test_a_link_may_change_the_result(self, chain: Chain[list[str], str | None]) -> None:
        chain.prepend(lambda subject, proceed: f"<{proceed()}>")

        assert chain.invoke([], lambda: "done") == "<done>"

    def test_an_error_comes_through_all_links(self, chain: Chain[list[str], str | None]) -> None:
        with pytest.raises(ZeroDivisionError):
            chain.invoke([], lambda: str(1 // 0))

    def test_a_chain_can_be_invoked_within_itself(self, chain: Chain[list[str], str | None]) -> None:
        subject: list[str] = []
        chain.clear()
        chain.add(A)

        chain.invoke(subject, lambda: chain.invoke(subject, lambda: "inner"))

        assert subject == ["a(", "a(", ")a", ")a"]


class TestChanges:
    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (lambda chain: chain.add(D), [A, B, C, D]),
            (lambda chain: chain.prepend(D), [D, A, B, C]),
            (lambda chain: chain.insert_before(A, D), [D, A, B, C]),
            (lambda chain: chain.insert_before(C, D), [A, B, D, C]),
            (lambda chain: chain.insert_after(A, D), [A, D, B, C]),
            (lambda chain: chain.insert_after(C, D), [A, B, C, D]),
            (lambda chain: chain.replace(B, D), [A, D, C]),
            (lambda chain: chain.remove(B), [A, C]),
            (lambda chain: chain.clear(), []),
        ],
    )
    def test_links_go_where_they_are_put(
        self, chain: Chain[list[str], str | None], change: Callable[[object], object], expected: list[Middleware]
    ) -> None:
        change(chain)

        assert list(chain) == expected
        assert len(chain) == len(expected)

    @pytest.mark.parametrize(
        "change",
        [
            lambda chain: chain.insert_before(D, A),
            lambda chain: chain.insert_after(D, A),
            lambda chain: chain.replace(D, A),
            lambda chain: chain.remove(D),
        ],
    )
    def test_a_link_that_is_not_there_is_an_error_and_changes_nothing(
        self, chain: Chain[list[str], str | None], change: Callable[[object], object]
    ) -> None:
        with pytest.raises(UsageError, match="a, b, c"):
            change(chain)

        assert list(chain) == [A, B, C]

    def test_an_empty_chain_says_so(self) -> None:
        with pytest.raises(UsageError, match="no middleware"):
            Chain[list[str], str]().remove(A)

    def test_add_and_prepend_return_the_link_so_they_decorate(self, chain: Chain[list[str], str | None]) -> None:
        assert chain.add(D) is D
        assert chain.prepend(D) is D


class TestClasses:
    def test_a_class_is_instantiated_once_when_it_is_added(self, chain: Chain[list[str], str | None]) -> None:
        Counting.made = 0

        chain.add(Counting)  # type: ignore[arg-type]
        chain.invoke([], lambda: None)
        chain.invoke([], lambda: None)

        assert Counting.made == 1

    def test_its_link_is_named_by_the_class(self, chain: Chain[list[str], str | None]) -> None:
        chain.add(Counting)  # type: ignore[arg-type]

        chain.insert_before(Counting, D)
        chain.remove(Counting)

        assert list(chain) == [A, B, C, D]


class Dramatiq:
    def before_process_message(self, broker: object, message: object) -> None: ...


class Ruby:
    def call(self, job: object, payload: object, queue: str) -> None: ...


class Configured:
    def __init__(self, region: str) -> None:
        self.region = region

    def __call__(self, _subject: list[str], proceed: Callable[[], str | None]) -> str | None:
        return proceed()


def yielding(_subject: list[str], _proceed: Callable[[], str | None]) -> Iterator[None]:
    yield


class TestForms:
    """A middleware of another library's form would fail each push with a bare TypeError."""

    @pytest.mark.parametrize(
        ("wrong", "remedy"),
        [
            (lambda proceed: proceed, "it is called with (run, proceed)"),
            (lambda job, payload, queue: None, "it is called with (run, proceed)"),
            (lambda *, run, proceed: None, "it is called with (run, proceed)"),
            (Dramatiq, "write a function (run, proceed)"),
            (Ruby, "write a function (run, proceed)"),
            ("app.middleware", "write a function (run, proceed)"),
            (None, "write a function (run, proceed)"),
            (yielding, "has a yield in it"),
            (Configured, "add an instance of it"),
        ],
    )
    @pytest.mark.parametrize("verb", ["add", "prepend", "insert_before", "insert_after", "replace"])
    def test_another_form_is_refused_where_it_is_added(
        self, chain: Chain[list[str], str | None], verb: str, wrong: object, remedy: str
    ) -> None:
        existing = () if verb in ("add", "prepend") else (B,)

        with pytest.raises(UsageError, match=re.escape(remedy)):
            getattr(chain, verb)(*existing, wrong)

        assert list(chain) == [A, B, C]

    @pytest.mark.parametrize(
        "middleware",
        [
            lambda *arguments: arguments[1](),
            lambda subject, proceed, *more, **options: proceed(),
            lambda subject, proceed, limit=3: proceed(),
            partial(lambda limit, subject, proceed: proceed(), 3),
            Configured("eu"),
            Configured("eu").__call__,
            Mock(side_effect=lambda subject, proceed: proceed()),
        ],
    )
    def test_whatever_can_be_called_so_is_a_middleware(self, middleware: Middleware) -> None:
        chain = Chain[list[str], str | None]()
        chain.add(middleware)

        assert chain.invoke([], lambda: "done") == "done"

    def test_the_outermost_signature_counts(self, chain: Chain[list[str], str | None]) -> None:
        @functools.wraps(A)
        def wrapped(subject: list[str]) -> str | None: ...

        with pytest.raises(UsageError, match="it is called with"):
            chain.add(wrapped)  # type: ignore[arg-type]


class TestAsync:
    def test_a_coroutine_function_is_refused_with_what_to_write(self) -> None:
        async def around(_subject: list[str], _proceed: Callable[[], str | None]) -> str | None: ...

        class Around:
            async def __call__(self, _subject: list[str], _proceed: Callable[[], str | None]) -> str | None: ...

        for wrong in (around, Around, Around()):
            with pytest.raises(UsageError, match="async def acall"):
                Chain[list[str], str | None]().add(wrong)  # type: ignore[arg-type]

    def test_async_methods_are_run_in_order(self) -> None:
        class Around:
            def __init__(self, name: str) -> None:
                self.name = name

            def __call__(self, _subject: list[str], proceed: Callable[[], str | None]) -> str | None:
                return proceed()

            async def acall(self, subject: list[str], proceed: Callable[[], Awaitable[str | None]]) -> str | None:
                subject.append(f"before {self.name}")
                returned = await proceed()
                subject.append(f"after {self.name}")
                return returned

        chain = Chain[list[str], str | None]()
        chain.add(Around("a"))
        chain.add(Around("b"))
        seen: list[str] = []

        async def last() -> str | None:
            seen.append("last")
            return "done"

        assert chain.is_async()
        assert asyncio.run(chain.ainvoke(seen, last)) == "done"
        assert seen == ["before a", "before b", "last", "after b", "after a"]

    def test_one_without_makes_the_chain_a_plain_one(self) -> None:
        chain = Chain[list[str], str | None]()
        assert chain.is_async()

        chain.add(lambda _subject, proceed: proceed())

        assert not chain.is_async()


def test_a_class_is_discarded_whether_it_is_there_or_not(chain: Chain[list[str], str | None]) -> None:
    before = chain.stack
    chain.discard(Counting)
    assert chain.stack == before

    chain.prepend(Counting)
    chain.discard(Counting)
    assert chain.stack == before
