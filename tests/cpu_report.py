"""CPU report: the files whose tests took most of the CPU, their child processes included, at the end of a run.

1. pytest_runtest_protocol   in each process that runs tests: adds up the seconds of a file
2. pytest_sessionfinish      there: hands them to the process that prints, where there is another one
3. pytest_terminal_summary   prints the files that took most

What a test leaves to run on counts for the test that ends it; a process that nobody waits for does not count.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

MOST = 10  # files that are shown
FEWEST_SECONDS = 60.0  # of all files, from which on they are


class CpuReport:
    """The seconds of each file so far."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.seconds: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[Any]:
        before = used()
        result = yield
        if nextitem is not None:  # else the servers of the run end with this test: it did not start them
            self.seconds[item.nodeid.partition("::")[0]] += used() - before  # type: ignore[assignment]
        return result

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["cpu_seconds"] = dict(self.seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.seconds.update(getattr(node, "workeroutput", {}).get("cpu_seconds", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        total = sum(self.seconds.values())
        if total < FEWEST_SECONDS:
            return
        terminalreporter.section(f"CPU: {total:.0f} s in tests")
        for path, seconds in self.seconds.most_common(MOST):
            terminalreporter.line(f"{seconds:6.1f} s  {path}")


def used() -> float:
    """Return the CPU seconds of this process and of the children that it has waited for."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
