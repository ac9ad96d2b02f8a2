"""docs/guides/cron.md: its examples run and print what it says, and its tables say what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from kiqcluster.sidekiq.cron_entries import KEYS, parse_entries
from kiqcluster.sidekiq.schedules import MACROS
from tests.docs.test_docs import blocks, output
from tests.kit import ROOT, RedisServer

PAGE = ROOT / "docs/guides/cron.md"


def test_the_examples_print_what_the_page_says(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks(PAGE, "python")))

    printed = output(tmp_path / "page.py", redis_server)

    shown = re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert printed == "".join(text for language, text in shown if not language)


def test_the_entry_of_the_page_can_be_used() -> None:
    (text,) = blocks(PAGE, "toml")
    (entry,) = parse_entries(tomllib.loads(text)["cron"])

    assert (entry.name, entry.job, entry.args) == ("clean_up_weekly", "clean_up", [90])


def test_every_key_of_an_entry_is_in_the_table() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert sorted(rows) == sorted(KEYS)
    assert {name for name in MACROS if name not in PAGE.read_text()} == {"@annually"}, "it is @yearly"
