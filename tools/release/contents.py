"""Contents: what a wheel and an sdist must hold, and may not.  Pure, but for the reading of names."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

__all__ = ["faults_of_sdist", "faults_of_wheel", "names_in"]

PACKAGES = ("kiqcluster", "_kiqcluster_pytest.py")
JUNK_PARTS = {"tests", "__pycache__", ".git", ".venv", ".hypothesis", "node_modules"}
JUNK_ENDINGS = (".pyc", ".pyo", ".orig", ".rej", ".swp", "~", ".DS_Store")
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
OF_SDIST = ("pyproject.toml", "PKG-INFO", "LICENSE", "README.md", "CHANGELOG.md", "SECURITY.md")


def names_in(distribution: Path) -> list[str]:
    """Return the names of all files in a wheel or an sdist; an sdist's without its top folder."""
    if distribution.suffix == ".whl":
        with zipfile.ZipFile(distribution) as wheel:
            return [name for name in wheel.namelist() if not name.endswith("/")]
    with tarfile.open(distribution) as sdist:
        return [member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()]


def is_packaged(name: str) -> bool:
    """Return whether a file of the repository belongs to the package."""
    return name.partition("/")[0] in PACKAGES


def faults_of_wheel(names: Collection[str], tracked: Iterable[str]) -> list[str]:
    """Return what is wrong with the files of a wheel.  tracked: the files that the repository tracks."""
    folders = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    if len(folders) != 1:
        return [f"{len(folders)} folders of metadata instead of one"]
    (info,) = folders
    wanted = {name for name in tracked if is_packaged(name)}
    required = wanted | {f"{info}/{name}" for name in METADATA} | {"kiqcluster/py.typed"}
    extra = {name for name in names if not name.startswith(f"{info}/")} - wanted
    return [*_missing(required, names), *[f"{name} is not tracked" for name in sorted(extra)], *_junk(names)]


def faults_of_sdist(names: Collection[str], tracked: Iterable[str]) -> list[str]:
    """Return what is wrong with the files of an sdist: a wheel must be buildable from it, and its licence be there."""
    required = {name for name in tracked if is_packaged(name)} | set(OF_SDIST)
    return [*_missing(required, names), *_junk(names)]


def _missing(required: Iterable[str], names: Collection[str]) -> list[str]:
    return [f"{name} is missing" for name in sorted(set(required) - set(names))]


def _junk(names: Iterable[str]) -> list[str]:
    return [
        f"{name} is junk"
        for name in sorted(names)
        if JUNK_PARTS & set(PurePosixPath(name).parts) or name.endswith(JUNK_ENDINGS)
    ]
