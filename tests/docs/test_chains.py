"""Chains, results, progress, typed arguments: examples print what the pages say, and the tests named there exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_docs import blocks, output
from tests.kit import ROOT, RedisServer


@pytest.mark.parametrize(
    "page",
    [
        "docs/guides/chains.md",
        "docs/guides/progress.md",
        "docs/guides/results.md",
        "docs/guides/typed_arguments.md",
    ],
)
def test_the_examples_print_what_the_page_says(page: str, tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks(ROOT / page, "python")))

    printed = output(tmp_path / "page.py", redis_server)

    shown = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert printed == "".join(text for language, text in shown if not language)


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/guides/chains.md").read_text()))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))

    assert {name for name in named if f"def {name}(" not in sources} == set()
