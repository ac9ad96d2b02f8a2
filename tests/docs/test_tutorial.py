"""The tutorial: its pages are followed one after the other, in an empty folder, by commands and copied files alone."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster.process.config_sources import load
from tests import forkserver
from tests.docs.test_docs import blocks
from tests.docs.walk import Desk, files_of, follow
from tests.kit import ROOT, require, require_module

# A reader follows one of them.
PAGES_OF_WEB = {"flask": "tutorial/flask", "fastapi": "tutorial/fastapi", "django": "tutorial/django"}
BEFORE = ("tutorial/first_job", "tutorial/project")
AFTER = ("tutorial/failures", "tutorial/settings", "tutorial/releases", "tutorial/monitor")
EXTENDED = "bookshop/settings.py"  # a command of the pages makes it
SERVER = ROOT / "docs/tutorial/server.md"
PROGRAMS = {"kiqcluster": "kiqcluster", "kiqctl": "kiqcluster.ctl", "flask": "flask"}
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")
REQUIREMENT = '"$HOME/kiqcluster['  # of the page


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="kiq-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def desk(folder: Path, replaced: dict[str, str], **environ: str) -> Desk:
    passed_on = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("PIP_")}
    ours = {"KIQ_LOG_FORMAT": "pretty", "KIQ_ROLL_BAKE_TIME": "0", "PYTHONUNBUFFERED": "1"}
    return Desk(folder, {**passed_on, **ours, **environ}, {"~/books": f"{folder}/books", **replaced})


def with_this_python(folder: Path) -> Desk:
    """Return a desk where nothing is installed: an environment of this Python is there in its place."""
    programs = folder / "installed" / "bin"
    programs.mkdir(parents=True)
    for name, module in PROGRAMS.items():
        forkserver.install(programs / name, module)
    write_program(programs / "python", f'exec "{sys.executable}" "$@"')
    (programs / "activate").write_text(f'PATH="{programs}:$PATH"\n')
    replaced = {"python3 -m venv .venv": f"ln -s {programs.parent} .venv", "pip install": "true"}
    return desk(folder, replaced, PYTHONPATH=str(ROOT))


def write_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def pages_of(web: str) -> list[Path]:
    return [ROOT / "docs" / f"{page}.md" for page in (*BEFORE, PAGES_OF_WEB[web], *AFTER)]


def follow_all(here: Desk, web: str) -> None:
    try:
        for page in pages_of(web):
            follow(page, here, here.folder / "books")
    finally:
        here.close()


@pytest.mark.timeout(600)  # seconds of CPU are few, but a busy machine starts some forty programs slowly
def test_the_pages_can_be_followed_one_after_the_other(folder: Path) -> None:
    require("curl", "curl")
    require_module("flask")

    follow_all(with_this_python(folder), "flask")


@pytest.mark.parametrize("web", PAGES_OF_WEB)
def test_the_projects_among_the_examples_are_those_of_the_pages(web: str) -> None:
    """These run against the wheel in tests/examples.  Where one differs, copy what the page shows."""
    project = ROOT / "examples" / f"tutorial_{web}"
    files = files_of(pages_of(web))

    ours = {name: (project / name).read_text() for name in files}
    if EXTENDED in files:
        assert ours.pop(EXTENDED).endswith(files.pop(EXTENDED))

    assert ours == files


@pytest.mark.full
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("web", PAGES_OF_WEB)
def test_a_newcomer_can_follow_them_with_the_wheel_alone(folder: Path, wheel: Path, web: str) -> None:
    """Nothing is there but Python and the wheel: what the pages do not install is missing."""
    require("curl", "curl")
    programs = folder / "installed"
    programs.mkdir()
    write_program(programs / "python3", f'exec "{sys.executable}" "$@"')
    path = f"{programs}{os.pathsep}{os.defpath}"

    follow_all(desk(folder, {REQUIREMENT: f'"{wheel}['}, PATH=path), web)


def test_the_settings_of_the_server_are_accepted(tmp_path: Path) -> None:
    """systemd gives the unit the variables of the file; the project has the file of settings."""
    (variables,) = blocks(SERVER, "ini")
    (settings,) = blocks(ROOT / "docs/tutorial/settings.md", "toml")
    (tmp_path / "kiqcluster.toml").write_text(settings)
    environ = dict(line.split("=", 1) for line in variables.splitlines())

    loaded, origins = load({}, file=str(tmp_path / "kiqcluster.toml"), environ=environ)

    assert (loaded.groups, loaded.require) == (("cronjob:*", "mailers", "default"), ("shop.jobs",))
    assert (loaded.embedded, loaded.listen) == (None, "127.0.0.1:8082")
    assert origins["redis"] == "environment (REDIS_URL)"


def test_the_files_of_the_server_are_in_the_repository() -> None:
    named = re.findall(r"\bdeploy/[\w./@-]+\w", SERVER.read_text())

    assert {name for name in named if not (ROOT / name).exists()} == set()
    assert "deploy/systemd/kiqcluster@.service" in named


def test_the_index_lists_the_pages_in_the_order_in_which_they_are_followed() -> None:
    listed = re.findall(r"\]\((\w+)\.md\)", (ROOT / "docs/tutorial/index.md").read_text())
    web = sorted(PAGES_OF_WEB.values())

    followed = [*BEFORE, *web, *AFTER[:-1], "tutorial/server", AFTER[-1]]

    assert sorted(f"tutorial/{name}" for name in listed) == sorted(followed)
    assert [name for name in listed if f"tutorial/{name}" not in web] == [
        name.removeprefix("tutorial/") for name in followed if name not in web
    ]
