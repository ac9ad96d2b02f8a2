"""docs/guides/cancel.md: its example runs and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.test_docs import blocks, output
from tests.kit import ROOT, RedisServer

PAGE = ROOT / "docs/guides/cancel.md"


def test_the_examples_print_what_the_page_says(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks(PAGE, "python")))

    printed = output(tmp_path / "page.py", redis_server)

    shown = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert printed == "".join(text for language, text in shown if not language)
