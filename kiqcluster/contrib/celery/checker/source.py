"""Source: the files of a code base, and which names in them are of Celery.  Imports nothing of the application.

1. read_sources   paths → trees
2. Source         names of one file: imports from Celery, constants
3. Known          which names are apps and tasks (found by their decorators), and which files import them
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Known", "Source", "assigned", "call_name", "decorators_of", "dotted", "is_celery", "read_sources"]

SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".tox"})


def dotted(node: ast.AST) -> str:
    """Return `a.b.c` for such an expression, else nothing."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def is_celery(module: str) -> bool:
    return module == "celery" or module.startswith("celery.")


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets of an assignment, each with the value."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield node.target, node.value


@dataclass(slots=True)
class Source:
    """One file.  error: why it was not read.

    imported: local name → its full name, of what comes from Celery.  others: local name → the last part of its module
    and its name there, of what comes from elsewhere.  constants: name of the module → its value.  rebound: names that
    are set in several places.
    """

    path: str
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    error: str = ""
    imported: dict[str, str] = field(default_factory=dict)
    others: dict[str, tuple[str, str]] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    rebound: set[str] = field(default_factory=set)

    @property
    def full_module(self) -> str:
        """The full name of the module, by the packages in which it is."""
        path = Path(self.path).resolve()
        parts = [] if path.stem == "__init__" else [path.stem]
        folder = path.parent
        while (folder / "__init__.py").exists():
            parts.insert(0, folder.name)
            folder = folder.parent
        return ".".join(parts)

    @property
    def module(self) -> str:
        """The last part of the name of the module."""
        path = Path(self.path)
        return path.resolve().parent.name if path.stem == "__init__" else path.stem

    def __post_init__(self) -> None:
        stored: Counter[str] = Counter()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.arg):
                stored[node.arg] += 1
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if is_celery(alias.name):
                        self.imported[alias.asname or "celery"] = alias.name if alias.asname else "celery"
            elif isinstance(node, ast.ImportFrom):
                is_theirs = not node.level and is_celery(node.module or "")
                for alias in node.names:
                    local = alias.asname or alias.name
                    if is_theirs:
                        self.imported[local] = f"{node.module}.{alias.name}"
                    else:
                        self.others[local] = ((node.module or "").rpartition(".")[2], alias.name)
        for statement in self.tree.body:
            for target, value in assigned(statement):
                if isinstance(target, ast.Name):
                    self.constants[target.id] = value

        self.rebound = {name for name, times in stored.items() if times > 1}

    def resolve(self, node: ast.AST) -> str:
        """Return the full name of an expression that Celery has, else nothing."""
        first, dot, rest = dotted(node).partition(".")
        return f"{self.imported[first]}{dot}{rest}" if first in self.imported else ""


@dataclass(slots=True)
class Known:
    """Names of apps and of tasks: (last part of the module, name).  A file that imports one has it, too."""

    apps: set[tuple[str, str]] = field(default_factory=set)
    tasks: set[tuple[str, str]] = field(default_factory=set)
    names: dict[tuple[str, str], str] = field(default_factory=dict)  # of tasks, where they are declared → in payloads

    @classmethod
    def of(cls, sources: Sequence[Source]) -> Known:
        known = cls()
        for source in sources:
            for node in ast.walk(source.tree):
                known.apps |= {
                    (source.module, dotted(target))
                    for target, value in assigned(node)
                    if call_name(source, value) == "Celery"
                }
        _spread(sources, known.apps)
        for source in sources:
            for node in ast.walk(source.tree):
                for decorator in decorators_of(source, known, node):
                    name: str = getattr(node, "name", "")
                    known.tasks.add((source.module, name))
                    known.names[source.module, name] = _own_name(decorator) or f"{source.full_module}.{name}"
        _spread(sources, known.tasks)
        return known

    def is_app(self, source: Source, node: ast.AST) -> bool:
        return _is_among(self.apps, source, node)

    def is_task(self, source: Source, node: ast.AST) -> bool:
        return _is_among(self.tasks, source, node)

    def name_of(self, source: Source, node: ast.AST) -> str | None:
        """Return the name that payloads of a task have, None where it is not known."""
        owner, _, name = dotted(node).rpartition(".")
        key = source.others.get(name, (source.module, name)) if not owner else (owner.rpartition(".")[2], name)
        return self.names.get(key)


def _own_name(decorator: ast.expr) -> str:
    """Return the name that @shared_task(name=…) gives, else nothing."""
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    named = (each.value for each in keywords if each.arg == "name" and isinstance(each.value, ast.Constant))
    return next((str(each.value) for each in named), "")


def _spread(sources: Sequence[Source], names: set[tuple[str, str]]) -> None:
    """Add the names under which files import names that are known, also by way of other files."""
    before = -1
    while before != len(names):
        before = len(names)
        for source in sources:
            names |= {(source.module, local) for local, origin in source.others.items() if origin in names}


def _is_among(names: set[tuple[str, str]], source: Source, node: ast.AST) -> bool:
    """Return whether an expression is `name`, as the file has it, or `module.name`."""
    owner, _, name = dotted(node).rpartition(".")
    return ((owner.rpartition(".")[2] or source.module), name) in names


def call_name(source: Source, node: ast.AST) -> str:
    """Return the last part of the name of what of Celery is called here, else nothing."""
    return source.resolve(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def decorators_of(source: Source, known: Known, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the decorators of a function that make it a task."""
    for each in getattr(node, "decorator_list", ()):
        named = each.func if isinstance(each, ast.Call) else each
        is_shared = source.resolve(named).rpartition(".")[2] in ("shared_task", "task", "periodic_task")
        is_of_app = isinstance(named, ast.Attribute) and named.attr == "task" and known.is_app(source, named.value)
        if is_shared or is_of_app:
            yield each


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """Return the Python files of files and folders, in order."""
    return [_read(path) for path in sorted({each for path in paths for each in _files(path)})]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for each in path.rglob("*.py"):
        if not SKIPPED.intersection(each.relative_to(path).parts):
            yield each


def _read(path: Path) -> Source:
    try:
        return Source(str(path), ast.parse(path.read_bytes(), str(path)))
    except (SyntaxError, ValueError, OSError, RecursionError) as error:
        return Source(str(path), error=str(error))
