"""docs/guarantees.md: its examples run and print what it says, and the tests that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_docs import output
from tests.kit import ROOT, RedisServer

PAGE = ROOT / "docs/guarantees.md"
CALLS = {"Rate limits": ("sync(7)", "synced 7\n")}  # of what an example declares, and what it prints


def sections() -> dict[str, str]:
    """Return title → text of the sections."""
    parts = re.split(r"^## (.*)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("title", [title for title, text in sections().items() if "```python" in text])
@pytest.mark.usefixtures("store")  # an empty Redis
def test_the_examples_print_what_the_page_says(title: str, tmp_path: Path, redis_server: RedisServer) -> None:
    found = re.findall(r"^```(\w*)\n(.*?)^```", sections()[title], re.MULTILINE | re.DOTALL)
    call, prints = CALLS.get(title, ("", ""))
    (tmp_path / "page.py").write_text("\n".join([*(text for language, text in found if language == "python"), call]))

    printed = output(tmp_path / "page.py", redis_server)

    assert printed == "".join(text for language, text in found if not language) + prints


def test_the_tests_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))

    there = {
        name for path in (ROOT / "tests").rglob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }

    assert named - there == set()
