"""Source: the files of a code base, and which names they import from Celery.  Imports nothing of the application.

1. read_sources   paths → trees
2. Source         names of one file: imports, constants
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Source", "assigned", "call_name", "dotted", "is_celery", "read_sources"]

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

    imported: local name → its full name, of what comes from Celery.
    others: local name → the last part of its module and its name there, of the rest; `import a.b as c` is ("", "b").
    constants: name of the module → its value.  rebound: names that are set in several places.
    module: the last part of its name.  nodes: of the tree, which many parts of the checker go through.
    """

    path: str
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    error: str = ""
    imported: dict[str, str] = field(default_factory=dict)
    others: dict[str, tuple[str, str]] = field(default_factory=dict)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    rebound: set[str] = field(default_factory=set)
    module: str = field(init=False)
    nodes: tuple[ast.AST, ...] = field(init=False)

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

    def __post_init__(self) -> None:
        path = Path(self.path)
        self.module = path.resolve().parent.name if path.stem == "__init__" else path.stem
        self.nodes = tuple(ast.walk(self.tree))
        stored: Counter[str] = Counter()
        for node in self.nodes:
            if isinstance(node, ast.arg):
                stored[node.arg] += 1
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if is_celery(alias.name):
                        self.imported[alias.asname or "celery"] = alias.name if alias.asname else "celery"
                    elif alias.asname:
                        self.others[alias.asname] = ("", alias.name.rpartition(".")[2])
            elif isinstance(node, ast.ImportFrom):
                is_theirs = not node.level and is_celery(node.module or "")
                for alias in node.names:
                    local = alias.asname or alias.name
                    if is_theirs:
                        self.imported[local] = f"{node.module}.{alias.name}"
                    else:
                        self.others[local] = (self._last_part(node), alias.name)
        for statement in self.tree.body:
            for target, value in assigned(statement):
                if isinstance(target, ast.Name):
                    self.constants[target.id] = value

        self.rebound = {name for name, times in stored.items() if times > 1}

    def _last_part(self, node: ast.ImportFrom) -> str:
        """Return the last part of the module of an import; of `from . import …`, the name of the package."""
        if node.level and not node.module:
            folders = Path(self.path).resolve().parents
            return folders[min(node.level, len(folders)) - 1].name
        return (node.module or "").rpartition(".")[2]

    def resolve(self, node: ast.AST) -> str:
        """Return the full name of an expression that Celery has, else nothing."""
        first, dot, rest = dotted(node).partition(".")
        return f"{self.imported[first]}{dot}{rest}" if first in self.imported else ""


def call_name(source: Source, node: ast.AST) -> str:
    """Return the last part of the name of what of Celery is called here, else nothing."""
    return source.resolve(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


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
