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


ELSEWHERE = ("not here", "the same")  # what a row says that names no test: it is not there, or the row above shows it


@pytest.mark.parametrize("title", [title for title, text in sections().items() if re.search(r"\| test[ |(]", text)])
def test_each_row_of_a_table_of_behaviours_names_a_test(title: str) -> None:
    _, _, table = re.split(r"(\| test[ |(].*\n)", sections()[title], maxsplit=1)
    rows = table.partition("\n\n")[0].splitlines()[1:]

    assert rows
    assert [row for row in rows if "`test_" not in row and not any(words in row for words in ELSEWHERE)] == []
