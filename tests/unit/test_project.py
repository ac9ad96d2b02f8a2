"""pyproject.toml: what an installation gets, and what is claimed of it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from tests import versions

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())


def test_every_python_that_is_claimed_is_one_that_the_versions_are_run_on() -> None:
    assert [run.python for run in versions.runs() if not run.is_lowest] == versions.pythons()
    assert PROJECT["project"]["requires-python"] == f">={versions.pythons()[0]}"


def test_every_requirement_of_the_package_has_a_lowest_version() -> None:
    for requirement in versions.requirements():
        assert versions.lowest(requirement).startswith(f"{requirement.name}==")


def test_tools_of_the_repository_are_no_extras_of_the_package() -> None:
    assert PROJECT["dependency-groups"].keys() == {"bench", "dev", "docs"}
    assert PROJECT["project"]["optional-dependencies"].keys() == set(versions.EXTRAS)


def test_tools_that_the_versions_are_run_with_are_those_of_the_repository() -> None:
    names = {versions.Requirement(each).name for each in PROJECT["dependency-groups"]["dev"]}

    assert set(versions.TOOLS) <= names


def test_redis_py_has_an_end_where_it_may_change_what_is_private() -> None:
    (redis,) = [each for each in versions.requirements() if each.name == "redis"]

    assert {each.operator for each in redis.specifier} == {">=", "<"}


@pytest.mark.parametrize("kind", [Connection, SSLConnection, UnixDomainSocketConnection])
def test_redis_py_has_what_is_used_of_it_though_it_is_private(kind: type[Any]) -> None:
    assert kind(**({"path": "x"} if kind is UnixDomainSocketConnection else {}))._sock is None


def test_the_demonstration_can_run_what_it_advises() -> None:
    root = Path(__file__).resolve().parents[2]
    advised = "{ctl} top" in (root / "examples/demo.py").read_text()
    recipe = (root / "Makefile").read_text().partition("$(VENV)/.demo: ")[2].partition("\n\n")[0]

    assert not advised or "[embedded,top]" in recipe


def test_make_chaos_runs_each_file_that_has_a_full_size() -> None:
    root = Path(__file__).resolve().parents[2]
    ran = subprocess.run(["make", "--dry-run", "chaos"], cwd=root, capture_output=True, text=True, check=True)
    paths = [word.partition("::")[0] for word in ran.stdout.partition("KIQ_CHAOS=full")[2].split() if "tests/" in word]

    sizes = re.compile(r"[= (\[{]sized\(")
    files = [path for path in sorted((root / "tests").rglob("test_*.py")) if sizes.search(path.read_text())]
    assert len(files) > 20
    missing = [
        name
        for name in (str(path.relative_to(root)) for path in files)
        if not any(name == path or name.startswith(f"{path}/") for path in paths)
    ]
    assert missing == []
