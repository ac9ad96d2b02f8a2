"""wait_until: the first truthy value, or an error that says what was waited for."""

from __future__ import annotations

import pytest

from kiqcluster.testing import wait_until


def test_the_first_truthy_value_is_returned() -> None:
    values = iter([0, "", None, "there", 1 / 3])

    assert wait_until(lambda: next(values), "a value") == "there"


def test_what_was_waited_for_is_said() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.05 s in vain for: the moon"):
        wait_until(lambda: False, "the moon", seconds=0.05)


def test_there_is_a_look_even_without_time() -> None:
    assert wait_until(lambda: True, "nothing", seconds=0)


def test_an_error_of_the_condition_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 / 0, "an error")
