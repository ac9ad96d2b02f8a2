"""flaky.toml: at most ten tests, each for two weeks, and each with what is known of it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from tests.ci import flaky

TODAY = date(2026, 2, 14)
ENTRY = {"test": "tests/ci/test_flaky.py::test_a", "date": TODAY, "message": "assert 1 < 1", "guess": "none"}


def test_the_list_is_short_and_young() -> None:
    assert list(flaky.faults(flaky.entries(), datetime.now(UTC).date())) == []


def test_a_whole_entry_is_no_fault() -> None:
    assert list(flaky.faults([ENTRY, {**ENTRY, "date": TODAY - timedelta(days=14)}], TODAY)) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"date": TODAY - timedelta(days=15)}, "for more than 14 days"),
        ({"date": TODAY + timedelta(days=1)}, "yet to come"),
        ({"guess": ""}, "needs test, date, message, guess"),
        ({"reruns": 3}, "and nothing else"),
        ({"date": "2026-02-14"}, "needs test, date"),
        ({"test": "tests/gone.py::test_a"}, "no such file"),
    ],
)
def test_a_fault_is_said(changed: dict[str, Any], said: str) -> None:
    (fault,) = flaky.faults([{**ENTRY, **changed}], TODAY)

    assert said in fault


def test_an_eleventh_entry_is_too_many() -> None:
    assert list(flaky.faults([ENTRY] * 10, TODAY)) == []
    assert list(flaky.faults([ENTRY] * 11, TODAY)) == ["11 entries: at most 10, mend one first"]
