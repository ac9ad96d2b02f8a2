"""The pages about the web pages: the example of an application runs, and the tables have all keys and roles."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from typing import Any

from werkzeug.test import Client

from kiqcluster.process.runtime import Setup
from kiqcluster.store import Store
from kiqcluster.web import Role
from kiqcluster.web.app import MAX_REQUEST_BYTES
from kiqcluster.web.routing import table
from kiqcluster.web.settings import WebSettings, read_settings
from tests.docs.test_docs import blocks
from tests.kit import ROOT
from tests.stored_jobs import add_entries

PAGE = ROOT / "docs/web.md"
ACCESS = ROOT / "docs/guides/web_access.md"
MOUNT = ROOT / "docs/guides/web_mount.md"


def test_the_pages_can_be_mounted_as_the_example_does(store: Store, setup: Setup) -> None:
    (example,) = blocks(MOUNT, "python")
    made: dict[str, Any] = {}
    exec(compile(example, str(MOUNT), "exec"), made)
    add_entries(store, "dead", (1.5, b'{"class":"SendInvoice","args":["INV-7"],"jid":"a"}'))
    client = Client(made["application"])

    assert client.get("/").text == "the shop"
    assert client.get("/ops/jobs/dead").status_code == 403
    assert "invoice INV-7" in client.get("/ops/jobs/dead", headers={"X-User": "ada"}).text


def test_the_settings_are_read_and_each_is_explained() -> None:
    text = ACCESS.read_text()
    (example,) = blocks(ACCESS, "toml")
    settings = read_settings(tomllib.loads(example)["web"])

    names = {each.name for each in fields(WebSettings)}
    assert [each.name for each in settings.users] == ["ada", "bob"]
    assert names == set(tomllib.loads(example)["web"])
    assert names <= set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {each.name.lower() for each in Role} <= set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert f"{MAX_REQUEST_BYTES // 1024} KiB" in text


def test_each_page_has_a_row() -> None:
    text = PAGE.read_text()
    for page in table().navigation():
        assert f"| `{page.path}`" in text, page.path


def test_each_row_of_the_comparison_names_tests_that_there_are() -> None:
    text = PAGE.read_text().partition("\n## Beside other pages\n")[2]
    rows = [line.split("|")[-2] for line in text.splitlines() if line.startswith("| ")][1:]
    named = [re.findall(r"`(test_\w+)`", cell) for cell in rows]
    there = {
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", path.read_text())
    }

    assert len(rows) > 25
    assert all(named)
    assert {name for names in named for name in names} - there == set()
