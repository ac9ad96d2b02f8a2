"""The boundary: code of the application may raise anything, and its values may lie about themselves."""

from __future__ import annotations

import os
import weakref
from typing import Any

import pytest

from kiqcluster.errors import as_exception, class_name, message_of, text_of
from kiqcluster.process.boundary.calls import guarded, is_a, name_of, shown
from kiqcluster.process.runtime import Setup

ERRORS = (TypeError, RuntimeError, MemoryError, SystemExit, KeyboardInterrupt, GeneratorExit)


class Anything(BaseException):
    """An error of the application that is no Exception."""


class Liar(str):
    """Text whose methods all raise, and whose class is another one for those who ask."""

    def _lie(self, *_: object) -> Any:
        raise Anything

    __str__ = __repr__ = __iter__ = __len__ = __eq__ = __hash__ = __getitem__ = encode = translate = _lie
    __class__ = property(_lie)  # type: ignore[assignment]


def test_code_that_raises_is_followed_by_what_is_done_instead() -> None:
    for kind in (*ERRORS, Anything):

        def fail(error: BaseException) -> None:
            raise error

        assert guarded(lambda error: type(error), fail, kind()) is kind


def test_code_that_returns_is_not() -> None:
    assert guarded(lambda _: "instead", lambda a, b: a + b, 1, b=2) == 3


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_child_that_the_code_forks_ends_where_it_returns(is_failing: bool) -> None:
    children: list[int] = []

    def fork() -> None:
        if pid := os.fork():
            children.append(pid)
        elif is_failing:
            raise SystemExit(5)

    guarded(lambda _: None, fork)

    (child,) = children  # the child would have gone on with the tests
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (5 if is_failing else 0)


def test_what_the_code_held_is_free_once_it_has_raised() -> None:
    """Without the collector of cycles, which may come late."""

    class Large:
        pass

    held: list[weakref.ref[Large]] = []

    def fail() -> None:
        local = Large()
        held.append(weakref.ref(local))
        raise ValueError

    guarded(message_of, fail)

    assert held[0]() is None


def test_a_type_is_asked_and_not_its_value() -> None:
    assert is_a(Liar("x"), str)
    assert not is_a(Liar("x"), (int, float))


def test_the_name_of_anything_can_be_had() -> None:
    def hook() -> None: ...

    class Callable:
        @property
        def __name__(self) -> str:
            raise Anything

    assert [name_of(hook), name_of(Callable()), name_of(Callable)] == ["hook", "Callable", "Callable"]


class TestErrors:
    @pytest.mark.parametrize("kind", [*ERRORS, Anything])
    def test_a_text_that_fails_is_replaced(self, kind: type[BaseException]) -> None:
        class Failing(Exception):
            def __str__(self) -> str:
                raise kind

        assert message_of(Failing()) == f"(its message cannot be shown: {class_name(kind())})"
        assert str(as_exception(kind("gone"))).endswith("gone")

    def test_a_text_of_a_class_of_its_own_becomes_plain(self) -> None:
        class Failing(Exception):
            def __str__(self) -> str:
                return Liar("gone")

        assert (type(message_of(Failing())), message_of(Failing())) == (str, "gone")
        assert text_of(5) == "5"

    def test_an_error_that_is_an_exception_stays_what_it_is(self) -> None:
        class Lying(ValueError):
            __class__ = property(lambda _: SystemExit)  # type: ignore[assignment]

        error = Lying()
        other = as_exception(SystemExit(3))

        assert as_exception(error) is error
        assert (type(other), type(other.__cause__)) == (RuntimeError, SystemExit)

    def test_the_name_of_its_class_is_text_that_can_be_sent(self) -> None:
        class Meta(type):
            def __getattribute__(cls, name: str) -> Any:
                raise SystemExit(name)

        odd = type("Odd", (Exception,), {"__module__": "shop", "__qualname__": "half \ud800"})
        lying = Meta("Lying", (Exception,), {"__module__": 5})
        elsewhere = type("Odd", (Exception,), {"__module__": "half \ud800"})

        assert class_name(odd()) == "shop.half ?"
        assert class_name(elsewhere()) == "half ?.Odd"
        assert class_name(lying()) == "Lying"
        assert class_name(ValueError()) == "ValueError"


def test_a_value_is_shown_by_type_and_text_within_bounds() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            raise SystemExit(name)

    assert shown(5) == "int 5"
    assert shown(Meta("Lying", (), {"__str__": lambda _: Liar("x")})()) == "Meta x"
    assert len(shown("x" * 1_000)) == 200


def test_an_error_that_is_empty_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture, setup: Setup) -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    def fail() -> None:
        raise Empty("none")

    guarded(lambda error: setup.notify_error_handlers(as_exception(error), {"context": "a hook"}), fail)

    (record,) = caplog.records
    assert "in fail" in str(record.exc_text)
