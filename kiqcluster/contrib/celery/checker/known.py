"""Known: which names in the files of a code base are apps and tasks.

1. apps       names that Celery(…) is assigned to, also by way of functions that return one, in any file
2. tasks      functions with the decorators of apps, and of Celery
3. unfollowed names that look like apps, and of which no file tells what they are
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kiqcluster.contrib.celery.checker.source import Source, assigned, call_name, dotted

__all__ = ["Known", "decorators_of"]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.Lambda)
DECORATORS = ("shared_task", "task", "periodic_task")

Name = tuple[str, str]  # the last part of the module, and the name there


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
    """Names of apps, of functions that return one, and of tasks.  A file that imports one has it, too.

    modules: the last parts of the names of all files.  has_celery: whether one of them imports Celery.
    """

    apps: set[Name] = field(default_factory=set)
    factories: set[Name] = field(default_factory=set)
    tasks: set[Name] = field(default_factory=set)
    names: dict[Name, str] = field(default_factory=dict)  # of tasks, where they are declared → in payloads
    modules: set[str] = field(default_factory=set)
    has_celery: bool = False

    @classmethod
    def of(cls, sources: Sequence[Source]) -> Known:
        known = cls(modules={each.module for each in sources}, has_celery=any(each.imported for each in sources))
        known._add_declared(sources)
        known._add_made(sources)
        for source in sources:
            for node in source.nodes:
                for decorator in decorators_of(source, known, node):
                    name: str = getattr(node, "name", "")
                    known.tasks.add((source.module, name))
                    known.names[source.module, name] = _own_name(decorator) or f"{source.full_module}.{name}"
        _spread(sources, known.tasks)
        return known

    def _add_declared(self, sources: Sequence[Source]) -> None:
        """Add what annotations and base classes say: `app: Celery`, `def make() -> Celery`, `class Own(Celery)`."""
        for source in sources:
            for node in source.nodes:
                if isinstance(node, ast.AnnAssign) and _is_celery_type(source, node.annotation):
                    self.apps.add((source.module, dotted(node.target)))
                elif (isinstance(node, FUNCTIONS) and _is_celery_type(source, node.returns)) or (
                    isinstance(node, ast.ClassDef) and any(_is_celery_type(source, each) for each in node.bases)
                ):
                    self.factories.add((source.module, node.name))

    def _add_made(self, sources: Sequence[Source]) -> None:
        """Add what is assigned and returned, until no file adds a name: a function may return what another one made."""
        files, before = [_Assignments.of(source) for source in sources], -1
        while before != len(self.apps) + len(self.factories):
            before = len(self.apps) + len(self.factories)
            for each in files:
                module = each.source.module
                self.apps |= {(module, name) for name, value in each.made if self.is_app(each.source, value)}
                self.factories |= {(module, name) for name, value in each.returned if self.is_app(each.source, value)}
            _spread(sources, self.apps)
            _spread(sources, self.factories)

    def is_app(self, source: Source, node: ast.AST) -> bool:
        """Return whether an expression is an app: a name, a call that makes one, extensions["celery"] of Flask."""
        match node:
            case ast.Call():
                return call_name(source, node) == "Celery" or _is_among(self.factories, source, node.func)
            case ast.Subscript(value=ast.Attribute(attr="extensions"), slice=ast.Constant(value="celery")):
                return True
            case ast.BoolOp():
                return any(self.is_app(source, each) for each in node.values)
            case ast.IfExp():
                return self.is_app(source, node.body) or self.is_app(source, node.orelse)
        return _is_among(self.apps, source, node)

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
        return self.has_celery and (is_here or source.others.get(origin, ("", ""))[0] in self.modules)

    def is_task(self, source: Source, node: ast.AST) -> bool:
        return _is_among(self.tasks, source, node)

    def name_of(self, source: Source, node: ast.AST) -> str | None:
        """Return the name that payloads of a task have, None where it is not known."""
        owner, _, name = dotted(node).rpartition(".")
        key = source.others.get(name, (source.module, name)) if not owner else (_module_of(source, owner), name)
        return self.names.get(key)


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
        case ast.Constant(value=str()):
            return any(each == annotation.value and full.endswith(".Celery") for each, full in source.imported.items())
    return source.resolve(annotation).rpartition(".")[2] == "Celery"


def _own_name(decorator: ast.expr) -> str:
    """Return the name that @shared_task(name=…) gives, else nothing."""
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    named = (each.value for each in keywords if each.arg == "name" and isinstance(each.value, ast.Constant))
    return next((str(each.value) for each in named), "")


def _spread(sources: Sequence[Source], names: set[Name]) -> None:
    """Add the names under which files import names that are known, also by way of other files."""
    before = -1
    while before != len(names):
        before = len(names)
        for source in sources:
            names |= {(source.module, local) for local, origin in source.others.items() if origin in names}


def _is_among(names: set[Name], source: Source, node: ast.AST) -> bool:
    """Return whether an expression is `name`, as the file has it, or `module.name`."""
    full = dotted(node)
    owner, _, name = full.rpartition(".")
    return bool(full) and ((source.module, full) in names or (_module_of(source, owner), name) in names)


def _module_of(source: Source, owner: str) -> str:
    """Return the last part of the module before a name, by its own name; without one, the module of the file."""
    last = owner.rpartition(".")[2]
    return source.others[last][1] if last in source.others else last or source.module


def decorators_of(source: Source, known: Known, node: ast.AST) -> Iterator[ast.expr]:
    """Yield the decorators of a function that make it a task."""
    for each in getattr(node, "decorator_list", ()):
        named = each.func if isinstance(each, ast.Call) else each
        is_shared = source.resolve(named).rpartition(".")[2] in DECORATORS
        is_of_app = isinstance(named, ast.Attribute) and named.attr == "task" and known.is_app(source, named.value)
        if is_shared or is_of_app:
            yield each
