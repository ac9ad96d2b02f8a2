"""Known: which names in the files of a code base are apps and tasks.

1. apps       names that Celery(…) is assigned to, also by way of functions that return one, in any file
2. tasks      functions with the decorators of apps, and of Celery
3. unfollowed names that look like apps, and of which no file tells what they are
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kiqcluster.contrib.celery.checker.modules import Modules, Place
from kiqcluster.contrib.celery.checker.source import Source, assigned, call_name, dotted, public_name
from kiqcluster.contrib.celery.checker.values import value_of
from kiqcluster.contrib.celery.rules import UNREAD

__all__ = ["Known", "Undecided", "decorators_of"]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
DECORATORS = ("shared_task", "task", "periodic_task")


class Undecided(Exception):
    """The files do not tell which of several things is meant."""


@dataclass(frozen=True, slots=True)
class _Assignments:
    """What one file tells of apps.  returned: name of a function → what it returns.  made: target → its values."""

    source: Source
    returned: tuple[tuple[str, ast.expr], ...]
    made: tuple[tuple[str, ast.expr], ...]

    @classmethod
    def of(cls, source: Source) -> _Assignments:
        returned, made = [], []
        for node in source.nodes:
            if isinstance(node, FUNCTIONS):
                returned += [(node.name, value) for value in _returns(node)]
            made += [(dotted(target), value) for target, value in assigned(node) if dotted(target)]
        return cls(source, tuple(returned), tuple(made))


@dataclass(slots=True)
class Known:
    """Names of apps, of functions that return one, and of tasks, each by its file.

    tasks: each with the decorators that declare it.  has_celery: whether a file imports Celery.
    """

    modules: Modules
    apps: set[Place] = field(default_factory=set)
    factories: set[Place] = field(default_factory=set)
    tasks: dict[Place, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    has_celery: bool = False

    @classmethod
    def of(cls, sources: Sequence[Source]) -> Known:
        known = cls(Modules.of(sources), has_celery=any(each.has_celery for each in sources))
        known._add_declared(sources)
        known._add_made(sources)
        for source in sources:
            for node in source.nodes:
                for decorator in decorators_of(source, known, node):
                    known.tasks[source.file, getattr(node, "name", "")].append(decorator)
        return known

    def _add_declared(self, sources: Sequence[Source]) -> None:
        """Add what annotations and base classes say: `app: Celery`, `def make() -> Celery`, `class Own(Celery)`."""
        for source in sources:
            for node in source.nodes:
                if isinstance(node, ast.AnnAssign) and _is_celery_type(source, node.annotation):
                    self.apps.add((source.file, dotted(node.target)))
                elif (isinstance(node, FUNCTIONS) and _is_celery_type(source, node.returns)) or (
                    isinstance(node, ast.ClassDef) and any(_is_celery_type(source, each) for each in node.bases)
                ):
                    self.factories.add((source.file, node.name))

    def _add_made(self, sources: Sequence[Source]) -> None:
        """Add what is assigned and returned, until no file adds a name: a function may return what another one made."""
        files, before = [_Assignments.of(source) for source in sources], -1
        while before != len(self.apps) + len(self.factories):
            before = len(self.apps) + len(self.factories)
            for each in files:
                file = each.source.file
                self.apps |= {(file, name) for name, value in each.made if self.is_app(each.source, value)}
                self.factories |= {(file, name) for name, value in each.returned if self.is_app(each.source, value)}

    def is_app(self, source: Source, node: ast.AST) -> bool:
        """Return whether an expression is an app: a name, a call that makes one, extensions["celery"] of Flask."""
        match node:
            case ast.Call():
                return call_name(source, node) == "Celery" or self._is_among(self.factories, source, node.func)
            case ast.Subscript(value=ast.Attribute(attr="extensions"), slice=ast.Constant(value="celery")):
                return True
            case ast.BoolOp():
                return any(self.is_app(source, each) for each in node.values)
            case ast.IfExp():
                return self.is_app(source, node.body) or self.is_app(source, node.orelse)
        return self._is_among(self.apps, source, node)

    def is_unfollowed(self, source: Source, node: ast.AST) -> bool:
        """Return whether an expression may be an app, though no file tells what it is.

        It is called celery, or comes from a file of a code base that uses Celery: objects of other libraries do not.
        """
        name = dotted(node)
        if not name or self.is_app(source, node) or source.resolve(node):
            return False
        if "celery" in name.lower():
            return True
        first = name.partition(".")[0]
        made = source.constants.get(first)
        origin = dotted(made.func).partition(".")[0] if isinstance(made, ast.Call) else first
        is_here = any(isinstance(each, FUNCTIONS) and each.name == origin for each in source.tree.body)
        imported = source.origin_of(origin)
        return self.has_celery and (is_here or bool(imported and self.modules.find(source, imported)))

    def is_task(self, source: Source, node: ast.AST) -> bool:
        return self._is_among(self.tasks, source, node)

    def name_of(self, source: Source, node: ast.AST) -> str | None:
        """Return the name that payloads of a task have, None for what is no task.  Raises Undecided."""
        places = [each for each in self.modules.places(source, dotted(node)) if each in self.tasks]
        names = {self._name_of(place[0], place[1], each) for place in places for each in self.tasks[place]}
        if len(names) > 1:
            raise Undecided(f"{dotted(node)} may be {' or '.join(sorted(names))}")
        return names.pop() if names else None

    def _name_of(self, file: Path, function: str, decorator: ast.expr) -> str:
        source = self.modules.sources[file]
        keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
        given = next((value_of(source, each.value) for each in keywords if each.arg == "name"), None)
        if given is UNREAD or any(each.arg is None for each in keywords):
            raise Undecided(f"the name that @{ast.unparse(decorator)} gives {function} is known at run time only")
        if given:
            return str(given)
        module = self.modules.name_of(source)
        if module is None:
            raise Undecided(f"the files do not tell the module name of {source.path}, which {function} has in its name")
        return f"{module}.{function}"

    def _is_among(self, places: Collection[Place], source: Source, node: ast.AST) -> bool:
        """Return whether an expression is `name`, as the file has it, or `module.name`."""
        return any(each in places for each in self.modules.places(source, dotted(node)))


def _returns(function: ast.AST) -> Iterator[ast.expr]:
    """Yield what a function returns, without the functions inside of it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        elif not isinstance(node, SCOPES):
            yield from _returns(node)


def _is_celery_type(source: Source, annotation: ast.expr | None) -> bool:
    match annotation:
        case None:
            return False
        case ast.BinOp(op=ast.BitOr()):
            return _is_celery_type(source, annotation.left) or _is_celery_type(source, annotation.right)
        case ast.Constant(value=str(name)):
            return public_name(source.resolve(ast.Name(name))) == "Celery"
    return public_name(source.resolve(annotation)) == "Celery"


def decorators_of(source: Source, known: Known, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the decorators of a function that make it a task."""
    for each in getattr(node, "decorator_list", ()):
        named = each.func if isinstance(each, ast.Call) else each
        is_shared = public_name(source.resolve(named)) in DECORATORS
        is_of_app = isinstance(named, ast.Attribute) and named.attr == "task" and known.is_app(source, named.value)
        if is_shared or is_of_app:
            yield each
