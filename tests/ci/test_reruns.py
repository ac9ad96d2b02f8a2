"""Reruns: who may run again, who may not, and what the box says."""

from __future__ import annotations

import dataclasses

import pytest

from tests.ci.__main__ import Second, box
from tests.ci.reruns import refusal
from tests.ci.results import CRASHED, Failure

SLOW = Failure("tests/process/test_stop.py::test_a", "waited 20 s in vain for: it to stop", 21.3, 9.7)
OTHER = dataclasses.replace(SLOW, test="tests/process/test_stop.py::test_b")


def test_one_or_two_tests_run_again() -> None:
    assert refusal([SLOW], {"kiqcluster/cli.py"}) == ""
    assert refusal([SLOW, OTHER], set()) == ""


def test_three_do_not() -> None:
    assert "3 tests failed" in refusal([SLOW, OTHER, dataclasses.replace(SLOW, test="x::y")], set())


@pytest.mark.parametrize(
    "test",
    [
        "tests/properties/test_laws.py::test_a",
        "tests/conformance/test_faults.py::test_a",
        "tests/interop/test_golden.py::test_a",
        "tests/interop/test_bytes.py::test_a",
    ],
)
def test_nothing_that_comes_out_the_same_each_time_runs_again(test: str) -> None:
    assert test in refusal([dataclasses.replace(SLOW, test=test)], set())


def test_a_test_that_the_submission_changes_does_not() -> None:
    assert "the submission changes this file" in refusal([SLOW, OTHER], {"tests/process/test_stop.py"})


def test_nothing_does_where_nobody_knows_what_the_submission_changes() -> None:
    assert "not known" in refusal([SLOW], None)


@pytest.mark.parametrize("grave", [CRASHED, "lost: 4711", "counters fell: x_total from 7 to 2"])
def test_a_crash_and_a_lost_job_are_no_matter_of_time(grave: str) -> None:
    assert grave in refusal([OTHER, dataclasses.replace(SLOW, grave=grave)], set())


def test_a_file_that_cannot_be_collected_does_not_run_again() -> None:
    assert "collected" in refusal([dataclasses.replace(SLOW, test="tests/process/test_stop.py")], set())


def test_the_box_has_both_runs_and_says_what_is_next() -> None:
    text = "\n".join(box([Second(SLOW, 2.1, True, "")]))

    for part in (SLOW.test, SLOW.message, "21.3 s", "load 9.7", "2.1 s", "passed", "tests/flaky.toml"):
        assert part in text


def test_the_box_of_a_test_that_failed_again_has_its_second_message() -> None:
    text = "\n".join(box([Second(SLOW, 20.5, False, "another one")]))

    assert "failed again: another one" in text
    assert "flaky.toml" not in text
