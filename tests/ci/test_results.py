"""Results: the first failure of a test is kept, and a failure by which jobs do not add up is marked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.ledger import Audit
from tests.ci import results
from tests.ci.results import CRASHED, Results
from tests.kit import JobsMiscounted

NONE: frozenset[str] = frozenset()


def report(when: str = "call", outcome: str = "failed", text: str = "assert 1 == 2\n…", **more: Any) -> Any:
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message=text))
    fields = {"nodeid": "a.py::b", "when": when, "failed": outcome == "failed", "duration": 1.5, "longrepr": crash}
    return SimpleNamespace(**fields, **more)


def raised(error: BaseException) -> pytest.ExceptionInfo[BaseException]:
    try:
        raise error
    except BaseException:  # it is what the test asks for
        return pytest.ExceptionInfo.from_current()


def test_the_first_failure_of_a_test_is_kept_with_all_its_time(tmp_path: Path) -> None:
    found = Results()
    for each in (report("setup", "passed"), report(), report("teardown", text="another")):
        found.add(each)

    found.write(tmp_path / "x.json")
    (failure,) = results.read(tmp_path / "x.json").failures.values()

    assert (failure.test, failure.message, failure.seconds, failure.grave) == ("a.py::b", "assert 1 == 2", 4.5, "")


def test_a_run_that_has_written_nothing_has_no_results(tmp_path: Path) -> None:
    assert results.read(tmp_path / "none.json") == Results()


def test_a_crash_and_a_mark_are_kept() -> None:
    found = Results()
    found.add(report("???"))
    assert found.failures["a.py::b"].grave == CRASHED

    marked = Results()
    marked.add(report(grave="lost: 4711"))
    assert marked.failures["a.py::b"].grave == "lost: 4711"


def test_an_error_that_says_so_is_a_miscount() -> None:
    assert results.miscount(raised(JobsMiscounted("x_total from 7 to 2")), {}) == "x_total from 7 to 2"
    assert results.miscount(raised(AssertionError("late")), {}) == ""


def test_an_audit_is_asked_wherever_it_lies() -> None:
    lost = Audit(2, 1, frozenset({"4711"}), 0, {}, NONE, 0, NONE)
    assert results.miscount(raised(AssertionError()), {"audit": lost}) == "lost: 4711"

    def check(audit: Audit) -> None:
        assert audit.ended == 7

    with pytest.raises(AssertionError) as caught:
        check(lost)
    assert results.miscount(caught, {}) == "lost: 4711"


def test_an_audit_without_harm_is_none() -> None:
    assert Audit(2, 2, NONE, 0, {}, NONE, 0, NONE).miscount() == ""
