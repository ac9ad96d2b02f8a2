"""Examples of pages that have no test file of their own: async jobs, metrics, addresses of Redis."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from kiqcluster import Store
from tests.docs.test_docs import blocks, output
from tests.kit import ROOT, RedisServer


def test_the_examples_about_async_jobs_print_what_the_page_says(tmp_path: Path, redis_server: RedisServer) -> None:
    page = ROOT / "docs/guides/async.md"
    (tmp_path / "page.py").write_text("\n".join(blocks(page, "python")))

    printed = output(tmp_path / "page.py", redis_server)

    shown = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert printed == "".join(text for language, text in shown if not language)


def test_the_metrics_of_the_page_can_be_defined(tmp_path: Path, redis_server: RedisServer) -> None:
    (tmp_path / "page.py").write_text("\n".join(blocks(ROOT / "docs/guides/own_metrics.md", "python")))

    assert output(tmp_path / "page.py", redis_server) == ""


@pytest.mark.parametrize("page", ["docs/guides/redis.md", "docs/guides/secure_redis.md"])
def test_the_addresses_of_the_page_are_accepted(page: str) -> None:
    (block,) = blocks(ROOT / page, "console")
    (_export, setting) = shlex.split(block.removeprefix("$ "))
    address = setting.removeprefix("REDIS_URL=")

    assert Store(address).address.partition("://")[0] == address.partition("://")[0]
