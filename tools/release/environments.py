"""Environments: what has been built, installed as a user would, and tried there.

Each environment is new and has no access to the checkout: programs run in a folder that has the repository's files
without the package, and `PYTHONPATH` is not passed on.  The package index is the only thing that is asked for files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from tools.release.bill import of_release
from tools.release.contents import PACKAGES
from tools.release.rules import Refused

__all__ = ["Environment", "examples", "extras", "run", "without_package"]

FOLDERS = ("tests/unit", "tests/redis")
# Tests of the repository, not of the package: they read its sources, which are not beside them here.
OF_THE_CHECKOUT = ("tests/unit/test_code_rules.py", "tests/unit/test_project.py", "tests/unit/tools")
EXTRAS_OF_THE_REPOSITORY = ("testing",)  # what a production environment has not
PROCESSES = "2"
DEMO_SECONDS = 120.0
EXAMPLE_SECONDS = 300.0
TESTS_SECONDS = 3_600.0
INSTALL_SECONDS = 900.0
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SOURCE_DATE_EPOCH", "KIQ_REQUIRE_ALL")
VALIDATE = """
import json, pathlib, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = pathlib.Path(sys.argv[1]).read_text()
sys.exit(JsonStrictValidator(SchemaVersion.from_version(json.loads(text)["specVersion"])).validate_str(text))
"""  # by CycloneDX's own schema; exits with the fault
WHERE = "import kiqcluster, pathlib; print(pathlib.Path(kiqcluster.__file__).resolve())"


def run(command: Sequence[str | Path], cwd: Path, seconds: float = INSTALL_SECONDS, **settings: str) -> str:
    """Run a program and return its output.  Raises Refused with the end of its output if it fails.

    settings: environment variables of its own.
    """
    environ = {
        name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith(("PIP_", "SSL_"))
    }
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=environ | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{_words(command)} did not end within {seconds:.0f} s") from error
    if done.returncode:
        raise Refused(f"{_words(command)} ended with {done.returncode}:\n{done.stdout[-6_000:]}")
    return done.stdout


def examples(folder: Path) -> list[Path]:
    """Return the projects in examples/ that have a check.py (examples/README.md), by name."""
    return sorted(path.parent for path in folder.glob("*/check.py"))


def _words(command: Sequence[str | Path]) -> str:
    return " ".join(map(str, command))


def without_package(source: Path, target: Path) -> Path:
    """Copy the repository without the package: tests import the installed one or nothing."""
    shutil.copytree(source, target, ignore=lambda folder, _: PACKAGES if Path(folder) == source else ())
    return target


class Environment:
    """A fresh environment, in which one distribution is installed.  options: of `python -m venv`."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        run([sys.executable, "-m", "venv", *options, folder], folder.parent)

    def install(self, *requirements: str | Path) -> None:
        pip: list[str | Path] = [self.bin / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, *requirements], self.folder)

    def smoke(self, files: Path, version: str) -> None:
        """Check that the commands and the installed package are those of the release.  files: see without_package."""
        place = Path(run([self.bin / "python", "-c", WHERE], files).strip())
        if not place.is_relative_to(self.folder.resolve()):
            raise Refused(f"the package was imported from {place}, which is not the installed one")
        for command in ("kiqcluster", "kiqctl"):
            said = run([self.bin / command, "--version"], files)
            if version not in said.split():
                raise Refused(f"{command} --version says {said.strip()!r} instead of {version}")
            run([self.bin / command, "--help"], files)
        run([self.bin / "python", "-m", "pip", "check"], files)

    def demonstrate(self, files: Path) -> None:
        """Run the application of `make demo` until its jobs are done."""
        run([self.bin / "python", "-m", "examples.demo"], files, DEMO_SECONDS)

    def check_example(self, project: Path, **settings: str) -> None:
        """Install what a project in a copy of examples/ needs, and run its check.  Raises Refused if that fails."""
        requirements = project / "requirements.txt"
        if requirements.exists():
            self.install("--requirement", requirements)
        path = str(project.parent.parent)  # so that it can be imported as examples.NAME as well
        run([self.bin / "python", "check.py"], project, EXAMPLE_SECONDS, PYTHONPATH=path, **settings)

    def test(self, files: Path, folders: Sequence[str] = FOLDERS) -> str:
        """Run tests on the installed package; return what was skipped, and the line that pytest ends with."""
        ignored = [word for name in OF_THE_CHECKOUT for word in ("--ignore", name)]
        words = ["-n", PROCESSES, "--dist", "loadfile", "-p", "no:cacheprovider", "-m", "not full", "-rs", "-o"]
        words += ["addopts=--import-mode=importlib --strict-markers", *ignored, *folders]
        lines = run([self.bin / "python", "-m", "pytest", *words], files, TESTS_SECONDS).strip().splitlines()
        return "\n".join([*(line for line in lines if line.startswith("SKIPPED ")), lines[-1]])

    def bill_of_materials(self, target: Path, wheel: Path) -> None:
        """Write the SBOM of what is installed, in CycloneDX's JSON, the same for the same packages.  Raises Refused."""
        options: list[str | Path] = ["--output-reproducible", "--output-format", "JSON", "--output-file", target]
        run([sys.executable, "-m", "cyclonedx_py", "environment", *options, self.bin / "python"], self.folder)
        bill = of_release(json.loads(target.read_text(encoding="utf-8")), wheel.name)
        target.write_text(json.dumps(bill, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        run([sys.executable, "-c", VALIDATE, target], self.folder)


def extras(source: Path) -> list[str]:
    """Return the extras that pyproject.toml has, but those for tests of applications."""
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    return [name for name in project["optional-dependencies"] if name not in EXTRAS_OF_THE_REPOSITORY]
