"""Reruns: which failed tests may run once more, alone, before the run counts as failed.

A machine that does other work at the same time makes a test fail now and then.  A second run tells that apart from a
fault, but hides faults that show seldom.  So it is not for failures that are faults whatever the machine does, not for
tests that the submission itself changes, and for MAX_RERUNS tests at most.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tests.ci.results import Failure

__all__ = ["MAX_RERUNS", "refusal"]

MAX_RERUNS = 2
CERTAIN = {
    "tests/properties/": "a property has no time, and its seed is printed",
    "tests/conformance/": "a script does the same each time",
    "tests/interop/test_golden.py": "bytes are the same each time",
    "tests/interop/test_bytes.py": "bytes are the same each time",
}


def refusal(failures: Sequence[Failure], changed: Collection[str] | None) -> str:
    """Return why nothing runs again; "" where each of the failed tests does.

    changed: files of the submission, from the root of the repository; None if that is not known.
    """
    if changed is None:
        return "it is not known which files the submission changes"
    if len(failures) > MAX_RERUNS:
        return f"{len(failures)} tests failed, more than {MAX_RERUNS}"
    return next(filter(None, (_refusal_of(failure, changed) for failure in failures)), "")


def _refusal_of(failure: Failure, changed: Collection[str]) -> str:
    path = failure.test.partition("::")[0]
    reasons = [why for place, why in CERTAIN.items() if path.startswith(place)]
    if failure.grave:
        reasons.append(failure.grave)
    if path in changed:
        reasons.append("the submission changes this file")
    if "::" not in failure.test:
        reasons.append("the file could not be collected")
    return f"{failure.test}: {reasons[0]}" if reasons else ""
