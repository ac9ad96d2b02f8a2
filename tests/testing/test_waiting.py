"""wait_until: the first truthy value, or an error that says what was waited for."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest

from kiqcluster.testing import wait_until, waiting


def test_the_first_truthy_value_is_returned() -> None:
    values = iter([0, "", None, "there", 1 / 3])

    assert wait_until(lambda: next(values), "a value") == "there"


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between the checks, which last no time."""
    pauses: list[float] = []
    monkeypatch.setattr(waiting, "NEVER_SET", SimpleNamespace(wait=pauses.append))
    return pauses


def test_what_was_waited_for_is_said(pauses: list[float]) -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.05 s in vain for: the moon"):
        wait_until(lambda: False, "the moon", seconds=0.05)


def test_checks_become_fewer(pauses: list[float]) -> None:
    values = iter([0] * 6 + [1])

    wait_until(lambda: next(values), "a value")

    assert pauses == [0.01, 0.01, 0.02, 0.04, 0.04, 0.04]


def test_it_looks_often_enough_before_it_gives_up_whatever_time_has_passed(pauses: list[float]) -> None:
    values = iter([False] * 199 + [True])

    assert wait_until(lambda: next(values), "a value that comes late", seconds=0)


def test_it_gives_up_after_some_time_though_each_look_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0.0, 10.0)
    monkeypatch.setattr(waiting.SystemClock, "monotonic", lambda: next(now))

    with pytest.raises(AssertionError, match="in vain"):
        wait_until(lambda: False, "the moon")

    assert next(now) == 90.0


def test_there_is_a_look_even_without_time() -> None:
    assert wait_until(lambda: True, "nothing", seconds=0)


def test_an_error_of_the_condition_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, "an error")
