"""make test-versions: unit and Redis tests with the lowest and the newest dependencies, and on each Python there is.

Each run has an environment of its own under the one of make (.venv/versions/NAME).  The lowest versions are those
that pyproject.toml allows, read from there; everything else is what pip finds newest.  One run has each extra in turn
alone, and imports what it serves.  Free-threaded builds (3.14t) run with the interpreter lock off.

A Python is looked for on PATH, among pyenv's, and in the folders and files that KIQ_PYTHONS names, as PATH does
(`KIQ_PYTHONS=/opt/python3.14t/bin`).  What is not there is said at the end; where KIQ_REQUIRE_ALL=1, the lack of one
of REQUIRED is a failure.  Arguments: names of runs, for a part.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("tests/unit", "tests/redis", "tests/testing")
EXTRAS = (
    "django",
    "embedded",
    "encryption",
    "flask",
    "otel",
    "sentry",
    "sql",
    "sqlalchemy",
    "testing",
    "top",
    "web",
    "yaml",
)
TOOLS = (
    "attrs",
    "datadog",
    "django-tasks; python_version < '3.12'",
    "hypothesis",
    "opentelemetry-sdk",
    "packaging",
    "psycopg[binary]",
    "pydantic",
    "pyte",
    "pytest-timeout",
    "pytest-xdist",
    "sqlalchemy[asyncio]",
    "statsd",
)  # that these tests need
NOT_FREE_THREADED = ("psycopg[binary]",)  # of these: what has no wheel for a build without the interpreter lock
PROCESSES = "2"
REQUIRED = ("3.11", "3.12", "3.13")  # newer ones where there is an interpreter (.ci/python-of-debian)
PYTHONS = "KIQ_PYTHONS"  # folders or interpreters, separated as in PATH
FREE_THREADED = "3.14t"  # msgspec knows no older one
# A free-threaded Python starts again with its lock for hiredis, which does not declare that it needs none.
LOCK_OFF = {"PYTHON_GIL": "0"}
# Besides FOLDERS: threads under load, which on a free-threaded build show what relied on the lock.
THREADS = ("tests/properties/test_threads.py", "tests/properties/test_fetch_threads.py")
SERVES = {  # extra → modules that need it
    "django": ["kiqcluster.contrib.django.connections"],
    "embedded": ["kiqcluster.store.embedded"],
    "encryption": ["cryptography.fernet", "kiqcluster.sidekiq.encryption"],
    "flask": ["kiqcluster.contrib.flask"],
    "otel": ["kiqcluster.contrib.otel"],
    "sentry": ["kiqcluster.contrib.sentry"],
    "sql": ["kiqcluster.iterable.sql", "kiqcluster.batches.history"],
    "sqlalchemy": ["kiqcluster.contrib.sqlalchemy"],
    "testing": ["kiqcluster.testing", "_kiqcluster_pytest"],
    "top": ["kiqcluster.ctl.top.screen"],
    "web": ["kiqcluster.web"],
    "yaml": ["yaml"],
}


@dataclass(frozen=True, slots=True)
class Run:
    """One environment.  is_lowest: with the lowest versions that are allowed."""

    python: str
    is_lowest: bool = False

    @property
    def name(self) -> str:
        return f"{self.python}-{'lowest' if self.is_lowest else 'newest'}"

    @property
    def is_free_threaded(self) -> bool:
        return self.python.endswith("t")


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
    """Return the runs: the lowest versions on the oldest Python, the newest on each, and without interpreter lock."""
    every = pythons()
    return [Run(every[0], is_lowest=True), *[Run(python) for python in [*every, FREE_THREADED]]]


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


def places(python: str, named: str, home: Path) -> list[str]:
    """Return where an interpreter of that version may be.  named: the value of KIQ_PYTHONS.  home: pyenv's user."""
    program = f"python{python}"
    found = [Path(each) / program if Path(each).is_dir() else Path(each) for each in named.split(os.pathsep) if each]
    found += [Path(each) for each in (shutil.which(program),) if each]
    version, _, is_free = python.partition("t") if python.endswith("t") else (python, "", "")
    found += sorted(home.glob(f".pyenv/versions/{version}.*{is_free}/bin/{program}"))
    return [str(each) for each in found if each.exists()]


def is_usable(place: str, python: str) -> bool:
    """Return whether this is an interpreter of that version that can make environments."""
    code = (
        "import sys, sysconfig, venv, ensurepip; "
        "print('%d.%d' % sys.version_info[:2] + ('t' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''))"
    )
    ran = subprocess.run([place, "-c", code], capture_output=True, text=True, check=False)
    return ran.returncode == 0 and ran.stdout.strip() == python


def find(python: str) -> str | None:
    """Return the path of an interpreter of that version: this one, or the first of `places` that can be used."""
    every = [sys.executable, *places(python, os.environ.get(PYTHONS, ""), Path.home())]
    return next((place for place in every if is_usable(place, python)), None)


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
    tools = [each for each in TOOLS if not (run.is_free_threaded and each in NOT_FREE_THREADED)]
    subprocess.run([*install, "--editable", f"{ROOT}[{','.join(EXTRAS)}]", *tools], check=True, cwd=ROOT)
    return python


def check_extras(interpreter: str) -> list[str]:
    """Install each extra alone; return the extras whose modules could not be imported then."""
    failed = []
    for extra, modules in SERVES.items():
        folder = Path(sys.prefix) / "versions" / f"extra-{extra}"
        subprocess.run([interpreter, "-m", "venv", "--clear", folder], check=True)
        python = folder / "bin" / "python"
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--editable", f"{ROOT}[{extra}]"], check=True, cwd=ROOT)
        code = "; ".join(f"import {module}" for module in modules)
        is_there = subprocess.run([python, "-c", code], cwd=ROOT, check=False).returncode == 0
        print(f"extra {extra}: {'ok' if is_there else 'FAILED'}", flush=True)
        if not is_there:
            failed.append(f"extra {extra}")
    return failed


def test(run: Run, python: Path) -> bool:
    """Run the tests of one environment; return whether they passed."""
    subprocess.run([python, "-m", "pip", "list", "--format", "freeze", "--exclude-editable"], check=True)
    environ = {**os.environ, **(LOCK_OFF if run.is_free_threaded else {})}
    folders = [*FOLDERS, *(THREADS if run.is_free_threaded else ())]
    words = ["-n", PROCESSES, "--dist", "loadfile", "-p", "no:cacheprovider", "-m", "not full", *folders]
    return subprocess.run([python, "-m", "pytest", *words], cwd=ROOT, env=environ, check=False).returncode == 0


def attempt(run: Run, interpreter: str) -> bool:
    """Make the environment of a run and run its tests there; return whether both went well."""
    try:
        python = prepare(run, interpreter)
    except subprocess.CalledProcessError as error:  # such as versions that do not fit together
        print(f"== {run.name}: the environment could not be made: {error}", flush=True)
        return False
    return test(run, python)


def verdict(failed: Sequence[str], missing: Sequence[str], is_ci: bool) -> tuple[int, list[str]]:
    """Return the exit code, and what to print at the end.  missing: Pythons of runs that had no interpreter."""
    lines = [f"failed: {', '.join(failed)}" if failed else "all that ran passed"]
    required = [python for python in missing if python in REQUIRED]
    if missing:
        lines += [
            f"NOT RUN, for lack of an interpreter: Python {', '.join(missing)}",
            f"  looked on PATH, among pyenv's and in {PYTHONS}={os.environ.get(PYTHONS, '')!r}; "
            f"pyenv install {missing[0]}, or name its folder in {PYTHONS}",
        ]
    if required and is_ci:
        lines.append(f"KIQ_REQUIRE_ALL=1, but Python {', '.join(required)} is missing: this is a failure")
    return int(bool(failed) or bool(required and is_ci)), lines


def is_ci() -> bool:
    """Return whether what is missing is a failure."""
    return os.environ.get("KIQ_REQUIRE_ALL") == "1"


def main(names: list[str]) -> int:
    """Run the tests of each environment; return 0 if all passed that could run, and none is missing that has to run."""
    wanted = [run for run in runs() if not names or run.name in names]
    if unknown := set(names) - {run.name for run in runs()} - {"extras"}:
        print(f"no such run: {', '.join(sorted(unknown))}; there are {', '.join(run.name for run in runs())}, extras")
        return 2
    failed: list[str] = []
    missing: list[str] = []
    for run in wanted:
        interpreter = find(run.python)
        if interpreter is None:
            print(f"\n== {run.name}: NOT RUN, there is no Python {run.python}", flush=True)
            missing += [run.python] if run.python not in missing else []
            continue
        print(f"\n== {run.name}: {interpreter}", flush=True)
        failed += [] if attempt(run, interpreter) else [run.name]
    if not names or "extras" in names:
        print("\n== extras, each alone", flush=True)
        failed += check_extras(sys.executable)
    code, lines = verdict(failed, missing, is_ci())
    print("\n" + "\n".join(lines), flush=True)
    return code


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
