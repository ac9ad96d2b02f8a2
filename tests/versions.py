"""make test-versions: unit and Redis tests with the lowest and the newest dependencies, and on each Python there is.

Each run has an environment of its own under the one of make (.venv/versions/NAME).  The lowest versions are those
that pyproject.toml allows, read from there; everything else is what pip finds newest.  A Python that is not there is
skipped loudly.  Arguments: names of runs, for a part.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/unit", "tests/redis", "tests/testing")
EXTRAS = ("embedded", "encryption", "otel", "sql", "testing", "top", "yaml")
TOOLS = (
    "hypothesis",
    "opentelemetry-sdk",
    "packaging",
    "pyte",
    "pytest-timeout",
    "pytest-xdist",
)  # that these tests need
PROCESSES = "2"


@dataclass(frozen=True, slots=True)
class Run:
    """One environment.  is_lowest: with the lowest versions that are allowed."""

    python: str
    is_lowest: bool = False

    @property
    def name(self) -> str:
        return f"{self.python}-{'lowest' if self.is_lowest else 'newest'}"


def project() -> dict[str, object]:
    """Return the table [project] of pyproject.toml."""
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def pythons() -> list[str]:
    """Return the versions of Python that the classifiers claim, the oldest first."""
    prefix = "Programming Language :: Python :: 3."
    classifiers = project()["classifiers"]
    assert isinstance(classifiers, list)
    return [f"3.{each.removeprefix(prefix)}" for each in classifiers if each.startswith(prefix)]


def runs() -> list[Run]:
    """Return the runs: the lowest versions on the oldest Python, the newest on each."""
    every = pythons()
    return [Run(every[0], is_lowest=True), *[Run(python) for python in every]]


def requirements() -> Iterator[Requirement]:
    """Yield what the package and its extras require."""
    table = project()
    dependencies, extras = table["dependencies"], table["optional-dependencies"]
    assert isinstance(dependencies, list)
    assert isinstance(extras, dict)
    for text in [*dependencies, *[each for name in EXTRAS for each in extras[name]]]:
        requirement = Requirement(text)
        if canonicalize_name(requirement.name) != "kiqcluster":
            yield requirement


def lowest(requirement: Requirement) -> str:
    """Return the constraint that picks the lowest version which a requirement allows."""
    (version,) = [each.version for each in requirement.specifier if each.operator == ">="]
    return f"{requirement.name}=={version}"


def find(python: str) -> str | None:
    """Return the path of an interpreter of that version: this one, one on PATH, or one of pyenv's."""
    if python == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    places = [shutil.which(f"python{python}"), *map(str, Path.home().glob(f".pyenv/versions/{python}.*/bin/python"))]
    for place in places:
        if (
            place
            and subprocess.run([place, "-c", "import venv, ensurepip"], capture_output=True, check=False).returncode
            == 0
        ):
            return place
    return None


def prepare(run: Run, interpreter: str) -> Path:
    """Make or bring up to date the environment of a run; return its Python."""
    folder = Path(sys.prefix) / "versions" / run.name
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(map(lowest, requirements())) if run.is_lowest else "")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--upgrade"]
    install += ["--upgrade-strategy", "eager", "--constraint", constraints]
    subprocess.run([*install, "--editable", f"{ROOT}[{','.join(EXTRAS)}]", *TOOLS], check=True, cwd=ROOT)
    return python


def main(names: list[str]) -> int:
    """Run the tests of each environment; return 0 if all passed that could run."""
    failed: list[str] = []
    for run in runs():
        if names and run.name not in names:
            continue
        interpreter = find(run.python)
        if interpreter is None:
            print(f"\n== {run.name}: SKIPPED, there is no Python {run.python} (looked on PATH and among pyenv's)")
            continue
        python = prepare(run, interpreter)
        print(f"\n== {run.name}", flush=True)
        subprocess.run([python, "-m", "pip", "list", "--format", "freeze", "--exclude-editable"], check=True)
        words = ["-n", PROCESSES, "--dist", "loadfile", "-p", "no:cacheprovider", "-m", "not full", *FOLDERS]
        if subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, check=False).returncode:
            failed.append(run.name)
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'all passed'}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
