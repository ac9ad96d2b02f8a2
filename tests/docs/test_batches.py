"""docs/guides/batches.md: its examples run and print what it says, and its tables say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

from kiqcluster.store.batches import STATUSES
from tests.docs.test_docs import blocks, output
from tests.kit import ROOT, RedisServer

PAGE = ROOT / "docs/guides/batches.md"


def test_the_examples_print_what_the_page_says(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks(PAGE, "python")))

    printed = output(tmp_path / "page.py", redis_server)

    shown = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert printed == "".join(text for language, text in shown if not language)


def test_each_status_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text().partition("## Reading")[0], re.MULTILINE)

    assert sorted(rows) == sorted(STATUSES)
