"""Changes: which files a submission changes, and which tests those can break.

base             the commit that a submission begins at; .ci/run knows a clean checkout only
changed_files    paths from the root of the repository
affected_tests   the test files that import a changed module, themselves or by way of modules between, the nearest first

The imports of the package are those that import-linter reads (grimp); those of the tests are read here.  Tests that
start programs import little of what they run.  Of these the ones are taken that name a changed module.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import grimp

__all__ = ["affected_tests", "base", "changed_files"]

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = "KIQ_BASE"  # a commit, for one who knows better
MAIN_BRANCHES = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
SUBMISSION_SECONDS = 24 * 3_600  # commits of main that are not older than this, at the last one, are one submission
HARNESS = {f"tests.{name}" for name in ("conftest", "forkserver", "kit", "leaks", "proc", "proxy", "stage")}
DATA = {  # folder with files that are no Python → the module that reads them
    "kiqcluster/store/lua/": "kiqcluster.store.scripts",
    "kiqcluster/web/": "kiqcluster.web.templating",
    "kiqcluster/batches/": "kiqcluster.batches.history",
}


# what has changed


def base(root: Path = ROOT) -> str | None:
    """Return the commit before a submission; None where the history does not say.

    1. KIQ_BASE
    2. on a branch: where it left the main branch
    3. on the main branch, or in a checkout of one commit: the last commit of it that is older than a day
    """
    named = os.environ.get(VARIABLE)
    if named:
        return _git(root, "rev-parse", named)
    head = _git(root, "rev-parse", "HEAD")
    for branch in MAIN_BRANCHES:
        found = _git(root, "merge-base", "HEAD", branch)
        if found and found != head:
            return found
    lines = (_git(root, "log", "--first-parent", "--format=%H %ct") or "").splitlines()
    commits = [(commit, int(at)) for commit, _, at in (line.partition(" ") for line in lines)]
    return next((commit for commit, at in commits if at < commits[0][1] - SUBMISSION_SECONDS), None)


def changed_files(root: Path = ROOT) -> set[str] | None:
    """Return the files that differ from the base, uncommitted ones as well; None where there is none."""
    start = base(root)
    if start is None:
        return None
    changed = _git(root, "diff", "--name-only", start) or ""
    unknown = _git(root, "ls-files", "--others", "--exclude-standard") or ""
    return {*changed.splitlines(), *unknown.splitlines()}


def _git(root: Path, *words: str) -> str | None:
    """Return what git prints; None if it fails, or is not there."""
    try:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# what that can break


def affected_tests(changed: Collection[str]) -> dict[str, int]:
    """Return test file → distance from the nearest changed file, the nearest first.

    0: the test has changed, or names a changed file that is no module.  1: it imports a changed module.  2: what it
    imports does, and so on.
    """
    distances = _distances({module for path in changed for module in _modules(path)})
    names = {Path(path).name for path in changed if not path.endswith(".py")}
    stems = {stem for path in changed if (stem := Path(path).stem) != "__init__" and path.startswith("kiqcluster/")}
    found: dict[str, int] = {}
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name in changed or any(each in path.read_text() for each in names):
            found[name] = 0
            continue
        near = [distances[module] + 1 for module in imported_by(path) if module in distances]
        near += [1] if _subject(path) in stems else []
        if near:
            found[name] = min(near)
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _subject(path: Path) -> str:
    return path.stem.removeprefix("test_")


def _modules(path: str) -> Iterator[str]:
    """Yield the module that a changed file is, or that reads it."""
    if path.endswith(".py"):
        yield path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    yield from (module for folder, module in DATA.items() if path.startswith(folder) and not path.endswith(".py"))


def _distances(modules: set[str]) -> dict[str, int]:
    """Return module of the package or of the tests → number of imports between it and the nearest of these."""
    graph = _graph()
    distances = dict.fromkeys(modules, 0)
    frontier = modules
    while frontier:
        importers = {
            importer
            for module in frontier & graph.modules
            for importer in graph.find_modules_that_directly_import(module)
        }
        frontier = importers - distances.keys()
        distances |= dict.fromkeys(frontier, max(distances.values()) + 1)
    distances.pop("kiqcluster", None)  # it imports everything; what is imported from it is known by name
    return distances


@cache
def _graph() -> grimp.ImportGraph:
    return grimp.build_graph("kiqcluster", cache_dir=str(ROOT / ".import_linter_cache"))


@cache
def imported_by(path: Path) -> frozenset[str]:
    """Return the modules that a file of the tests imports, and that modules of the tests which it imports do.

    What the tests' own harness imports is not among them: it would be everything, for each of them.
    """
    found = set(_imports(path))
    for module in list(found - HARNESS):
        file = ROOT / f"{module.replace('.', '/')}.py"
        if module.startswith("tests.") and file.exists() and file != path:
            found |= imported_by(file)
    return frozenset(found)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (_source(node.module, alias.name) for alias in node.names)


def _source(module: str, name: str) -> str:
    """Return the module that `from module import name` means: itself, one below it, or where a package has it from."""
    folder = ROOT / module.replace(".", "/")
    if (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists():
        return f"{module}.{name}"
    return _exported(folder).get(name, module) if (folder / "__init__.py").exists() else module


@cache
def _exported(package: Path) -> Mapping[str, str]:
    """Return name → module of what the __init__ of a package imports."""
    tree = ast.parse((package / "__init__.py").read_text())
    return {
        alias.asname or alias.name: _source(node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }
