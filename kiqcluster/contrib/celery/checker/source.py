"""Source: the files of a code base, and what they import.  Imports nothing of the application.

1. read_sources   paths → trees
2. Source         names of one file: imports, constants
3. Origin         what a name of a file was imported as; which file that is, modules.py knows
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Origin", "Source", "assigned", "call_name", "dotted", "is_celery", "public_name", "read_sources"]

SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", "build", "dist", ".tox"})
# Modules whose names code uses.  Others have their own: celery.utils.functional.chunks, celery.events.state.Task.
PUBLIC = frozenset(
    {
        "celery", "celery._state", "celery.app", "celery.app.base", "celery.app.control", "celery.app.task",
        "celery.canvas", "celery.decorators", "celery.exceptions", "celery.execute", "celery.local", "celery.result",
        "celery.schedules", "celery.signals", "celery.states", "celery.task", "celery.task.base", "celery.utils.log",
    }
)  # fmt: skip
PUBLIC_NAMES = frozenset({"celery.utils.uuid"})


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


class Origin(NamedTuple):
    """What a name was imported as: `from a.b import c` is a.b.c.  folder: of a relative import, from where to look."""

    folder: Path | None
    parts: tuple[str, ...]


@dataclass(slots=True)
class Source:
    """One file.  root: the folder that was given, where imports may begin.  error: why the file was not read.

    imported: local name → what it was imported as.  starred: modules of `from … import *`.
    absolute: the whole names of absolute imports.
    constants: name of the module → its value.  rebound: names that are set in several places.
    nodes: of the tree, which many parts of the checker go through.
    """

    path: str
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))
    error: str = ""
    root: Path | None = None
    file: Path = field(init=False)
    imported: dict[str, Origin] = field(default_factory=dict)
    starred: list[Origin] = field(default_factory=list)
    absolute: set[tuple[str, ...]] = field(default_factory=set)
    constants: dict[str, ast.expr] = field(default_factory=dict)
    rebound: set[str] = field(default_factory=set)
    nodes: tuple[ast.AST, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.file = Path(self.path).resolve()
        self.nodes = tuple(ast.walk(self.tree))
        stored: Counter[str] = Counter()
        for node in self.nodes:
            if isinstance(node, ast.arg):
                stored[node.arg] += 1
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                stored[node.id] += 1
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    full = alias.name if alias.asname else first
                    self.imported[alias.asname or first] = Origin(None, tuple(full.split(".")))
                    self.absolute.add(tuple(alias.name.split(".")))
            elif isinstance(node, ast.ImportFrom):
                self._add_names(node)
        for statement in self.tree.body:
            for target, value in assigned(statement):
                if isinstance(target, ast.Name):
                    self.constants[target.id] = value

        self.rebound = {name for name, times in stored.items() if times > 1}

    def _add_names(self, node: ast.ImportFrom) -> None:
        module = tuple(node.module.split(".")) if node.module else ()
        above = self.file.parents
        folder = above[min(node.level, len(above)) - 1] if node.level else None
        for alias in node.names:
            if folder is None:
                self.absolute.add(module if alias.name == "*" else (*module, alias.name))
            if alias.name == "*":
                self.starred.append(Origin(folder, module))
            else:
                self.imported[alias.asname or alias.name] = Origin(folder, (*module, alias.name))

    @property
    def has_celery(self) -> bool:
        """Whether it imports something of Celery."""
        return any(_is_of_celery(each) for each in (*self.imported.values(), *self.starred))

    def origin_of(self, name: str) -> Origin | None:
        """Return what `a.b.c` was imported as, None where `a` is no import of this file."""
        first, *rest = name.split(".")
        origin = self.imported.get(first)
        return None if origin is None else Origin(origin.folder, (*origin.parts, *rest))

    def full_name(self, node: ast.AST) -> str:
        """Return the whole name of an expression that an absolute import tells, else nothing."""
        origin = self.origin_of(dotted(node))
        return "" if origin is None or origin.folder is not None else ".".join(origin.parts)

    def resolve(self, node: ast.AST) -> str:
        """Return the whole name of an expression that Celery has, else nothing."""
        full = self.full_name(node)
        return full if is_celery(full) else ""


def _is_of_celery(origin: Origin) -> bool:
    return origin.folder is None and origin.parts[:1] == ("celery",)


def public_name(full: str) -> str:
    """Return the name of a thing without its module where it has that name in public, else its whole name."""
    module, _, name = full.rpartition(".")
    return name if module in PUBLIC or full in PUBLIC_NAMES else full


def call_name(source: Source, node: ast.AST) -> str:
    """Return the public name of what of Celery is called here, else nothing."""
    return public_name(source.resolve(node.func)) if isinstance(node, ast.Call) else ""


def read_sources(paths: Sequence[Path]) -> list[Source]:
    """Return the Python files of files and folders, in order."""
    roots = {file: path if path.is_dir() else path.parent for path in paths for file in _files(path)}
    return [_read(file, roots[file]) for file in sorted(roots)]


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
        return
    for each in path.rglob("*.py"):
        if not SKIPPED.intersection(each.relative_to(path).parts):
            yield each


def _read(path: Path, root: Path) -> Source:
    try:
        return Source(str(path), ast.parse(path.read_bytes(), str(path)), root=root.resolve())
    except (SyntaxError, ValueError, OSError, RecursionError) as error:
        return Source(str(path), error=str(error), root=root.resolve())
