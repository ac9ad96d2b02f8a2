"""Results: a plugin of pytest that writes what failed, and how long files and tests took, for `python -m tests.ci`.

Used with `-p tests.ci.results --results FILE`.  The file is JSON: `failures` has a Failure for each failed test, the
first one of it; `seconds` has test → seconds, with set-up and teardown.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.ledger import Audit
from tests.kit import JobsMiscounted
from tests.stage import Stage

__all__ = ["CRASHED", "Failure", "Results", "read"]

CRASHED = "the process of the test crashed"
MAX_MESSAGE_CHARACTERS = 300


@dataclass(frozen=True)
class Failure:
    """A test that failed.  seconds: of the whole test.  load: of the machine, over the last minute.

    grave: why it is no matter of time, so that nobody may run it again; "" where it may be.
    """

    test: str
    message: str
    seconds: float
    load: float
    grave: str = ""


@dataclass
class Results:
    """What a run brought."""

    failures: dict[str, Failure] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, report: pytest.TestReport) -> None:
        """Take in a report: of a set-up, a call, a teardown, or a crash."""
        test = report.nodeid
        self.seconds[test] = self.seconds.get(test, 0.0) + report.duration
        if report.failed and test not in self.failures:
            # pytest-xdist reports a crash as a step of this name.
            grave = CRASHED if str(report.when) == "???" else getattr(report, "grave", "")
            self.failures[test] = Failure(test, message_of(report), 0.0, os.getloadavg()[0], grave)

    def seconds_of_files(self) -> dict[str, float]:
        """Return file → seconds of its tests."""
        files: dict[str, float] = {}
        for test, seconds in self.seconds.items():
            path = test.partition("::")[0]
            files[path] = files.get(path, 0.0) + seconds
        return files

    def write(self, path: Path) -> None:
        failures = [{**asdict(each), "seconds": self.seconds[each.test]} for each in self.failures.values()]
        path.write_text(json.dumps({"failures": failures, "seconds": self.seconds}))


def read(path: Path) -> Results:
    """Return what a run has written; nothing if it did not get so far."""
    if not path.exists():
        return Results()
    found = json.loads(path.read_text())
    return Results({each["test"]: Failure(**each) for each in found["failures"]}, found["seconds"])


def message_of(report: Any) -> str:
    """Return the first line of what a failed test said."""
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash is not None else report.longreprtext.strip()
    return str(message).partition("\n")[0][:MAX_MESSAGE_CHARACTERS]


class Plugin:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._results = Results()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._results.add(report)

    def pytest_sessionfinish(self) -> None:
        self._results.write(self._path)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, help="write failures and durations to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--results")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Plugin(path), "results")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Mark the report of a failure that is no matter of time; the mark is passed on to the process that prints.

    In each process that runs tests.
    """
    report = yield
    if report.failed and call.excinfo is not None:
        grave = miscount(call.excinfo, getattr(item, "funcargs", {}))
        if grave:
            report.grave = grave[:MAX_MESSAGE_CHARACTERS]  # type: ignore[attr-defined]
            report.sections.append(("jobs and counters", grave))
    return report


def miscount(raised: pytest.ExceptionInfo[BaseException], fixtures: Mapping[str, Any]) -> str:
    """Return how jobs or counters do not add up, by what was raised, and by what counts jobs where it was raised.

    Stages of tests and audits of a ledger count jobs: they have a method `miscount`.
    """
    if isinstance(raised.value, JobsMiscounted):
        return str(raised.value)
    values = [*fixtures.values(), *(value for entry in raised.traceback for value in entry.frame.f_locals.values())]
    counting = {id(value): value for value in values if isinstance(value, Stage | Audit)}
    return "; ".join(filter(None, (value.miscount() for value in counting.values())))
