"""make test-django: the tests of contrib/django on each version of Django that has tasks, and Django's own tests.

Django 6 needs Python 3.12 or newer: the first one of these that tests/versions.py finds is taken.  Where there is none,
this fails (KIQ_REQUIRE_ALL=1, in CI) or says loudly that nothing has run; the same holds for the source of Django.
Each version has an environment of its own, beside those of make test-versions; Django's own tests are in its source,
which the package index has.  Both are brought up to date when pyproject.toml is newer; `--prepare` does only that,
before the tests of CI begin.  DJANGO=6.1 is for one version.  Django 5.2 with the backport is what `make test` runs on.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.versions import PYTHONS as INTERPRETERS
from tests.versions import ROOT, TOOLS, find, is_ci

VERSIONS = ("6.0", "6.1")
PYTHONS = ("3.12", "3.13", "3.14")
EXTRAS = ("django", "embedded", "testing", "web")
FOLDERS = ("tests/unit/contrib/test_django.py", "tests/redis/contrib")
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def prepare(version: str, interpreter: str) -> Path:
    """Make or bring up to date the environment of a version; return its Python."""
    folder = Path(sys.prefix) / "versions" / f"django-{version}"
    python, stamp = folder / "bin" / "python", folder / ".made"
    if _is_new(stamp):
        return python
    if not python.exists():
        subprocess.run([interpreter, "-m", "venv", folder], check=True)
    wanted = ["--editable", f"{ROOT}[{','.join(EXTRAS)}]", f"django=={version}.*", *TOOLS]
    subprocess.run([python, *PIP, "install", "--upgrade", *wanted], check=True, cwd=ROOT)
    stamp.touch()
    return python


def _is_new(stamp: Path) -> bool:
    """Return whether what a stamp stands for was made from the present pyproject.toml."""
    return stamp.exists() and stamp.stat().st_mtime > (ROOT / "pyproject.toml").stat().st_mtime


def source(version: str, python: Path) -> Path | None:
    """Return the folder of Django's tests, None where the package index does not answer."""
    folder = python.parents[1] / "source"
    folder.mkdir(exist_ok=True)
    stamp = folder / ".made"
    words = ["download", "--no-deps", "--no-binary", ":all:", "--dest", folder, f"django=={version}.*"]
    if not _is_new(stamp) and subprocess.run([python, *PIP, *words], check=False).returncode:
        return None
    archive = max(folder.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime)
    tests = folder / archive.name.removesuffix(".tar.gz") / "tests"
    if not tests.exists():
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    stamp.touch()
    return tests


def main(names: list[str]) -> int:
    """Run the tests of versions, all by default; return 0 if all passed that could run."""
    interpreter = next((found for each in PYTHONS if (found := find(each))), None)
    if interpreter is None:
        print(
            f"\n== NOT RUN: Django 6 needs one of Python {', '.join(PYTHONS)} (looked on PATH, among pyenv's and in "
            f"{INTERPRETERS}={os.environ.get(INTERPRETERS, '')!r}); pyenv install {PYTHONS[0]}"
        )
        if is_ci():
            print("KIQ_REQUIRE_ALL=1, but no such Python is there: this is a failure")
        return 1 if is_ci() else 0
    failed: list[str] = []
    not_run: list[str] = []
    prepares_only = "--prepare" in names
    for version in [each for each in names if each != "--prepare"] or VERSIONS:
        python = prepare(version, interpreter)
        if prepares_only:
            source(version, python)
            continue
        print(f"\n== Django {version}, {interpreter}", flush=True)
        words = ["-m", "pytest", "-p", "no:cacheprovider", "-m", "not full", *FOLDERS]
        tests = source(version, python)
        if tests is None:
            print(f"== Django's own tests: NOT RUN, the package index has no source of Django {version}", flush=True)
            not_run.append(version)
        done = [subprocess.run([python, *words], cwd=ROOT, check=False).returncode]
        if tests is not None:
            done.append(subprocess.run([python, "-m", "tests.django_suite", tests], cwd=ROOT, check=False).returncode)
        failed += [version] if any(done) else []
    print(f"\n{'failed: ' + ', '.join(failed) if failed else 'all that ran passed'}")
    if not_run:
        print(f"NOT RUN, for lack of their source: Django's own tests of {', '.join(not_run)}")
    return 1 if failed or (not_run and is_ci()) else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
