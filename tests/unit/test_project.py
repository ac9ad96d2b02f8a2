"""pyproject.toml: what an installation gets, and what is claimed of it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from tests import django_versions, versions

PROJECT: dict[str, Any] = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())


def test_every_python_that_is_claimed_is_one_that_the_versions_are_run_on() -> None:
    ran = [run.python for run in versions.runs() if not run.is_lowest]

    assert ran == [*versions.pythons(), versions.FREE_THREADED]
    assert PROJECT["project"]["requires-python"] == f">={versions.pythons()[0]}"


def test_every_requirement_of_the_package_has_a_lowest_version() -> None:
    for requirement in versions.requirements():
        assert versions.lowest(requirement).startswith(f"{requirement.name}==")


def test_tools_of_the_repository_are_no_extras_of_the_package() -> None:
    assert PROJECT["dependency-groups"].keys() == {"bench", "dev", "docs", "release"}
    assert PROJECT["project"]["optional-dependencies"].keys() == set(versions.EXTRAS)


def test_tools_that_the_versions_are_run_with_are_those_of_the_repository() -> None:
    names = {versions.Requirement(each).name for each in PROJECT["dependency-groups"]["dev"]}

    assert {versions.Requirement(each).name for each in versions.TOOLS} <= names


def test_each_extra_is_tried_alone() -> None:
    assert versions.SERVES.keys() == set(versions.EXTRAS)


def test_a_python_is_found_in_each_place_that_may_have_one(tmp_path: Path) -> None:
    named, file = tmp_path / "named", tmp_path / "python-of-mine"
    pyenv, free = (tmp_path / f".pyenv/versions/{version}/bin" for version in ("9.1.2", "9.1.2t"))
    for program in (named / "python9.1", file, pyenv / "python9.1", free / "python9.1t"):
        program.parent.mkdir(parents=True, exist_ok=True)
        program.touch()

    found = versions.places("9.1", f"{named}:{file}", tmp_path)

    assert found == [str(named / "python9.1"), str(file), str(pyenv / "python9.1")]
    assert versions.places("9.1t", "", tmp_path) == [str(free / "python9.1t")]


def test_an_interpreter_of_another_version_is_not_taken_for_the_one_that_is_looked_for() -> None:
    import sys

    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    is_free = not getattr(sys, "_is_gil_enabled", lambda: True)()

    assert versions.is_usable(sys.executable, version + "t" * is_free)
    assert not versions.is_usable(sys.executable, version + "t" * (not is_free))
    assert not versions.is_usable(sys.executable, "2.7")


class TestMissingInterpreters:
    @pytest.fixture(autouse=True)
    def _nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No interpreter is found anywhere, and it is not CI."""
        monkeypatch.setattr(versions, "find", lambda python: None)
        monkeypatch.setattr(django_versions, "find", lambda python: None)
        monkeypatch.delenv("KIQ_REQUIRE_ALL", raising=False)

    @pytest.mark.parametrize("command", [versions, django_versions], ids=lambda module: module.__name__)
    def test_they_are_a_failure_in_ci_only(self, command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        names = ["3.12-newest"] if command is versions else []

        assert command.main(names) == 0
        monkeypatch.setenv("KIQ_REQUIRE_ALL", "1")
        assert command.main(names) == 1

    def test_those_that_ci_need_not_have_are_said_and_no_failure(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("KIQ_REQUIRE_ALL", "1")

        assert versions.main(["3.14t-newest"]) == 0
        assert "NOT RUN, for lack of an interpreter: Python 3.14t" in capsys.readouterr().out

    def test_an_environment_that_cannot_be_made_fails_its_run_and_no_other(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def prepare(run: versions.Run, interpreter: str) -> Path:
            raise subprocess.CalledProcessError(1, ["pip"])

        monkeypatch.setattr(versions, "find", lambda python: "python")
        monkeypatch.setattr(versions, "prepare", prepare)

        assert versions.main(["3.12-newest", "3.13-newest"]) == 1
        assert "failed: 3.12-newest, 3.13-newest" in capsys.readouterr().out

    def test_a_run_of_no_known_name_is_refused(self) -> None:
        assert versions.main(["3.12"]) == 2

    def test_ci_must_have_versions_that_are_claimed(self) -> None:
        assert set(versions.REQUIRED) <= set(versions.pythons())
        assert set(versions.REQUIRED) & set(django_versions.PYTHONS), "Django 6 runs in CI"


def test_redis_py_has_an_end_where_it_may_change_what_is_private() -> None:
    (redis,) = [each for each in versions.requirements() if each.name == "redis"]

    assert {each.operator for each in redis.specifier} == {">=", "<"}


@pytest.mark.parametrize("kind", [Connection, SSLConnection, UnixDomainSocketConnection])
def test_redis_py_has_what_is_used_of_it_though_it_is_private(kind: type[Any]) -> None:
    assert kind(**({"path": "x"} if kind is UnixDomainSocketConnection else {}))._sock is None


@pytest.mark.parametrize(("extra", "used"), [("embedded", "--embedded"), ("top", "{ctl} top"), ("web", '"web", "-r"')])
def test_the_demonstration_can_run_what_it_advises(extra: str, used: str) -> None:
    root = Path(__file__).resolve().parents[2]
    is_used = used in (root / "examples/demo.py").read_text()
    recipe = (root / "Makefile").read_text().partition("$(VENV)/.demo: ")[2].partition("\n\n")[0]

    assert is_used
    assert extra in re.findall(r"\w+", recipe.partition(".[")[2].partition("]")[0])


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


def test_make_test_all_installs_the_libraries_that_migrations_begin_with() -> None:
    root = Path(__file__).resolve().parents[2]
    command = ["make", "--dry-run", "--what-if", "pyproject.toml", "test-all"]

    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)

    assert "--group bench" in ran.stdout.partition("-m pytest")[0]
