"""Long forms: a plugin that ends `make test-all` with the promises that no other run covers.

A test marked full repeats a promise of the short form on other values, or holds one alone.  The second kind is named.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

__all__ = ["LongForms"]


class LongForms:
    """short, full: tests of the run, by function."""

    def __init__(self) -> None:
        self.short = Counter[str]()
        self.full = Counter[str]()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            kind = self.full if item.get_closest_marker("full") else self.short
            kind[item.nodeid.partition("[")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        more = self.full.keys() & self.short.keys()
        alone = sorted(self.full.keys() - more)
        values = sum(self.full[name] for name in more)
        if alone or more:
            terminalreporter.section("promises that only make test-all covers")
            terminalreporter.line(
                f"{values} more values for {len(more)} tests of the short form, and {len(alone)} tests:"
            )
        for name in alone:
            terminalreporter.line(f"  {name}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LongForms(), "long-forms")
