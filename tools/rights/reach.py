"""Reach: the Redis commands that a part of the package can run, as its source says.

A part is a set of modules.  From all of its functions, names lead to functions, classes and constants of the package:
from a class to all of its methods, from a constant to what it is made of.  A command is the first word of a tuple, of
a list, or of a call.  A script is a name of `kiqcluster.store.scripts`, and has the commands that its text has.
What is passed as a value and never named is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path

from kiqcluster.store import scripts
from kiqcluster.store.rights.trials import TRIALS, UNTRIED

__all__ = ["commands_of"]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "kiqcluster"
SCRIPTS = "kiqcluster.store.scripts"
NOT_FOLLOWED = ("kiqcluster.store.rights",)  # knows all commands, and runs them to see whether it may
CONTAINERS = {name.partition("|")[0] for name in UNTRIED if "|" in name}  # commands that have subcommands
LEADING_WORDS = 2  # of a call: the first may be the store, as in `scan(store, "SSCAN", …)`

Place = tuple[str, str]  # a module, and a name that it defines


class Module:
    """What a module defines and imports at its top."""

    def __init__(self, path: Path) -> None:
        self.definitions: dict[str, ast.stmt] = {}
        self.imports: dict[str, Place] = {}
        self._read(ast.parse(path.read_text(encoding="utf-8")).body)

    def _read(self, statements: list[ast.stmt]) -> None:
        for each in statements:
            match each:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    self.definitions[each.name] = each
                case ast.Assign() | ast.AnnAssign():
                    targets = each.targets if isinstance(each, ast.Assign) else [each.target]
                    names = (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
                    self.definitions |= dict.fromkeys(names, each)
                case ast.ImportFrom():
                    self.imports |= imported(each)
                case ast.If():
                    self._read([*each.body, *each.orelse])


def imported(node: ast.ImportFrom) -> dict[str, Place]:
    """Return name → what it stands for, of an import from the package."""
    module = node.module or ""
    if not module.startswith(PACKAGE):
        return {}
    return {alias.asname or alias.name: (module, alias.name) for alias in node.names}


@cache
def modules() -> dict[str, Module]:
    """Return all modules of the package by name."""
    paths = (ROOT / PACKAGE).rglob("*.py")
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): Module(path) for path in paths
    }


def commands_of(part: Collection[str], without: Collection[str] = ()) -> frozenset[str]:
    """Return the commands, subcommands as in `CLIENT|ID`, that a part can run.

    part: names of modules and of packages.  without: those whose functions are not followed.
    """
    waiting = [(module, name) for module in modules() if _is_in(module, part) for name in modules()[module].definitions]
    seen: set[Place] = set()
    found: set[str] = set()
    while waiting:
        module, name = place = waiting.pop()
        if place in seen or _is_in(module, [*without, *NOT_FOLLOWED]):
            continue
        seen.add(place)
        script = getattr(scripts, name, None) if module == SCRIPTS else None
        if isinstance(script, scripts.Script):
            found |= script.commands
            continue
        commands, named = _content(place)
        found |= commands
        waiting += named
    return frozenset(found)


@cache
def _content(place: Place) -> tuple[frozenset[str], tuple[Place, ...]]:
    """Return the commands in a definition, and the places that its names lead to."""
    module, name = place
    nodes = list(ast.walk(modules()[module].definitions[name]))
    return frozenset(_commands_in(nodes)), tuple(_named_in(nodes, module))


def _is_in(module: str, part: Collection[str]) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in part)


def _commands_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Tuple | ast.List):
            words, leading = node.elts, 1
        elif isinstance(node, ast.Call):
            words, leading = node.args, LEADING_WORDS
        else:
            continue
        texts = [str(each.value) if isinstance(each, ast.Constant) else "" for each in words]
        for at, word in enumerate(texts[:leading]):
            if word in CONTAINERS:
                yield f"{word}|{texts[at + 1]}"
            elif word in TRIALS or word in UNTRIED:
                yield word


def _named_in(nodes: Iterable[ast.AST], module: str) -> Iterator[Place]:
    """Yield the places that names in a definition lead to."""
    known = dict(modules()[module].imports)
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            known |= imported(node)
    for node in nodes:
        if isinstance(node, ast.Name):
            place = _resolved(*known[node.id]) if node.id in known else _resolved(module, node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            place = _resolved(".".join(known[node.value.id]), node.attr)  # of a module
        else:
            continue
        if place is not None:
            yield place


def _resolved(module: str, name: str) -> Place | None:
    """Return where the package defines a name of a module, None if it does not."""
    found = modules().get(module)
    if found is None or f"{module}.{name}" in modules():
        return None
    if name in found.definitions:
        return module, name
    return _resolved(*found.imports[name]) if name in found.imports else None
