"""The page about testing: its examples are a suite that passes, and its tables name what there is."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from textwrap import dedent

import _kiqcluster_pytest as plugin
from kiqcluster import testing
from tests import forkserver
from tests.docs.test_docs import blocks
from tests.kit import ROOT

PAGE = ROOT / "docs/guides/testing.md"
APPLICATION = """
from kiqcluster import Job

class Welcome(Job, queue="mailers", retry=2, tags=["mail"]):
    def perform(self, user_id):
        if user_id < 0:
            raise ValueError(f"no user {user_id}")
"""


def test_the_examples_are_a_suite_that_passes(tmp_path: Path) -> None:
    source = "\n".join(blocks(PAGE, "python"))
    (tmp_path / "test_page.py").write_text(source)
    (tmp_path / "shop.py").write_text(dedent(APPLICATION))
    words = ["-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "--strict-markers", "--rootdir", str(tmp_path)]

    done = forkserver.run([sys.executable, *words], cwd=tmp_path, timeout=100)

    assert done.returncode == 0, done.stdout
    assert f"{source.count('def test_')} passed" in done.stdout


def test_every_word_of_an_assertion_is_in_the_table() -> None:
    rows = re.findall(r"^\| `\*?(\w+)` \|", PAGE.read_text(), re.MULTILINE)

    assert set(rows) | {"count"} == set(inspect.signature(testing.assert_enqueued).parameters)


def test_every_fixture_and_name_is_named() -> None:
    text = PAGE.read_text()
    inner = {"kiq_server", "pytest_addoption", "pytest_configure"}
    types = {"EnqueuedJob", "PerformedJob", "Fake", "Inline", "FrozenClock"}
    blocks_of_fixtures = {"current_fake", "forgetting_declarations", "forgetting_local_jobs"}

    for name in {*plugin.__all__, *testing.__all__} - inner - types - blocks_of_fixtures:
        assert re.search(rf"\b{name}\b", text), name
